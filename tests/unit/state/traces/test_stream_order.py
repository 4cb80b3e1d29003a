"""What streams did is possible, or it is said that it is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.state.traces.launches import link
from otel_gpu.state.traces.stream_order import EARLY_NS, find_order
from otel_gpu.wire.device_activity import HostWork
from tests.unit.state.traces.test_device_time import US, of

LENGTHS = st.lists(st.tuples(st.integers(1, 400), st.integers(0, 90)), min_size=1, max_size=40)


def order(work, calls=()):
    """Work (start, length, launch, stream), and calls (start, length, launch); in µs."""
    trace = of(
        [("gemm", *one) for one in work],
        [(HostWork.CALL, "cudaLaunchKernel", *one) for one in calls],
    )
    rows = sorted(range(len(work)), key=trace.activities.starts_ns.__getitem__)
    return find_order(trace, rows, link(trace))


def one_after_the_other(pairs):
    """Activities of so much length, with so much time between them."""
    work, at = [], 0
    for number, (length, gap) in enumerate(pairs, 1):
        work.append((at, length, number, 7))
        at += length + gap
    return work


@given(LENGTHS, LENGTHS)
def test_streams_that_are_in_order_have_no_faults(first, second):
    """However long, and whatever another stream does meanwhile."""
    work, others = one_after_the_other(first), one_after_the_other(second)
    calls = [(n, 0, n) for n in range(1, 1 + len(work))]

    found = order([*work, *((at, length, 0, 9) for at, length, _, _ in others)], calls)

    assert (found.overlapping, found.overlong, found.early) == (0, frozenset(), 0)
    assert not found.has_wrong_durations
    assert not found.is_disordered


@pytest.mark.parametrize(
    ("count", "over", "is_wrong"), [(40, 1, False), (40, 2, True), (80, 2, False), (80, 56, True)]
)
def test_a_duration_that_runs_over_several_later_ones_is_wrong(count, over, is_wrong):
    """Over the next one it may be a launch that lets it begin early; 170 µs of 4,970 make no difference."""
    work = [(100 * n, 60, n + 1, 7) for n in range(count)]
    work[20] = (2_000, 100 * over + 70, 21, 7)

    found = order(work)

    assert found.has_wrong_durations == is_wrong
    assert found.overlapping == over
    assert found.overlap_ns == 60 * over * US
    assert (found.overlong, found.run_over) == (({20}, over) if over > 1 else (set(), 0))


def test_what_overlaps_a_little_is_no_fault():
    """Each of a hundred begins when two thirds of the one before are over."""
    found = order([(40 * n, 60, n + 1, 7) for n in range(100)])

    assert (found.overlapping, found.overlap_ns) == (99, 99 * 20 * US)
    assert not found.has_wrong_durations


def test_parts_of_one_graph_may_run_at_once():
    """They have one launch. So may other streams, and streams of which nothing is known."""
    graph = [(0, 900, 5, 7), *((100 * n, 90, 5, 7) for n in range(1, 8))]

    assert order(graph).overlapping == 0
    assert order([(start, length, n, n) for n, (start, length, _, _) in enumerate(graph)]).overlapping == 0  # fmt: skip
    assert order([(start, length, n, -1) for n, (start, length, _, _) in enumerate(graph)]).overlapping == 0  # fmt: skip


def test_what_takes_no_time_is_no_proof():
    """Old versions round to microseconds: where something that took less lies is chance."""
    found = order([(0, 900, 1, 7), *((100 * n, 0, n + 1, 7) for n in range(1, 8))])

    assert found.overlong == frozenset()


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 100), st.integers(0, 9), st.sampled_from([7, 9])),
        max_size=30,
    )
)  # fmt: skip
def test_work_that_begins_too_early_is_found(pairs):
    """As its definition has it: something that was launched before its call began begins later."""
    work = [(at, 1, n, stream) for n, (at, _, _, stream) in enumerate(pairs, 1)]
    calls = [(called, taken, n) for n, (_, called, taken, _) in enumerate(pairs, 1)]

    found = order(work, calls)

    expected = sum(
        any(
            stream == other and later * US >= at * US + EARLY_NS and before + returned < called
            for later, before, returned, other in pairs
        )
        for at, called, _, stream in pairs
    )
    assert (found.early, found.launches) == (expected, len(pairs))
