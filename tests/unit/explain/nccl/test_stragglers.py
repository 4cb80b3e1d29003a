"""A rank that comes last in every step: said with what keeps it, though no step is slower than usual."""

import pytest

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Culprit
from otel_gpu.enrich.thread_times import Wait
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import CauseKind
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.state import capture_state
from otel_gpu.wire.communicators import QueuedCollective
from tests.activities import MS, SECOND, T0, capture, ended, image, thread_time, times
from tests.communicator_activities import ALL_REDUCE, collectives, ranks, reading

WORLD = ranks(4)
HOG = Culprit(900, 901, "hog")
BY_HOG = Wait(0, HOG, None, wire.STATE_NONE, "", None)
STEP_NS = 100 * MS


def account(at_s, late_share, state=wire.STATE_RUN_QUEUE, wait=BY_HOG):
    """Where the time went by then: the late rank lost it, and the others waited for the device."""
    passed = (at_s - 10) * SECOND
    lost = round(passed * late_share)
    rows = []
    for process in WORLD[:3]:
        rows += [
            thread_time(process, wire.STATE_ON_CPU, wire.CONTEXT_SYNCHRONIZE, lost),
            thread_time(process, wire.STATE_ON_CPU, wire.CONTEXT_GAP, passed - lost, wait=BY_HOG),
        ]
    context = wire.CONTEXT_SYNCHRONIZE if state == wire.STATE_ON_CPU else wire.CONTEXT_GAP
    rows += [
        thread_time(WORLD[3], state, context, lost, ended_ns=lost, wait=wait),
        thread_time(WORLD[3], wire.STATE_ON_CPU, wire.CONTEXT_GAP, passed - lost, wait=BY_HOG),
    ]
    return times(at_s, *rows)


def story(late_ns=60 * MS, until_s=32, **given):
    """Ten steps a second, of which the last rank is always that late."""
    yield capture()
    for at_s in range(10, until_s):
        for rank, process in enumerate(WORLD):
            made = [
                QueuedCollective(
                    n + 1, 10 * SECOND + n * STEP_NS + (rank == 3) * late_ns, ALL_REDUCE
                )
                for n in range((at_s - 10) * 10)
            ]
            yield reading(process, at_s, made, rank=rank)
        yield account(at_s, late_ns / STEP_NS, **given)


def incidents_of(stream):
    explainer = Explainer()
    for activity in stream:
        explainer.push(activity)
    explainer.close()
    return [
        one
        for one in explainer.incidents()
        if one.causes and one.causes[0].kind == CauseKind.COLLECTIVE_WAIT
    ]


@pytest.mark.parametrize("stream", [story(), [*story(), *(ended(one, 33) for one in WORLD)]])
def test_it_is_named_with_what_keeps_it(stream):
    """Each of the others lost six tenths of its time to it, and a hog had its CPU."""
    found = incidents_of(stream)

    assert {one.processes[0].pid for one in found} == {1000, 1001, 1002}
    for one in found:
        cause = one.causes[0]
        assert (one.chronic, one.severity, cause.culprit.pid) == (True, "high", 1003)
        assert cause.share == pytest.approx(0.6, abs=0.05)
        by_hog = {below.kind: below for below in cause.via}[CauseKind.RUN_QUEUE]
        assert by_hog.culprit == HOG
        assert by_hog.time_ns == pytest.approx(cause.time_ns, rel=0.05)


def test_a_window_has_what_was_in_it():
    """As the whole, of the part that is asked for."""
    window = Window(T0 + 15 * SECOND, T0 + 25 * SECOND)
    collector = Collector(Explainer(), window=window)
    for activity in story():
        collector.observe(activity)

    found = [
        one.causes[0]
        for one in collector.finish("test").incidents
        if one.causes[0].kind == CauseKind.COLLECTIVE_WAIT
    ]

    assert [cause.culprit.pid for cause in found] == [1003] * 3
    assert [cause.share for cause in found] == pytest.approx([0.6] * 3, abs=0.1)


