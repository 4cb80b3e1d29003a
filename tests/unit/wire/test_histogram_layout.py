import json
from bisect import bisect_left

import pytest
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.exponent_mapping import (
    ExponentMapping,
)
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import (
    LogarithmMapping,
)

from otel_gpu import wire
from otel_gpu.errors import ConfigError
from otel_gpu.options import Config, HistogramsConfig
from otel_gpu.wire import bodies
from otel_gpu.wire.histogram_layout import duration_bounds_ns, layout_description, size_bounds_bytes

EXPONENTIAL = Config()


def explicit(**bounds):
    return Config(histograms=HistogramsConfig(layout="explicit", **bounds))


def test_duration_buckets_are_those_of_the_sdk():
    """
    On both sides of every bound, a duration falls into the bucket that the SDK's own
    mapping of scale 2 gives for the same time in seconds.
    """
    bounds = duration_bounds_ns(EXPONENTIAL)
    mapping = LogarithmMapping(2)
    durations = {value for bound in bounds for value in (bound, bound + 1)}

    ours = {value: bisect_left(bounds, value) - 120 for value in durations}

    assert len(bounds) == wire.MAX_BOUNDS == 191
    assert ours == {value: mapping.map_to_index(value / 1e9) for value in durations}


def test_size_buckets_are_those_of_the_sdk():
    """The same for sizes, as far as the SDK's floating point tells neighbours apart."""
    bounds = size_bounds_bytes(EXPONENTIAL)
    mapping = ExponentMapping(0)
    sizes = {value for bound in bounds if bound < 2**53 for value in (bound, bound + 1)}

    ours = {value: bisect_left(bounds, value) - 1 for value in sizes}

    assert len(bounds) == 64
    assert ours == {value: mapping.map_to_index(value) for value in sizes}


def test_known_duration_bounds():
    """Bounds are rounded down to whole nanoseconds, and whole where they are whole."""
    bounds = duration_bounds_ns(EXPONENTIAL)

    assert bounds[:6] == (1, 1, 1, 1, 2, 2)
    assert bounds[119] == 1_000_000_000
    assert bounds[120] == 1_189_207_115
    assert bounds[115] == 500_000_000
    assert bounds[-1] == 220_435_949_880_269


def test_user_bounds_are_taken_as_written():
    """0.0003 s is 300000 ns, although no binary number is 0.0003."""
    config = explicit(duration_bounds_s=(0.0003, 0.001, 1.0), size_bounds_bytes=(64.0, 4096.0))

    assert duration_bounds_ns(config) == (300_000, 1_000_000, 1_000_000_000)
    assert size_bounds_bytes(config) == (64, 4096)


def test_default_explicit_bounds_suit_cuda_calls():
    """Without bounds of the user's, the explicit layout resolves microseconds."""
    bounds = duration_bounds_ns(explicit())

    assert bounds[:3] == (1_000, 2_000, 4_000)
    assert bounds[-1] == 67_108_864_000
    assert size_bounds_bytes(explicit())[:2] == (64, 256)


def test_bounds_below_a_nanosecond_apart_are_refused():
    """The kernel counts whole nanoseconds, so closer bounds would leave a bucket empty."""
    with pytest.raises(ConfigError, match="whole nanoseconds"):
        duration_bounds_ns(explicit(duration_bounds_s=(1e-9, 1.5e-9)))


@pytest.mark.parametrize(
    "config",
    [EXPONENTIAL, explicit(), explicit(duration_bounds_s=(0.5,), size_bounds_bytes=(1.0,))],
)
def test_the_description_is_one_that_recordings_accept(config):
    """What the capture writes about its layout is what the decoder lets through."""
    layout = layout_description(config)
    body = json.dumps({"host": {}, "layout": layout}).encode()

    assert bodies.CAPTURE.parse(body)["layout"] == layout
