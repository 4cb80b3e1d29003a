"""What made a step slow: the parts of what was slow that lie in it."""

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.marks import StepActivity
from otel_gpu.explain.slow_steps import causes_of_step, chains_by_thread
from otel_gpu.state.steps import SlowStep
from otel_gpu.wire.marks import Step
from tests.unit.report.samples import HOG, MS, preempted

TRAIN = Program(42, 5, "train", 0, {"service.name": "train"})
OTHER = Program(43, 5, "train", 0, {"service.name": "train"})
T0 = preempted(TRAIN, 0).effect.start_unix_ns


def slow_step(start_ns, end_ns, usual_ns=4 * MS, tid=42):
    event = Step(
        *(end_ns, 5, 42, tid, start_ns, 7, 0, b"", b"", 0, wire.STEP_REPORTED, 100),
        *(wire.STEP_TRAINING, "", "train"),
    )
    activity = StepActivity(TRAIN, event, T0 + start_ns, T0 + end_ns, b"T" * 16, b"S" * 8, b"")
    return SlowStep(activity, usual_ns)


def found(step, *chains):
    causes, unexplained_ns = causes_of_step(step, chains_by_thread(chains))
    return [(one.kind, one.time_ns) for one in causes], unexplained_ns


def test_causes_of_all_that_was_slow_in_it_are_added_up():
    """Two launches, each of which lost 7 ms to a compiler and 1 ms to a worker."""
    step = slow_step(0, 30 * MS)
    chains = (preempted(TRAIN, MS), preempted(TRAIN, 15 * MS, "c2"))

    causes, unexplained_ns = causes_of_step(step, chains_by_thread(chains))

    first = causes[0]
    assert (first.kind, first.time_ns, first.culprit) == (
        "preemption",
        14 * MS,
        HOG,
    )
    assert first.share == 14 / 30
    assert {interval.id for interval in first.evidence} == {"c1-rq", "c2-rq"}
    assert unexplained_ns == (30 - 4 - 16) * MS


def test_what_reaches_beyond_it_counts_by_its_part():
    """Half of a launch of 10 ms."""
    assert found(slow_step(0, 5 * MS, MS), preempted(TRAIN, 0)) == (
        [("preemption", 7 * MS // 2), ("ipc", MS // 2)],
        0,
    )


def test_what_others_do_or_what_was_before_is_none_of_it():
    """Other threads, other processes, other times."""
    chains = (preempted(OTHER, 0), preempted(TRAIN, 50 * MS, "c2"))

    assert found(slow_step(0, 40 * MS), *chains) == ([], 36 * MS)
    assert found(slow_step(0, 100 * MS, tid=44), *chains) == ([], 96 * MS)
