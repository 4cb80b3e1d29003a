"""Time slots: nothing is lost when they grow, there are never too many rows, and none where no capture was."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.enrich.activities import CountersActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.report.collector import Collector
from otel_gpu.report.document import Window
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.time_buckets import MAX_BUCKETS, MAX_ROWS, TimeBuckets, Totals
from otel_gpu.state.capture_state import CaptureState
from tests.activities import (
    MS,
    SECOND,
    T0,
    aggregate,
    calls,
    capture,
    image,
    series,
    snapshot,
)
from tests.unit.report.test_collector import FakeExplainer

TRAINER, OTHER = image(42, 1), image(77, 1)
ONE, TWO = (42, 1), (77, 1)
WHOLE = Window()


def captured(*times, window=WHOLE):
    """Slots of captures, by their begin and end in nanoseconds."""
    extent = CaptureExtent()
    for start_ns, end_ns in times:
        extent.observe(capture(unix_ns=start_ns))
        extent.observe(CountersActivity(end_ns, {}))
    return TimeBuckets(extent, window)


def rows_of(slots, end_s, *processes):
    known = {(process.pid, process.program_ktime_ns): process for process in processes}
    return list(slots.rows(known, round(end_s * SECOND), SECOND))


def test_what_lies_in_two_slots_is_shared_out():
    """A reading that covers 0.5 s to 2 s adds a third of itself to the first second."""
    slots = captured((0, 2 * SECOND))

    slots.spread(ONE, SECOND // 2, 2 * SECOND, Totals(calls=30, call_ns=300))

    rows = [row for row in rows_of(slots, 2, TRAINER) if row.process is None]
    assert [(row.calls, row.call_ns) for row in rows] == [
        (pytest.approx(10), pytest.approx(100)),
        (pytest.approx(20), pytest.approx(200)),
    ]


def test_each_process_has_rows_of_its_own():
    """Rows of all together come first; a process that is not told of is in none."""
    slots = captured((0, SECOND))
    slots.spread(ONE, 0, SECOND, Totals(calls=1))
    slots.spread(TWO, 0, SECOND, Totals(calls=2))
    slots.spread((9, 9), 0, SECOND, Totals(calls=4))

    rows = rows_of(slots, 1, TRAINER, OTHER)

    assert [(row.process, round(row.calls, 6)) for row in rows] == [
        (None, 3),
        (TRAINER, 1),
        (OTHER, 2),
    ]


def test_what_began_before_the_window_counts_from_its_start():
    """An effect that reaches into the window is in its first slot."""
    slots = captured((0, 11 * SECOND), window=Window(10 * SECOND))

    slots.spread(ONE, 4 * SECOND, 11 * SECOND, Totals(lost_ns=7))

    (row, _) = rows_of(slots, 11, TRAINER)
    assert (row.start_unix_ns, row.lost_ns) == (10 * SECOND, pytest.approx(7))


def test_what_ended_after_the_window_counts_until_its_end():
    """As the figures do: a reading is of the window if any of it is."""
    slots = captured((0, 20 * SECOND), window=Window(None, 10 * SECOND))

    slots.spread(ONE, 9 * SECOND, 11 * SECOND, Totals(calls=8))

    rows = [row for row in rows_of(slots, 10, TRAINER) if row.process is None]
    assert [row.calls for row in rows] == [*[0] * 9, pytest.approx(8)]


def test_a_moment_at_the_end_is_in_the_last_slot():
    """A process that is read twice at the same moment, the last one, counts both times."""
    slots = captured((0, 2 * SECOND))

    slots.spread(ONE, SECOND, 2 * SECOND, Totals(calls=3))
    slots.spread(ONE, 2 * SECOND, 2 * SECOND, Totals(calls=4))

    rows = [row for row in rows_of(slots, 2, TRAINER) if row.process is None]
    assert [row.calls for row in rows] == [0, pytest.approx(7)]


def test_rows_are_no_finer_than_the_counters_are_read():
    """A short capture that was read often is shown in detail; else rows would repeat each other."""
    slots = captured((0, SECOND))
    slots.spread(ONE, 0, SECOND, Totals(calls=10))

    counts = {
        least_ns: len(list(slots.rows({}, SECOND, least_ns)))
        for least_ns in (0, SECOND // 4, SECOND)
    }

    assert counts == {0: 10, SECOND // 4: 5, SECOND: 1}


def test_an_end_far_away_is_no_work():
    """A recording with a clock that stepped by centuries is reported at once."""
    slots = captured((0, 2**63))
    slots.spread(ONE, 0, SECOND, Totals(calls=10))

    rows = list(slots.rows({ONE: TRAINER}, 2**63, SECOND))

    assert len(rows) == 2 * MAX_ROWS
    assert rows[0].calls == pytest.approx(10)


@given(
    ends=st.lists(st.integers(min_value=1, max_value=2**63), min_size=1, max_size=20),
)
def test_nothing_is_lost_however_long_a_capture_is(ends):
    """Slots grow when there are too many; their sums stay, and rows and memory are bounded."""
    slots = captured((0, max(ends)))
    for end in ends:
        slots.spread(ONE, end - 1, end, Totals(calls=1))

    rows = [row for row in rows_of(slots, max(ends) / SECOND + 1, TRAINER) if row.process is None]

    assert len(rows) <= MAX_ROWS
    assert sum(row.calls for row in rows) == pytest.approx(len(ends))
    assert max(ends) // slots.width_ns < MAX_BUCKETS


def test_a_counter_that_runs_backwards_takes_nothing_away():
    """As in a damaged recording: no slot holds fewer calls than none."""
    slots = captured((T0, T0 + 2 * SECOND))
    ledger = CaptureState(follow=slots.follow)
    trainer = image(42, 1)
    ledger.observe(snapshot(1, calls(trainer, "cudaFree", [1_000] * 5)))
    ledger.observe(snapshot(2, calls(trainer, "cudaFree", [500] * 2)))

    rows = slots.rows({(42, 1): trainer}, T0 + 2 * SECOND, SECOND)

    assert [round(row.calls) for row in rows if row.process is None] == [5, 0]


# Captures as a store has them: in the order in which they were written, which is not always that
# of time, with processes of their own, which began before them or in them, and readings.
@st.composite
def _captures(draw):
    found = []
    for number in range(draw(st.integers(1, 6))):
        start_ms = draw(st.integers(0, 600_000))
        steps_ms = draw(st.lists(st.integers(1, 5_000), max_size=8))
        began_ms = draw(st.integers(start_ms - 50_000, start_ms + sum(steps_ms)))
        added = draw(st.lists(st.integers(0, 997), min_size=len(steps_ms), max_size=len(steps_ms)))
        late_ms = draw(st.integers(0, 3_000))
        found.append((number, start_ms, began_ms, list(zip(steps_ms, added, strict=True)), late_ms))
    return found


def _observe(collector, number, start_ms, began_ms, steps, late_ms):
    """Play one capture; return when it began and ended, in milliseconds."""
    process = Program(100 + number, 1, "trainer", T0 + began_ms * MS, {})
    collector.observe(capture(unix_ns=T0 + start_ms * MS))
    at_ms, made = start_ms, 0
    for step_ms, added in steps:
        at_ms, made = at_ms + step_ms, made + added
        counted = [calls(process, "cudaLaunchKernel", [1_009] * made)] if made else []
        collector.observe(snapshot(at_ms / 1_000, *counted))
    collector.observe(CountersActivity(T0 + (at_ms + late_ms) * MS, {}))
    return start_ms, at_ms + late_ms


@given(
    captures=_captures(),
    named=st.tuples(st.none() | st.integers(0, 700_000), st.none() | st.integers(0, 700_000)),
)
def test_buckets_add_up_to_the_counts_and_lie_where_captures_were(captures, named):
    """
    However captures and the window lie: what is counted is shown, and only in a capture.

    What is left of the window is named, each time of it once.
    """
    first_ms, last_ms = named
    if first_ms is not None and last_ms is not None:
        first_ms, last_ms = min(named), max(named) + 1
    window = Window(*(None if ms is None else T0 + ms * MS for ms in (first_ms, last_ms)))
    collector = Collector(FakeExplainer(), window=window)
    times = [_observe(collector, *one) for one in captures]

    document = collector.finish("test")

    counted = {row.process: row.calls for row in document.apis}
    rows = document.buckets_of(None)
    assert sum(row.calls for row in rows) == pytest.approx(sum(counted.values()), abs=1e-3)
    for process, made in counted.items():
        shown = document.buckets_of(process)
        assert sum(row.calls for row in shown) == pytest.approx(made, abs=1e-3)
    covered = [(T0 + start * MS, T0 + end * MS) for start, end in times]
    for row in document.time_buckets:
        inside = sorted(
            (max(start, row.start_unix_ns), min(end, row.end_unix_ns))
            for start, end in covered
            if start <= row.end_unix_ns and row.start_unix_ns <= end
        )
        # Captures that overlap cover a row together.
        reach = row.start_unix_ns
        for start, end in inside:
            assert start <= reach
            reach = max(reach, end)
        assert inside
        assert reach == row.end_unix_ns
    named_ns = sum(row.end_unix_ns - row.start_unix_ns for row in [*rows, *document.uncovered])
    assert named_ns == document.length_ns
    assert all(
        one.end_unix_ns <= other.start_unix_ns for one, other in pairwise(document.over_time(None))
    )
    assert len(rows) <= MAX_ROWS + len(captures)


def test_between_two_captures_nothing_is_shown():
    """Two runs of 6 s with 45 s between them: no call is between, and that has a name."""
    collector = Collector(FakeExplainer())
    for number, start_s in ((1, 0), (2, 51)):
        _observe(collector, number, start_s * 1_000, start_s * 1_000 - 5_000, [(1_000, 100)] * 6, 0)

    document = collector.finish("test")

    assert document.uncovered == (Window(T0 + 6 * SECOND, T0 + 51 * SECOND),)
    rows = document.buckets_of(None)
    assert [row.start_unix_ns - T0 for row in rows] == [
        *(second * SECOND for second in range(6)),
        *(second * SECOND for second in range(51, 57)),
    ]
    assert {round(row.calls, 3) for row in rows} == {100}
    # A process has rows where it was.
    second = next(one.process for one in document.processes if one.process.pid == 102)
    assert document.buckets_of(second)[0].start_unix_ns == T0 + 51 * SECOND


def test_a_capture_that_begins_after_the_window_adds_nothing_to_it():
    """The reader plays a little more than the window; its first reading is not of the window."""
    collector = Collector(FakeExplainer(), window=Window(T0, T0 + 10 * SECOND))
    _observe(collector, 1, 0, 0, [(1_000, 7)] * 5, 0)
    _observe(collector, 2, 12_000, 12_000, [(1_000, 1_000)], 0)

    document = collector.finish("test")

    assert [row.calls for row in document.apis] == [35]
    assert sum(row.calls for row in document.buckets_of(None)) == pytest.approx(35)
    assert document.uncovered == (Window(T0 + 5 * SECOND, T0 + 10 * SECOND),)


def test_an_older_capture_that_was_written_later_is_cut_at_the_window_as_well():
    """What it counted before the window is no part of it, whichever capture comes first."""
    collector = Collector(FakeExplainer(), window=Window(T0 + 2 * SECOND, T0 + 40 * SECOND))
    _observe(collector, 1, 30_000, 30_000, [(1_000, 5)] * 3, 0)
    _observe(collector, 2, 0, 0, [(1_000, 100)] * 4, 0)

    document = collector.finish("test")

    assert {row.process.pid: row.calls for row in document.apis} == {101: 15, 102: 200}
    assert [round(row.calls) for row in document.buckets_of(None)] == [100, 100, 5, 5, 5]


def test_a_run_queue_is_spread_from_the_begin_of_its_capture():
    """The first reading of a thread that was there before the capture reaches no further back."""
    collector = Collector(FakeExplainer())
    old = Program(42, 1, "trainer", T0 - 3_600 * SECOND, {})
    collector.observe(capture(unix_ns=T0))
    waited = series(old, wire.METRIC_RUN_QUEUE, aggregate([40 * MS]))
    collector.observe(snapshot(2, waited, calls(old, "cudaFree", [1_000])))

    document = collector.finish("test")

    shown = [(row.start_unix_ns, row.calls, row.run_queue_ns) for row in document.buckets_of(old)]
    assert shown == [(T0, 1, 40 * MS)]