def test_a_rank_whose_device_is_slow_is_no_fault_of_the_host():
    """It waits for its device when the others have called: nothing on its host keeps it."""
    assert incidents_of(story(state=wire.STATE_ON_CPU)) == []


def test_ranks_that_are_a_little_out_of_step_raise_nothing():
    """Two of a hundred milliseconds are no news."""
    assert incidents_of(story(late_ns=2 * MS)) == []


def test_what_hangs_is_no_habit():
    """A rank that is missing for long is told as that, and not as one that always comes late."""
    stream = [
        capture(),
        *(
            reading(
                process,
                11,
                collectives([10 * SECOND + n * STEP_NS for n in range(5 - (rank == 3))]),
                rank=rank,
            )
            for rank, process in enumerate(WORLD)
        ),
        *(account(at_s, 0.9) for at_s in range(11, 40)),
    ]

    assert incidents_of(stream) == []


def test_waits_are_followed_from_communicator_to_communicator():
    """Two by two ranks: who waits for one that waits in another communicator, waits for the last one."""
    late_ns = 60 * MS
    tensor, data = 0x1111, 0x2222

    def calls(until_s, late):
        return [
            QueuedCollective(n + 1, 10 * SECOND + n * STEP_NS + late, ALL_REDUCE)
            for n in range((until_s - 10) * 10)
        ]

    def parallel():
        yield capture()
        for at_s in range(10, 32):
            for identity, members in (
                *((tensor + first, (first, first + 1)) for first in (0, 2)),
                *((data + first, (first, first + 2)) for first in (0, 1)),
            ):
                is_tensor = identity < data
                for rank, member in enumerate(members):
                    # Rank 3 comes late; rank 2 can go on only when it came.
                    late = late_ns if member == 3 or (member == 2 and not is_tensor) else 0
                    yield reading(
                        WORLD[member],
                        at_s,
                        calls(at_s, late),
                        handle=(0x7F00 if is_tensor else 0x7F01, 0),
                        identity=identity,
                        rank=rank,
                        rank_count=2,
                    )
            yield account(at_s, late_ns / STEP_NS)

    causes = {
        one.processes[0].pid: one.causes[0]
        for one in incidents_of(parallel())
        if one.causes[0].kind == CauseKind.COLLECTIVE_WAIT
    }

    assert {pid: cause.culprit.pid for pid, cause in causes.items()} == {
        1000: 1002,
        1001: 1003,
        1002: 1003,
    }
    (through, *_) = causes[1000].via
    assert (through.kind, through.culprit.pid) == (CauseKind.COLLECTIVE_WAIT, 1003)
    assert [one.culprit for one in through.via if one.kind == CauseKind.RUN_QUEUE] == [HOG]
    assert sum(one.time_ns for one in through.via) <= through.time_ns <= causes[1000].time_ns


def test_programs_that_end_beside_ranks_cost_what_they_did_themselves(monkeypatch):
    """A program that executes itself over and over has no look at all others with each of its images."""
    made = []

    def counted(*given):
        made.append(given)
        return figures_of(*given)

    figures_of = capture_state._figures_of
    monkeypatch.setattr(capture_state, "_figures_of", counted)

    def looks(count):
        made.clear()
        images = [image(5000, (11 + number) * MS) for number in range(count)]
        rows = [
            thread_time(one, wire.STATE_ON_CPU, wire.CONTEXT_GAP, 10 * MS, wait=BY_HOG)
            for one in images
        ]
        story_of_ranks = list(story(until_s=12))
        ends = [ended(one, 12) for one in images]
        for _ in incidents_of([*story_of_ranks, times(12, *rows), *ends, account(19, 0.6)]):
            pass
        return len(made)

    # One for itself, as it ends; the ranks are looked at as often as before.
    assert looks(199) - looks(100) == 99
