"""What was added between two readings, and what is kept when there is too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.state import time_accounting
from otel_gpu.state.capture_state import CaptureState
from otel_gpu.state.window import Window
from tests.activities import (
    SECOND,
    T0,
    aggregate,
    calls,
    capture,
    ended,
    image,
    series,
    snapshot,
    thread_time,
    times,
)

TRAINER, OTHER = image(42, 1), image(77, 1, name="server")
KEY, OTHER_KEY = (42, 1), (77, 1)
US = 1_000
LOCK = (wire.STATE_BLOCKED, wire.CONTEXT_GAP)
RUN_QUEUE = (wire.STATE_RUN_QUEUE, wire.CONTEXT_GAP)


def ledger_of(*activities, **options):
    ledger = CaptureState(**options)
    for activity in activities:
        ledger.observe(activity)
    return ledger


def frees(at_s, count, process=TRAINER, usual_us=1):
    return snapshot(at_s, calls(process, "cudaFree", [usual_us * US] * count))


def locked(at_s, time_ns, process=TRAINER):
    return times(at_s, thread_time(process, *LOCK, time_ns, reason="lock"))


def counted(figures):
    return {
        key: sum(one.aggregate.counted for one in found.calls) for key, found in figures.items()
    }


def test_a_reading_replaces_the_one_before():
    """What the kernel counts is cumulative."""
    ledger = ledger_of(frees(1, 3), frees(2, 10), locked(1, 5), locked(2, 7))

    figures = ledger.figures()[KEY]

    assert counted({KEY: figures}) == {KEY: 10}
    assert [time.time_ns for time in figures.times] == [7]


def test_time_whose_reason_becomes_known_is_there_once():
    """A reading says all about its processes: what it leaves out has become part of another entry."""
    unknown = thread_time(TRAINER, *LOCK, 5, reason="unknown")
    ledger = ledger_of(times(1, unknown), locked(1, 3, OTHER), locked(2, 7))

    assert [time.kind for time in ledger.figures()[KEY].times] == [locked(2, 7).times[0].kind]
    assert [time.time_ns for time in ledger.figures()[KEY].times] == [7]
    assert ledger.accounts.times == 2


@given(
    counts=st.lists(st.integers(min_value=0, max_value=9), min_size=8, max_size=8),
    start=st.integers(min_value=0, max_value=8),
    length=st.integers(min_value=1, max_value=8),
)
def test_a_window_holds_what_was_added_from_the_reading_before_it(counts, start, length):
    """The last reading that counts is the first one at its end or after it."""
    totals = [sum(counts[: n + 1]) + 1 for n in range(8)]
    window = Window(T0 + start * SECOND, T0 + (start + length) * SECOND)

    ledger = ledger_of(*(frees(n + 1, total) for n, total in enumerate(totals)), window=window)

    # Readings are made at 1 to 8 seconds; what is at the start was read before the window.
    first, last = start, min(start + length, 8)
    added = ([0, *totals])[last] - ([0, *totals])[first]
    assert counted(ledger.figures()).get(KEY, 0) == added


def test_a_window_that_was_not_reached_holds_nothing():
    """What was counted before it is not in it."""
    ledger = ledger_of(frees(1, 3), locked(1, 5), window=Window(T0 + 5 * SECOND))

    assert ledger.figures() == {}
    assert ledger.callers() == {KEY}


def test_a_reading_in_several_parts_ends_a_window_as_a_whole():
    """Thousands of series come in several activities of one moment."""
    window = Window(None, T0 + 2 * SECOND)

    ledger = ledger_of(frees(1, 3), frees(2, 10), frees(2, 4, OTHER), frees(3, 99), window=window)

    assert counted(ledger.figures()) == {KEY: 10, OTHER_KEY: 4}


def test_figures_since_a_mark_are_what_came_after_it():
    """Of a process that did nothing since then there are none of its calls."""
    ledger = ledger_of(frees(1, 3), frees(1, 5, OTHER), locked(1, 5))
    mark = ledger.mark()
    for activity in (frees(2, 10), locked(2, 9)):
        ledger.observe(activity)

    figures = ledger.figures(mark)

    assert counted(figures) == {KEY: 7}
    assert [time.time_ns for time in figures[KEY].times] == [4]
    assert counted(ledger.figures()) == {KEY: 10, OTHER_KEY: 5}


def test_a_counter_that_runs_backwards_took_nothing_away():
    """As in a damaged recording, or where time became another reason's."""
    ledger = ledger_of(frees(1, 10), locked(1, 9))
    mark = ledger.mark()
    for activity in (frees(2, 3), locked(2, 4)):
        ledger.observe(activity)

    figures = ledger.figures(mark)[KEY]

    (free,) = figures.series
    assert (free.aggregate.counted, free.aggregate.sum) == (0, 0)
    assert [time.time_ns for time in figures.times] == [0]


@pytest.mark.parametrize(("usual_us", "largest_us"), [(900, 900), (2, 2)])
def test_the_largest_of_a_window_is_exact_or_read_from_the_buckets(usual_us, largest_us):
    """The kernel's largest is that of the whole life of a series."""
    before = calls(TRAINER, "cudaFree", [500 * US])
    after = calls(TRAINER, "cudaFree", [500 * US, *[usual_us * US] * 3])
    ledger = ledger_of(capture(), snapshot(1, before))
    mark = ledger.mark()
    ledger.observe(snapshot(2, after))

    (free,) = ledger.figures(mark)[KEY].series

    assert free.aggregate.max == pytest.approx(largest_us * US, rel=0.09)


