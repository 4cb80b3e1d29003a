"""Growth: a line that holds more and more is named, with its slope; all else says nothing."""

import pytest

from otel_gpu.state.memory.growth import MAX_WINDOWS, Growths, Trend, fit_line, full_in_s
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, T0

MIB = 1 << 20
CACHE, STEP, WEIGHTS = (Frame("cpython", name, "/app/train.py") for name in ("cache", "step", "w"))


def growths(readings, *, frees=lambda at: 10 * at):
    found = Growths()
    for at, held in enumerate(readings):
        found.add(T0 + at * SECOND, frees(at), held.items())
    return found


def leak(count=40, per_s=4 * MIB):
    """A cache takes so much in each second; the steps take and give back."""
    return [
        {CACHE: at * per_s, STEP: (at % 3) * 100 * MIB, WEIGHTS: 512 * MIB} for at in range(count)
    ]


def test_what_grows_steadily_is_named_with_its_slope():
    """Neither what comes and goes, nor what stays, grows."""
    (trend,) = growths(leak()).trends()

    assert trend.place == CACHE
    assert trend.bytes_per_s == pytest.approx(4 * MIB)
    assert trend.r_squared == pytest.approx(1)
    # The first quarter is warm-up.
    assert (trend.readings, trend.span_s, trend.grown_bytes) == (30, 29, 29 * 4 * MIB)


def test_what_a_program_builds_once_is_no_growth():
    """While weights are loaded nothing is freed; after that they stay."""
    loading = [{WEIGHTS: at * 100 * MIB} for at in range(20)]

    assert growths(loading, frees=lambda _: 0).trends() == ()
    assert growths(loading[:5] + [loading[4]] * 35).trends() == ()


@pytest.mark.parametrize(
    "held",
    [
        # One step up, two, and there and back.
        lambda at: (at > 25) * 500 * MIB,
        lambda at: (at > 15) * 100 * MIB + (at > 35) * 300 * MIB,
        lambda at: (at if at < 30 else 60 - at) * 10 * MIB,
        lambda at: (at * 7919 % 101) * MIB,
        lambda at: at * 1_000,
    ],
)
def test_what_fits_no_line_or_is_little_is_not_said(held):
    """A jump is no trend, and neither is noise."""
    assert growths([{CACHE: held(at), WEIGHTS: 512 * MIB} for at in range(40)]).trends() == ()


def test_few_readings_say_nothing():
    """A line through three points fits too often."""
    assert growths(leak(9)).trends() == ()
    assert growths(leak(12)).trends() != ()


def test_a_long_capture_takes_bounded_memory_and_keeps_its_slope():
    """Of two windows that become one the least counts: what a step takes and gives back is no growth."""
    found = growths(leak(10_000, per_s=MIB))
    (trend,) = found.trends()

    assert trend.readings <= MAX_WINDOWS
    assert trend.bytes_per_s == pytest.approx(MIB, rel=0.05)


@pytest.mark.parametrize(
    ("free_bytes", "expected"), [(1_000, 100.0), (None, None), (0, 0.0), (10_001, None)]
)
def test_when_it_is_full_is_said_within_a_horizon(free_bytes, expected):
    """Ten times as far as was looked back, and only where the room is known."""
    trends = [Trend(CACHE, 7.0, 1.0, 8, 100.0, 700), Trend(STEP, 3.0, 1.0, 8, 50.0, 150)]

    assert full_in_s(trends, free_bytes) == expected
    assert full_in_s([], 7) is None


def test_a_line_through_points_that_are_one_says_nothing():
    """It has no slope."""
    assert fit_line([1.0, 1.0], [1, 2]) == (0.0, 0.0)
    assert fit_line([1.0, 2.0], [2, 2]) == (0.0, 0.0)
