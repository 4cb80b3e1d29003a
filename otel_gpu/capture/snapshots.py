"""What the maps hold, read as records: series, counters, open calls."""

import struct
import time
from collections.abc import Collection, Iterator

from otel_gpu import wire
from otel_gpu.capture.kernel_symbols import KernelSymbols
from otel_gpu.capture.layout import duration_bounds_ns
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.records import (
    aggregates_records,
    counters_record,
    json_record,
    open_call_record,
    times_record,
)
from otel_gpu.capture.thresholds import find_thresholds
from otel_gpu.config import Config

# The first fields of the keys of series and times: image_ktime_ns, pid.
_SCHEDULER = "__schedule"
_IMAGE = struct.Struct("<QI")


class Snapshots:
    """
    Reads the maps of one capture.

    Args:
        programs: The loaded programs.
        config: For the limit of open calls and the floor of slow ones.
    """

    def __init__(self, programs: Programs, config: Config) -> None:
        self._programs = programs
        self._bounds_ns = duration_bounds_ns(config)
        self._floor_ns = round(config.spans.slow_floor_us * 1_000)
        self._open_limit_ns = round(config.capture.open_call_limit_s * 1_000_000_000)
        self._sent: dict[bytes, bytes] = {}
        self._thresholds: dict[tuple[int, int, int, int], int] = {}
        self._sent_times: dict[bytes, bytes] = {}
        self._told_stacks: set[int] = set()
        self._symbols = KernelSymbols()

    def aggregates(self) -> Iterator[bytes]:
        """Yield the series that changed since they were last read."""
        ktime_ns = time.monotonic_ns()
        changed = []
        for key, value in self._programs.read_aggregates():
            if self._sent.get(key) != value:
                self._sent[key] = value
                changed.append((key, value))
        yield from _pack(ktime_ns, changed)

    def last_aggregates(self, ended: Collection[tuple[int, int]]) -> Iterator[bytes]:
        """
        Yield the series of images that ended, as (pid, image_ktime_ns), and free them.
        """
        ktime_ns = time.monotonic_ns()
        last = [
            (key, value) for key, value in self._programs.read_aggregates() if _image(key) in ended
        ]
        for key, _ in last:
            self._programs.forget_aggregate(key)
            self._sent.pop(key, None)
        yield from _pack(ktime_ns, last)

    def times(self) -> Iterator[bytes]:
        """Yield the entries of the time account that changed since they were last read."""
        ktime_ns = time.monotonic_ns()
        changed = []
        for key, value in self._programs.read_times():
            if self._sent_times.get(key) != value:
                self._sent_times[key] = value
                changed.append((key, value))
        yield from self._pack_times(ktime_ns, changed)

    def last_times(self, ended: Collection[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the time account of images that ended, and free it."""
        ktime_ns = time.monotonic_ns()
        last = [(key, value) for key, value in self._programs.read_times() if _image(key) in ended]
        for key, _ in last:
            self._programs.forget_times(key)
            self._sent_times.pop(key, None)
        yield from self._pack_times(ktime_ns, last)

    def _pack_times(self, ktime_ns: int, entries: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for key, _ in entries:
            yield from self.stack(wire.TIMES_KEY.unpack(key)[2])
        if entries:
            yield times_record(ktime_ns, entries)

    def stack(self, stack: int) -> Iterator[bytes]:
        """Yield what the functions of a kernel stack are called, the first time it is met."""
        if stack < 0 or stack in self._told_stacks:
            return
        addresses = self._programs.kernel_stack(stack)
        if addresses:
            self._told_stacks.add(stack)
            functions = [self._symbols.name(address) for address in addresses]
            # What is above the scheduler is how we came to look.
            functions = (
                functions[functions.index(_SCHEDULER) + 1 :]
                if _SCHEDULER in functions
                else functions
            )
            body = {"kernel_stack": stack, "functions": functions}
            yield json_record(wire.RECORD_STACK, time.monotonic_ns(), body)

    def prepare(self) -> None:
        """Read the kernel's symbols now: it takes a tenth of a second, and somebody may wait."""
        self._symbols.read()

    def push_thresholds(self) -> None:
        """Tell the kernel side from which duration each series' calls are slow."""
        current = {}
        for found in find_thresholds(self._sent.items(), self._bounds_ns, self._floor_ns):
            name = found[:4]
            current[name] = found.threshold_ns
            if self._thresholds.get(name) != found.threshold_ns:
                self._programs.set_threshold(*found)
        self._thresholds = current

    def counters(self) -> bytes:
        """Return the kernel side's counters."""
        return counters_record(time.monotonic_ns(), self._programs.read_counters())

    def open_calls(self) -> Iterator[bytes]:
        """Yield the calls that have been open for longer than the limit, with their callers."""
        now_ktime_ns = time.monotonic_ns()
        for thread in self._programs.open_threads():
            root_start_ktime_ns = thread.calls[0]["start_ktime_ns"]
            for depth, call in enumerate(thread.calls):
                if now_ktime_ns - call["start_ktime_ns"] < self._open_limit_ns:
                    break
                yield open_call_record(
                    now_ktime_ns,
                    pid=thread.pid,
                    tid=thread.tid,
                    image_ktime_ns=thread.image_ktime_ns,
                    start_ktime_ns=call["start_ktime_ns"],
                    root_start_ktime_ns=root_start_ktime_ns,
                    blocked_ns=thread.blocked_ns - call["blocked_ns"],
                    run_queue_ns=thread.run_queue_ns - call["run_queue_ns"],
                    device=call["device"],
                    api=call["api"],
                    depth=depth,
                    comm=_comm(thread.pid, thread.tid),
                )


def _image(key: bytes) -> tuple[int, int]:
    image_ktime_ns, pid = _IMAGE.unpack_from(key)
    return pid, image_ktime_ns


def _pack(ktime_ns: int, series: list[tuple[bytes, bytes]]) -> Iterator[bytes]:
    if series:
        keys, values = zip(*series, strict=True)
        yield from aggregates_records(ktime_ns, len(series), b"".join(keys), b"".join(values))


def _comm(pid: int, tid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/task/{tid}/comm", "rb") as stream:  # noqa: PTH123
            return stream.read(wire.COMM_BYTES).rstrip(b"\n")
    except OSError:
        return b""
