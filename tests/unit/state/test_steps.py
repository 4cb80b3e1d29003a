"""Steps of threads: what is usual, and what is not."""

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.state.steps import MAX_SERIES, MAX_SLOW, ThreadSteps
from otel_gpu.state.window import Window
from otel_gpu.wire.marks import Step

PROCESS = Program(7, 70, "train", 0, {"service.name": "train"})
MS = 1_000_000


def step(
    number, duration_ns, *, tid=8, source=wire.STEP_REPORTED, kind=1, loader_wait_ns=0, at=None
):
    end = number * 1_000 * MS if at is None else at
    event = Step(
        *(end, 70, 7, tid, end - duration_ns, number, loader_wait_ns),
        *(b"", b"", 0, source, 90, kind, "", "loop"),
    )
    return StepActivity(PROCESS, event, end - duration_ns, end, b"T" * 16, b"S" * 8, b"")


def test_a_step_is_slow_by_those_before_it():
    """Twice as long as the median; the first eight are compared with nothing."""
    steps = ThreadSteps()
    durations = [300, 10, 10, 11, 9, 10, 10, 10, 10, 21, 10, 45]

    found = [steps.observe(step(n, ns * MS)) for n, ns in enumerate(durations)]

    slow = [one for one in found if one is not None]
    assert [(one.activity.event.number, one.usual_ns // MS) for one in slow] == [(9, 10), (11, 10)]
    (series,) = steps.series()
    assert (series.steps, series.max_ns, *series.quantiles_ns(0.5)) == (12, 300 * MS, 10 * MS)
    assert [one.activity.event.number for one in series.slow] == [11, 9]
    assert series.slow_steps == 2


def test_kinds_are_compared_with_their_own():
    """An evaluation is no slow step of training, and neither is one of another thread."""
    steps = ThreadSteps()
    for number in range(40):
        assert steps.observe(step(number, 10 * MS)) is None
        assert steps.observe(step(number, 95 * MS, kind=wire.STEP_EVALUATION)) is None
        assert steps.observe(step(number, 40 * MS, tid=9)) is None

    assert [(one.tid, one.kind, one.steps) for one in steps.series()] == [
        (8, wire.STEP_EVALUATION, 40),
        (9, wire.STEP_TRAINING, 40),
        (8, wire.STEP_TRAINING, 40),
    ]


def test_what_a_program_tells_goes_before_what_was_found():
    """Found steps of that thread are forgotten, and no more are counted."""
    steps = ThreadSteps()
    steps.observe(step(1, MS, source=wire.STEP_FOUND))
    steps.observe(step(1, MS, tid=9, source=wire.STEP_FOUND))
    steps.observe(step(2, MS))
    steps.observe(step(3, MS, source=wire.STEP_FOUND))

    assert sorted((one.tid, one.source, one.steps) for one in steps.series()) == [
        (8, wire.STEP_REPORTED, 1),
        (9, wire.STEP_FOUND, 1),
    ]


def test_what_was_before_the_window_says_what_is_usual_in_it():
    steps = ThreadSteps(Window(100_000 * MS, 200_000 * MS))
    for number in range(99):
        steps.observe(step(number, 10 * MS))
    steps.observe(step(150, 30 * MS, loader_wait_ns=90 * MS))
    steps.observe(step(201, 50 * MS))

    (series,) = steps.series()
    assert (series.steps, series.slow_steps, series.slow[0].usual_ns) == (1, 1, 10 * MS)
    # No more than the step itself.
    assert series.loader_wait_ns == 30 * MS


def test_memory_is_bounded():
    """Whatever threads and steps there are."""
    steps = ThreadSteps()
    for number in range(20_000):
        steps.observe(step(number, (number * 7_919 % 1_000 + 1) * MS, tid=number % 3))
    for tid in range(3 * MAX_SERIES):
        steps.observe(step(1, MS, tid=tid, source=wire.STEP_FOUND))
        steps.observe(step(1, MS, tid=tid))

    found = steps.series()
    assert len(found) <= MAX_SERIES
    assert max(len(one.slow) for one in found) <= MAX_SLOW
