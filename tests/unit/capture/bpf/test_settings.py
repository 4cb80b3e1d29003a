"""The settings that the BPF programs are loaded with."""

from otel_gpu import wire
from otel_gpu.capture.bpf.settings import pack_settings, process_flags
from otel_gpu.config import load
from otel_gpu.wire.histogram_layout import duration_bounds_ns
from otel_gpu.wire.probe_table import APIS


def unpack(overrides=None, *, watch_all=False):
    config = load(None, {}, overrides or {})
    packed = pack_settings(config, watch_all=watch_all)
    return wire.SETTINGS.named(packed)


def test_defaults_are_in_nanoseconds():
    """100 us, 10 ms and 1 ms of the defaults, and a thousand spans a second."""
    settings = unpack()

    assert settings["slow_floor_ns"] == 100_000
    assert settings["stall_floor_ns"] == 10_000_000
    assert settings["call_stall_floor_ns"] == 1_000_000
    assert settings["span_interval_ns"] == 1_000_000
    assert settings["sample_one_in"] == 1000
    assert settings["watch_all"] == 0


def test_bounds_that_are_not_used_are_out_of_reach():
    """The kernel side looks at them, and no value is above one."""
    config = load(None, {}, {"histograms.layout": "explicit"})
    settings = unpack({"histograms.layout": "explicit"})

    bounds = [settings[f"duration_bounds_ns_{number}"] for number in range(wire.MAX_BOUNDS + 1)]
    used = duration_bounds_ns(config)
    assert bounds[: len(used)] == list(used)
    assert set(bounds[len(used) :]) == {(1 << 63) - 1}


def test_each_api_is_at_its_number():
    """The cookie of a probe is an index into this table."""
    table = unpack()["apis"]

    for api in APIS:
        named = wire.API_DESCRIPTOR.named(table[api.number * wire.API_DESCRIPTOR.size :])
        assert named == {field: getattr(api, field) for field in wire.API_DESCRIPTOR.fields}


def test_span_modes_are_process_flags():
    """What watch_all finds is treated as what the user names."""
    for mode, flags in (
        ("chosen", 0),
        ("full", wire.PROCESS_FULL),
        ("none", wire.PROCESS_NO_SPANS),
    ):
        assert process_flags(load(None, {}, {"spans.mode": mode})) == flags
        assert unpack({"spans.mode": mode}, watch_all=True)["default_process_flags"] == flags


def test_stacks_are_taken_unless_they_are_switched_off():
    """At calls and at waits, of these 200 a second; beyond half of the ring, at neither."""
    on, off = unpack(), unpack({"stacks.enabled": False})

    assert on["sample_moments"] == wire.SAMPLE_CALLS | wire.SAMPLE_STALLS
    assert on["stall_samples_interval_ns"] == 5_000_000
    assert on["sample_limit_bytes"] == 4_194_304
    assert off["sample_moments"] == 0


def test_the_clocks_and_the_budget_of_samples_are_in_nanoseconds():
    """Threads on a CPU: 99 ticks of each CPU a second, and 200 samples of all together."""
    settings = unpack()

    assert settings["tick_period_ns"] == 10_101_010
    assert settings["cpu_sample_interval_ns"] == 5_000_000
