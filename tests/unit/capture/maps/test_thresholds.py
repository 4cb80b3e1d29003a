"""From which duration a call counts as slow."""

from otel_gpu import wire
from otel_gpu.capture.maps.thresholds import find_thresholds

BOUNDS_NS = tuple(1_000 * (1 << k) for k in range(20))
FLOOR_NS = 5_000


def series(buckets, *, api=1, status=0, device=0, nested=0, metric=wire.METRIC_CALL_DURATION):
    counts = [0] * wire.MAX_BUCKETS
    for bucket, count in buckets.items():
        counts[bucket] = count
    key = wire.AGGREGATE_KEY.pack(77, 42, status, device, metric, api, 255, nested)
    return key, wire.AGGREGATE.pack(0, 0, 0, 0, *counts)


def found(*given):
    return find_thresholds(given, BOUNDS_NS, FLOOR_NS)


def test_a_long_tail_does_not_hide_itself():
    """A tenth of the calls takes up to 1.024 ms, the others up to 4 us: 12 us is slow."""
    assert found(series({2: 900, 10: 100})) == {(77, 42, 1, 255): 12_000}


def test_a_narrow_series_needs_three_times_its_median():
    """Where all calls take up to 8 us, 24 us is slow."""
    assert found(series({3: 1000})) == {(77, 42, 1, 255): 24_000}


def test_no_threshold_is_below_the_floor():
    """Calls of 1 us are not slow at 3 us when the floor is 5."""
    assert found(series({0: 1000})) == {(77, 42, 1, 255): FLOOR_NS}


def test_few_calls_say_nothing():
    """99 calls leave the floor in force; 100 do not."""
    assert found(series({3: 99})) == {}
    assert len(found(series({3: 100}))) == 1


def test_devices_and_nesting_share_a_threshold_and_failures_do_not_count():
    """The kernel side looks a threshold up by process, API and kind alone."""
    together = found(
        series({3: 60}, device=0),
        series({3: 60}, device=1, nested=1),
        series({15: 1000}, status=35),
        series({15: 1000}, metric=wire.METRIC_OFF_CPU),
    )

    assert together == {(77, 42, 1, 255): 24_000}


def test_a_series_beyond_the_last_bound_stays_at_that_bound():
    """There is no upper bound to the last bucket."""
    assert list(found(series({20: 1000})).values()) == [3 * BOUNDS_NS[-1]]


def test_gaps_have_a_threshold_of_their_own():
    """Gaps are kept under no API: calls and other metrics do not move their threshold."""
    together = found(
        series({3: 100}, api=0, metric=wire.METRIC_LAUNCH_GAP),
        series({0: 1000}, api=1),
        series({15: 1000}, api=wire.SWITCH_VOLUNTARY, metric=wire.METRIC_OFF_CPU),
        series({15: 1000}, api=0, metric=wire.METRIC_RUN_QUEUE),
        series({15: 1000}, api=0, metric=wire.METRIC_COPY_SIZE),
    )

    assert together == {(77, 42, 0, 255): 24_000, (77, 42, 1, 255): FLOOR_NS}


def test_gaps_on_any_device_are_one_series():
    """The kernel side looks the threshold of gaps up by process alone."""
    gaps = [
        series({3: 60}, api=0, device=device, metric=wire.METRIC_LAUNCH_GAP) for device in (-1, 0)
    ]

    assert found(*gaps) == {(77, 42, 0, 255): 24_000}
