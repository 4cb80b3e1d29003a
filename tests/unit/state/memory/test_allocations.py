"""Allocations in windows: how many calls, how long, how much; bounded."""

from otel_gpu.state.capture_state import SeriesDelta
from otel_gpu.state.memory import allocations as ledger
from otel_gpu.state.memory.allocations import MAX_WINDOWS, WINDOW_NS, Allocations
from tests.activities import MS, SECOND, T0, calls, image

MIB = 1 << 20
TRAINER = image()
NAME = ((42, TRAINER.program_ktime_ns), -1, "runtime")


def grown(at_s, durations_ns, before=(), api="cudaMalloc", **key):
    now = calls(TRAINER, api, [*before, *durations_ns], **key)
    then = calls(TRAINER, api, list(before)).aggregate if before else None
    return SeriesDelta(now, then, None, T0 + at_s * SECOND)


def followed(*growths):
    allocations = Allocations()
    allocations.origin_unix_ns = T0
    for growth in growths:
        allocations.follow(growth, ())
    return allocations


def test_a_long_capture_has_longer_windows():
    """There are never more than so many, and nothing is lost by that."""
    allocations = followed(*(grown(30 * at, [MS]) for at in range(1, 1_001)))
    windows = allocations.windows_of(NAME, T0 + 30_000 * SECOND)

    assert len(windows) <= MAX_WINDOWS
    assert allocations.width_ns == 16 * WINDOW_NS
    assert sum(one.calls for one in windows) == 1_000
    assert windows[-1].end_unix_ns == T0 + 30_000 * SECOND


def test_calls_inside_others_and_failed_ones_do_not_count():
    """A driver call of a runtime call is that one; what failed allocated nothing."""
    allocations = followed(
        grown(1, [MS], nested=1),
        grown(1, [MS], status=2),
        grown(1, [MS], api="cudaStreamSynchronize"),
    )

    assert allocations.windows_of(NAME, T0 + SECOND) == ()


def test_what_a_reading_added_is_of_its_window():
    """The mean is of the calls since the reading before."""
    (one,) = followed(grown(5, [3 * MS, 5 * MS], before=[MS] * 7)).windows_of(NAME, T0 + SECOND)

    assert (one.calls, one.mean_ns, one.max_ns) == (2, 4 * MS, 5 * MS)


def test_series_are_bounded(monkeypatch):
    """What finds no room is left out."""
    monkeypatch.setattr(ledger, "MAX_SERIES", 0)

    assert followed(grown(1, [MS])).windows_of(NAME, T0 + SECOND) == ()
