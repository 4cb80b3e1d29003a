"""Top stacks of a window: what touches it is added up, and what was counted in it is told."""

import pytest

from otel_gpu.report.document import Window
from otel_gpu.report.stacks.top_stacks import CALLED, WAITED, StackCollector
from tests.activities import SECOND, T0, call, calls, capture, snapshot, stall
from tests.unit.report.stack_samples import LAUNCH, MALLOC, MS, SERVER, TRAINER

WHOLE = Window()
MIDDLE = Window(T0 + 3 * SECOND, T0 + 5 * SECOND)


def a_day():
    """A call a second for nine seconds, a wait in each, and a reading at the end of each."""
    yield capture()
    for second in range(9):
        stack = MALLOC if second % 2 else LAUNCH
        yield call(TRAINER, "cudaMalloc", second * SECOND, 100 * MS, size_bytes=7, stack=stack)
        start = second * SECOND + 200 * MS
        yield stall(TRAINER, start, start + 50 * MS, start + 400 * MS, reason="io", stack=stack)
        made = second + 1
        yield snapshot(
            second + 0.9,
            calls(TRAINER, "cudaMalloc", [100 * MS] * made),
            calls(TRAINER, "cuMemAlloc", [90 * MS] * made, nested=1),
            calls(SERVER, "cudaMalloc", [MS] * (3 * made)),
        )


def report_of(window, **kwargs):
    collector = StackCollector(window, **({"kind": CALLED} | kwargs))
    for activity in a_day():
        collector.observe(activity)
    return collector.finish("train.otelgpu")


@pytest.mark.parametrize(
    ("window", "seen", "counted"),
    [
        (WHOLE, 9, 36),
        # Readings are at 0.9 s: from the one at 2.9 s to the one at 5.9 s.
        (MIDDLE, 3, 12),
        (Window(T0 + 3 * SECOND), 6, 24),
        (Window(None, T0 + 3 * SECOND), 4, 16),
        (Window(T0 + 60 * SECOND), 0, 0),
        # A call that was being made then is in it.
        (Window(T0 + 3 * SECOND + 50 * MS, T0 + 3 * SECOND + 60 * MS), 1, 4),
    ],
)
def test_what_touches_a_window_is_added_up(window, seen, counted):
    """Counters are read now and then, so what they counted reaches a little beyond it."""
    report = report_of(window)

    assert (report.seen, report.stand_for, report.counted) == (seen, seen, counted)
    assert sum(row.time_ns for row in report.rows) == seen * 100 * MS


@pytest.mark.parametrize(
    ("chosen", "counted"),
    [
        ({"pids": [TRAINER.pid]}, 3),
        ({"pids": [SERVER.pid]}, 9),
        ({"names": ["cuMemAlloc"]}, 3),
        ({"names": ["cudaMalloc", "cuMemAlloc"], "pids": [TRAINER.pid]}, 6),
        ({"names": ["cudaFree"]}, 0),
    ],
)
def test_what_was_counted_is_of_what_was_chosen(chosen, counted):
    """Calls inside others only where they are named, as in the list."""
    assert report_of(MIDDLE, **chosen).counted == counted


def test_waits_are_counted_by_nobody():
    """And a wait ends when the thread could run again, not when it did."""
    inside = Window(T0 + 3 * SECOND + 260 * MS, T0 + 3 * SECOND + 900 * MS)

    assert report_of(MIDDLE, kind=WAITED).seen == 2
    assert report_of(MIDDLE, kind=WAITED).counted is None
    assert report_of(inside, kind=WAITED).seen == 0


def test_without_a_reading_nothing_is_known_to_be_counted():
    """Which is not the same as none."""
    collector = StackCollector(WHOLE, kind=CALLED)
    collector.observe(capture())
    collector.observe(call(TRAINER, "cudaMalloc", SECOND, MS, stack=MALLOC))

    assert collector.finish("x").counted is None


def test_a_report_says_which_window_it_is_of():
    """Where it is open, it reaches as far as the capture."""
    whole, middle = report_of(WHOLE), report_of(MIDDLE)

    assert (whole.start_unix_ns, whole.end_unix_ns) == (T0, T0 + round(8.9 * SECOND))
    assert (middle.start_unix_ns, middle.end_unix_ns) == tuple(MIDDLE)
