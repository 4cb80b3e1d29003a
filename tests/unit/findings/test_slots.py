"""Time slots: nothing is lost when they grow, and there are never too many rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.findings.slots import MAX_ROWS, MAX_SLOTS, Slots, Totals
from otel_gpu.ledger.ledger import Ledger
from tests.activities import SECOND, T0, calls, image, snapshot

TRAINER, OTHER = image(42, 1), image(77, 1)
ONE, TWO = (42, 1), (77, 1)


def rows_of(slots, end_s, *processes):
    known = {(process.pid, process.image_ktime_ns): process for process in processes}
    return list(slots.rows(known, round(end_s * SECOND), SECOND))


def test_what_lies_in_two_slots_is_shared_out():
    """A reading that covers 0.5 s to 2 s adds a third of itself to the first second."""
    slots = Slots()

    slots.spread(ONE, SECOND // 2, 2 * SECOND, Totals(calls=30, call_ns=300))

    rows = [row for row in rows_of(slots, 2, TRAINER) if row.process is None]
    assert [(row.calls, row.call_ns) for row in rows] == [
        (pytest.approx(10), pytest.approx(100)),
        (pytest.approx(20), pytest.approx(200)),
    ]


def test_each_process_has_rows_of_its_own():
    """Rows of all together come first; a process that is not told of is in none."""
    slots = Slots()
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
    slots = Slots(10 * SECOND)

    slots.spread(ONE, 4 * SECOND, 11 * SECOND, Totals(lost_ns=7))

    (row, _) = rows_of(slots, 11, TRAINER)
    assert (row.start_unix_ns, row.lost_ns) == (10 * SECOND, pytest.approx(7))


def test_a_moment_at_the_end_is_in_the_last_slot():
    """A process that is read twice at the same moment, the last one, counts both times."""
    slots = Slots()

    slots.spread(ONE, SECOND, 2 * SECOND, Totals(calls=3))
    slots.spread(ONE, 2 * SECOND, 2 * SECOND, Totals(calls=4))

    rows = [row for row in rows_of(slots, 2, TRAINER) if row.process is None]
    assert [row.calls for row in rows] == [0, pytest.approx(7)]


def test_rows_are_no_finer_than_the_counters_are_read():
    """A short capture that was read often is shown in detail; else rows would repeat each other."""
    slots = Slots()
    slots.spread(ONE, 0, SECOND, Totals(calls=10))

    counts = {
        least_ns: len(list(slots.rows({}, SECOND, least_ns)))
        for least_ns in (0, SECOND // 4, SECOND)
    }

    assert counts == {0: 10, SECOND // 4: 5, SECOND: 1}


def test_an_end_far_away_is_no_work():
    """A recording with a clock that stepped by centuries is reported at once."""
    slots = Slots()
    slots.spread(ONE, 0, SECOND, Totals(calls=10))

    rows = list(slots.rows({ONE: TRAINER}, 2**63, SECOND))

    assert len(rows) == 2 * MAX_ROWS
    assert rows[0].calls == pytest.approx(10)


@given(
    ends=st.lists(st.integers(min_value=1, max_value=2**63), min_size=1, max_size=20),
)
def test_nothing_is_lost_however_long_a_capture_is(ends):
    """Slots grow when there are too many; their sums stay, and rows and memory are bounded."""
    slots = Slots()
    for end in ends:
        slots.spread(ONE, end - 1, end, Totals(calls=1))

    rows = [row for row in rows_of(slots, max(ends) / SECOND + 1, TRAINER) if row.process is None]

    assert len(rows) <= MAX_ROWS
    assert sum(row.calls for row in rows) == pytest.approx(len(ends))
    assert max(ends) // slots.width_ns < MAX_SLOTS


def test_a_counter_that_runs_backwards_takes_nothing_away():
    """As in a damaged recording: no slot holds fewer calls than none."""
    slots = Slots(T0)
    ledger = Ledger(follow=slots.follow)
    trainer = image(42, 1)
    ledger.observe(snapshot(1, calls(trainer, "cudaFree", [1_000] * 5)))
    ledger.observe(snapshot(2, calls(trainer, "cudaFree", [500] * 2)))

    rows = slots.rows({(42, 1): trainer}, T0 + 2 * SECOND, SECOND)

    assert [round(row.calls) for row in rows if row.process is None] == [5, 0]
