"""
Settings of a preloaded program: which of the counted calls the preload library reports to probes.

The agent writes them into the program's shared memory. Fast calls never become spans, so the library
reports only the others. The kernel side selects among these, as it does for calls with probes.
"""

import os
import random
from collections.abc import Mapping
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.bpf.settings import nanoseconds, process_flags
from otel_gpu.config import Config
from otel_gpu.wire.probe_table import APIS

_GENERATION_BYTES: Final = 4
_FLAGS: Final = {wire.PROCESS_FULL: wire.PRELOAD_FULL, wire.PROCESS_NO_SPANS: wire.PRELOAD_NO_CALLS}


class PreloadSettings:
    """The settings of one capture, from its configuration."""

    def __init__(self, config: Config) -> None:
        spans = config.spans
        self._flags = _FLAGS.get(process_flags(config), 0)
        self._flags |= wire.PRELOAD_STEPS if config.steps.find else 0
        # In the preload library, 0 means none.
        self._slow_floor_ns = max(1, nanoseconds(spans.slow_floor_us, 1_000))
        self._stall_floor_ns = max(1, nanoseconds(spans.stall_floor_ms, 1_000_000))
        self._call_stall_floor_ns = max(1, nanoseconds(spans.call_stall_floor_ms, 1_000_000))
        self._sample_one_in = spans.sample_one_in
        # Differs from the previous agent's, so threads announce themselves again.
        self._generation = random.SystemRandom().getrandbits(8 * _GENERATION_BYTES) | 1

    def write(
        self, fd: int, thresholds: Mapping[tuple[int, int], int], *, collectives: bool
    ) -> None:
        """
        Write which calls to report, then the generation, which starts the reports.

        Args:
            fd: The shared memory.
            thresholds: Durations in ns from which calls are slow, by API and kind of copy; gaps have
                API 0. Other calls use the configured floor.
            collectives: Report all calls that show that work on a stream is complete.

        Raises:
            OSError: The memory cannot be written.
        """
        slow_ns: dict[int, int] = {}
        for (api, _), threshold_ns in thresholds.items():
            slow_ns[api] = min(threshold_ns, slow_ns.get(api, threshold_ns))
        control = wire.PRELOAD_CONTROL.build(
            flags=self._flags | (wire.PRELOAD_STREAM_WORK if collectives else 0),
            gap_floor_ns=max(self._call_stall_floor_ns, slow_ns.get(0, self._stall_floor_ns)),
            call_floor_ns=self._call_stall_floor_ns,
            sample_one_in=self._sample_one_in,
            version=wire.PRELOAD_VERSION,
            **{
                f"slow_ns_{api.number}": slow_ns.get(api.number, self._slow_floor_ns)
                for api in APIS
            },
        )
        at = wire.PRELOAD_CONTROL_OFFSET
        os.pwrite(fd, control[_GENERATION_BYTES:], at + _GENERATION_BYTES)
        os.pwrite(fd, self._generation.to_bytes(_GENERATION_BYTES, "little"), at)

    def withdraw(self, fd: int) -> None:
        """
        End the reports, unless another agent has requested them.

        Raises:
            OSError: The memory cannot be written.
        """
        generation = os.pread(fd, _GENERATION_BYTES, wire.PRELOAD_CONTROL_OFFSET)
        if int.from_bytes(generation, "little") == self._generation:
            os.pwrite(fd, bytes(_GENERATION_BYTES), wire.PRELOAD_CONTROL_OFFSET)
