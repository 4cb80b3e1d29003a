"""The settings of the BPF programs: ``struct settings``, packed from the configuration."""

import os
from pathlib import Path

from otel_gpu import wire
from otel_gpu.capture.bpf.kernel_shares import share_bounds
from otel_gpu.config import Config
from otel_gpu.options import BlocksMode, SpansMode
from otel_gpu.procfs import kernel_clock
from otel_gpu.wire.histogram_layout import duration_bounds_ns, size_bounds_bytes
from otel_gpu.wire.probe_table import APIS

_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO
_NEVER_NS = (1 << 63) - 1
_WAKEUP_FRACTION = 8
# Above this fill, space in the ring is kept for records without stacks.
_SAMPLE_LIMIT_FRACTION = 2
_STALL_SAMPLES_INTERVAL_NS = 5_000_000
_BLOCK_MODES = {
    BlocksMode.OFF: wire.BLOCKS_OFF,
    BlocksMode.TOTALS: wire.BLOCKS_TOTALS,
    BlocksMode.LARGE: wire.BLOCKS_LARGE,
    BlocksMode.ALL: wire.BLOCKS_ALL,
}


def process_flags(config: Config) -> int:
    """Return the default flags of a watched process, for ``spans.mode``."""
    flags = {
        SpansMode.CHOSEN: 0,
        SpansMode.FULL: wire.PROCESS_FULL,
        SpansMode.NONE: wire.PROCESS_NO_SPANS,
    }
    return flags[config.spans.mode]


def pack_settings(config: Config, *, watch_all: bool) -> bytes:
    """Return the bytes of ``struct settings`` for ``.rodata.settings``."""
    interval_ns = max(1, 1_000_000_000 // config.spans.rate_per_process)
    return wire.SETTINGS.pack(
        *_filled_up(duration_bounds_ns(config)),
        *_filled_up(size_bounds_bytes(config)),
        nanoseconds(config.spans.slow_floor_us, 1_000),
        nanoseconds(config.spans.stall_floor_ms, 1_000_000),
        nanoseconds(config.spans.call_stall_floor_ms, 1_000_000),
        interval_ns,
        1_000_000_000,
        config.capture.ring_buffer_bytes // _WAKEUP_FRACTION,
        config.capture.ring_buffer_bytes // _SAMPLE_LIMIT_FRACTION,
        _STALL_SAMPLES_INTERVAL_NS,
        tick_period_ns(config),
        1_000_000_000 // config.samples.stacks_per_second,
        config.memory.large_bytes,
        config.memory.sample_bytes,
        1_000_000_000 // config.memory.stacks_per_second,
        kernel_clock.boot_ns(),
        config.spans.sample_one_in,
        int(watch_all),
        process_flags(config),
        os.getpid(),
        _pid_namespace_inode(),
        wire.SAMPLE_CALLS | wire.SAMPLE_STALLS if config.stacks.enabled else 0,
        block_mode(config),
        int(config.steps.find),
        *share_bounds(config),
        _pack_apis(),
    )


def block_mode(config: Config) -> int:
    """Return the ``enum block_mode`` of a configuration; without stacks, at most totals."""
    mode = _BLOCK_MODES[config.memory.blocks]
    return mode if config.stacks.enabled else min(mode, wire.BLOCKS_TOTALS)


def tick_period_ns(config: Config) -> int:
    """Return the period of a CPU's sampling clock."""
    return round(1_000_000_000 / config.samples.rate_hz)


def _filled_up(bounds: tuple[int, ...]) -> tuple[int, ...]:
    return bounds + (_NEVER_NS,) * (wire.MAX_BOUNDS + 1 - len(bounds))


def nanoseconds(value: float, unit_ns: int) -> int:
    """Convert to nanoseconds, limited to 0 and 2^63 - 1, which the kernel side can compare."""
    return min(_NEVER_NS, max(0, round(value * unit_ns)))


def _pack_apis() -> bytes:
    table = bytearray(wire.MAX_APIS * wire.API_DESCRIPTOR.size)
    for api in APIS:
        values = (getattr(api, field) for field in wire.API_DESCRIPTOR.fields)
        wire.API_DESCRIPTOR.pack_into(table, api.number * wire.API_DESCRIPTOR.size, *values)
    return bytes(table)


def is_in_initial_pid_namespace() -> bool:
    """Whether the agent sees the kernel's own process ids."""
    return not _pid_namespace_inode()


def _pid_namespace_inode() -> int:
    inode = Path("/proc/self/ns/pid").stat().st_ino
    return 0 if inode == _INITIAL_PID_NAMESPACE else inode