def test_growth_is_what_each_reading_adds():
    """With the moments of both readings."""
    found = []
    ledger_of(frees(1, 3), frees(2, 10), frees(3, 10), follow=found.append)

    assert [
        (one.series.aggregate.counted, one.before and one.before.counted, one.since_unix_ns)
        for one in found
    ] == [(3, None, None), (10, 3, T0 + SECOND)]


def test_growth_of_a_reading_in_several_parts_is_since_the_reading_before():
    """Parts of one moment are one reading, and none of them lies between two moments."""
    found = []
    ledger = ledger_of(
        *(frees(1, 3), frees(1, 5, OTHER)),
        *(frees(2, 10), frees(2, 7, OTHER)),
        follow=found.append,
    )

    assert [one.since_unix_ns for one in found] == [None, None, T0 + SECOND, T0 + SECOND]
    assert ledger.readings == 2


def test_other_metrics_are_not_kept():
    """A storm of processes that make no call costs nothing."""
    gap = series(TRAINER, wire.METRIC_LAUNCH_GAP, aggregate([US]))

    assert ledger_of(snapshot(1, gap)).accounts.size == 0
    assert ledger_of(snapshot(1, gap), metrics={wire.METRIC_LAUNCH_GAP}).accounts.size == 1


def test_beyond_the_bound_those_that_ended_go_first():
    """Then those that were silent for longest; what went is counted."""
    third = image(99, 1)
    ledger = ledger_of(
        frees(1, 1), frees(2, 2, OTHER), ended(OTHER, 2.5), frees(3, 3, third), max_series=2
    )
    assert counted(ledger.figures()) == {KEY: 1, (99, 1): 3}

    ledger.observe(frees(4, 4, OTHER))

    assert counted(ledger.figures()) == {(99, 1): 3, OTHER_KEY: 4}
    assert (ledger.accounts.size, ledger.forgotten, ledger.left_out) == (2, 1, 1)


def test_a_process_alone_cannot_have_more_than_the_bound():
    """What found no room is counted at each reading."""
    both = [calls(TRAINER, api, [US]) for api in ("cudaFree", "cudaMalloc")]

    ledger = ledger_of(snapshot(1, *both), snapshot(2, *both), max_series=1)

    assert (ledger.accounts.size, ledger.left_out) == (1, 2)


def test_times_beyond_the_bound_are_counted(monkeypatch):
    """A recording of a stranger cannot fill the memory."""
    monkeypatch.setattr(time_accounting, "MAX_TIMES", 1)

    ledger = ledger_of(locked(1, 5), locked(1, 5, OTHER))

    assert ledger.left_out == 1
    assert list(ledger.figures()) == [KEY]


def test_what_found_no_room_is_taken_in_once_there_is_some(monkeypatch):
    """An entry that is as it was is read again for that."""
    monkeypatch.setattr(time_accounting, "MAX_TIMES", 1)
    first, second = locked(1, 5).times[0], thread_time(TRAINER, *RUN_QUEUE, 7)
    ledger = ledger_of(times(1, first, second))
    before = [time.time_ns for time in ledger.figures()[KEY].times]
    ledger.observe(times(2, second))

    assert before == [first.time_ns]
    assert [time.time_ns for time in ledger.figures()[KEY].times] == [7]
    assert ledger.left_out == 1


def test_of_those_that_ended_there_is_less_room():
    """Those that run stay."""
    ledger = ledger_of(
        *(frees(1, 1, image(pid)) for pid in range(10)),
        *(ended(image(pid), 2) for pid in range(6)),
        max_ended=2,
    )

    assert (ledger.forgotten, ledger.left_out, ledger.accounts.size) == (4, 0, 6)
    assert (4, 5 * SECOND) in ledger.accounts.ended
    assert (3, 5 * SECOND) not in ledger.accounts.ended


def test_ends_of_processes_that_counted_nothing_are_not_remembered():
    """A build host has a million of them."""
    ledger = ledger_of(frees(1, 1), ended(TRAINER, 1))
    for pid in range(100, 5_000):
        ledger.observe(ended(image(pid), 2))

    ledger.observe(frees(3, 1, image(4_999)))

    assert len(ledger._early) <= 1_024
    assert KEY in ledger.accounts.ended
    assert (4_999, 5 * SECOND) in ledger.accounts.ended


def test_what_is_summed_up_keeps_its_figures_under_another_name():
    """Calls, failures and times of two processes in one."""
    whole = image(0, 5, name="crowd")
    ledger = ledger_of(frees(1, 3), frees(1, 4, OTHER), locked(1, 5), locked(1, 6, OTHER))

    seen = ledger.sum_up({KEY: whole, OTHER_KEY: whole})

    assert seen == {KEY, OTHER_KEY}
    figures = ledger.figures()
    assert counted(figures) == {(0, 5): 7}
    assert [(time.process, time.time_ns) for time in figures[0, 5].times] == [(whole, 11)]
    assert ledger.accounts.size == 1


def test_what_is_let_go_is_in_no_sum():
    """As forks that only went on to run another program."""
    ledger = ledger_of(frees(1, 3))

    assert ledger.sum_up({KEY: None}) == set()
    assert ledger.figures() == {}
