"""
A made recording of a host that runs short CUDA programs for hours.

One program starts them, a hundred a second; each lives for 30 ms, makes a slow first allocation,
is read two or three times, and is gone. A third of them are known to the kernel by their fork
and exec and end before anybody looked them up, a third are looked up after their first calls,
and a third are forks that run no other program.
"""

import ctypes
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar, NamedTuple
from unittest.mock import patch

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_gpu import pipeline, wire
from otel_gpu.capture.host.host_facts import collect_rarely, resident_bytes, trim_memory
from otel_gpu.enrich.activities import Activity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export import exports as exports_module
from otel_gpu.export.exports import open_exports
from otel_gpu.options import Config, ExplainConfig, ExportConfig
from otel_gpu.wire.agent_records import (
    aggregates_record,
    clock_record,
    counters_record,
    json_record,
    times_record,
)
from otel_gpu.wire.histogram_layout import layout_description
from tests.synthetic import call_record, kernel_record, series, times_entry

MS = 1_000_000
S = 1000 * MS
BEGIN_KTIME_NS = 1000 * S
BEGIN_UNIX_NS = 1_800_000_000 * S
PER_SECOND = 100
ACTIVITIES_OF_ONE = 10
"""Of each process, on average; those of the host come on top."""
LAUNCHER = {"pid": 77, "program_ktime_ns": 900 * S}
_PIDS = 30_000
_LAUNCH, _SYNCHRONIZE, _MALLOC = 1, 5, 10
_EXECUTED, _LOOKED_UP, _FORKED = range(3)


def short_processes(count: int) -> Iterator[list[bytes]]:
    """Yield the records of so many processes, a batch for each tenth of a second."""
    yield list(_begin())
    batch: list[bytes] = []
    for number in range(count):
        batch += _process(number)
        if number % (PER_SECOND // 10) == 0:
            yield batch
            batch = []
        if number % PER_SECOND == 0:
            batch += _reading(number // PER_SECOND)
    yield [*batch, *_reading(1 + count // PER_SECOND)]


def _begin() -> Iterator[bytes]:
    info = {
        "agent": {"version": "1.2.3", "pid": 7},
        "host": {"name": "node", "id": "abc", "boot_id": "b00t", "arch": "x86_64", "cpus": 2},
        "mode": "all",
        "layout": layout_description(Config()),
    }
    yield json_record(wire.RECORD_CAPTURE, BEGIN_KTIME_NS, info)
    yield clock_record(BEGIN_KTIME_NS, BEGIN_UNIX_NS)
    facts = {"start_boot_ns": 900 * S, "exe": "/usr/bin/launcher", "comm": "launcher"}
    yield json_record(wire.RECORD_PROCESS, BEGIN_KTIME_NS, facts, **LAUNCHER)


def _reading(second: int) -> Iterator[bytes]:
    at = BEGIN_KTIME_NS + second * S
    launches = series(
        **LAUNCHER,
        metric=wire.METRIC_CALL_DURATION,
        api=_LAUNCH,
        buckets={10: 1 + second},
        sum=5000 * (1 + second),
        min=4000,
        max=6000,
    )
    yield aggregates_record(at, [launches])
    yield counters_record(at, (0,) * wire.COUNTER_COUNT)


def _process(number: int) -> Iterator[bytes]:
    kind = number % 3
    begin = BEGIN_KTIME_NS + number * S // PER_SECOND
    fork_image = {"pid": 1000 + number % _PIDS, "program_ktime_ns": begin + 1}
    image = fork_image
    comm = {"comm": f"helper{number % 7}"}
    if kind != _LOOKED_UP:
        yield kernel_record(
            wire.RECORD_FORK,
            ktime_ns=begin + MS,
            start_ktime_ns=begin,
            child_pid=image["pid"],
            child_program_ktime_ns=image["program_ktime_ns"],
            tid=LAUNCHER["pid"],
            comm="launcher",
            **LAUNCHER,
        )
    if kind == _EXECUTED:
        image = fork_image | {"program_ktime_ns": begin + 2 * MS}
        yield kernel_record(
            wire.RECORD_EXEC,
            ktime_ns=image["program_ktime_ns"],
            old_program_ktime_ns=fork_image["program_ktime_ns"],
            tid=image["pid"],
            path=f"/opt/bin/{comm['comm']}",
            **image,
            **comm,
        )
    thread = image | {"tid": image["pid"]} | comm
    yield _call(thread, begin, _MALLOC, 3, 8)
    if kind == _EXECUTED:
        yield from _pause(thread, begin)
    yield from _reading_of(image, begin + 10 * MS, number)
    if kind == _LOOKED_UP:
        yield _call(thread, begin, _SYNCHRONIZE, 16, 19)
        facts = {
            "start_boot_ns": begin // 10_000_000 * 10_000_000,
            "exe": f"/opt/bin/{comm['comm']}",
            "command_args": [comm["comm"], "--number", str(number)],
            "owner": "ada",
            "env": {"OTEL_SERVICE_NAME": f"service-{number % 5}"},
            **comm,
        }
        yield json_record(wire.RECORD_PROCESS, begin + 19 * MS, facts, **image)
    if kind != _EXECUTED:
        yield from _reading_of(image, begin + 20 * MS, number)
    yield from _reading_of(image, begin + 30 * MS, number)
    yield kernel_record(wire.RECORD_EXIT, ktime_ns=begin + 30 * MS, **thread)


def _call(thread: dict[str, object], begin: int, api: int, start_ms: int, end_ms: int) -> bytes:
    return call_record(
        ktime_ns=begin + end_ms * MS,
        start_ktime_ns=begin + start_ms * MS,
        api=api,
        choices=wire.CHOICE_SLOW,
        **thread,
    )


def _pause(thread: dict[str, object], begin: int) -> Iterator[bytes]:
    yield kernel_record(
        wire.RECORD_STALL,
        ktime_ns=begin + 15 * MS,
        start_ktime_ns=begin + 9 * MS,
        runnable_ktime_ns=begin + 14 * MS,
        switch_type=wire.SWITCH_VOLUNTARY,
        **thread,
    )
    yield kernel_record(
        wire.RECORD_GAP,
        ktime_ns=begin + 16 * MS,
        start_ktime_ns=begin + 8 * MS,
        previous_api=_MALLOC,
        next_api=_SYNCHRONIZE,
        blocked_ns=5 * MS,
        **thread,
    )


def _reading_of(image: dict[str, int], at: int, number: int) -> Iterator[bytes]:
    """Yield what the maps held of a process."""
    malloc = series(
        **image,
        metric=wire.METRIC_CALL_DURATION,
        api=_MALLOC,
        buckets={60: 1},
        sum=5 * MS,
        min=5 * MS,
        max=5 * MS,
    )
    yield aggregates_record(at, [malloc])
    on_cpu = times_entry(
        **image, state=wire.STATE_ON_CPU, context=wire.CONTEXT_GAP, time_ns=9 * MS + number
    )
    yield times_record(at, [on_cpu])


class _MallInfo(ctypes.Structure):
    # Of malloc.h.
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


class Memory(NamedTuple):
    """
    What a process holds; ``read`` does not count what nobody can reach any more.

    Attributes:
        blocks: Python's objects, and parts of them.
        heap_bytes: What the C library has handed out; 0 where it does not say.
        resident_mib: What the kernel has given.
    """

    blocks: int
    heap_bytes: int
    resident_mib: float

    @classmethod
    def read(cls) -> "Memory":
        """Look at this process."""
        gc.collect()
        library = ctypes.CDLL(None)
        heap_bytes = 0
        if hasattr(library, "mallinfo2"):  # since glibc 2.33
            library.mallinfo2.restype = _MallInfo
            found = library.mallinfo2()
            heap_bytes = found.hblkhd + found.uordblks
        return cls(sys.getallocatedblocks(), heap_bytes, resident_bytes() / (1 << 20))


class Census:
    """
    In place of the file of ``--otlp-file``: says of each request on standard output who it is
    about, and keeps nothing of it but what memory there was then.
    """

    memory: ClassVar[list[Memory]] = []

    def __init__(self, _: str) -> None:
        self.found: Counter[str] = Counter()

    def write(self, request: ExportTraceServiceRequest | ExportMetricsServiceRequest) -> None:
        if isinstance(request, ExportMetricsServiceRequest):
            # Always at the same moment of an interval: spans are sent when there are so many, and
            # what waits for the next reading of metrics is then sometimes more, sometimes less.
            self.memory.append(Memory.read())
            for of_resource in request.resource_metrics:
                self._say(of_resource.resource)
            return
        for of_resource in request.resource_spans:
            self._say(of_resource.resource)
            for of_scope in of_resource.scope_spans:
                self.found.update(span.name for span in of_scope.spans)

    def close(self) -> None:
        sys.stdout.write(json.dumps(self.found) + "\n")

    def _say(self, resource: Resource) -> None:
        names = {pair.key: pair.value.string_value for pair in resource.attributes}
        digest = hash(resource.SerializeToString())
        sys.stdout.write(f"{names['service.instance.id']} {names['service.name']} {digest}\n")


def main() -> None:
    """Take a made recording through the pipeline as a replay does; say what came of it."""
    trim_memory()
    collect_rarely()
    # What is kept until a stretch ends comes and goes with it. Stretches are much shorter than the
    # time between two censuses, so that each is at about the same moment of one.
    config = Config(
        export=ExportConfig(otlp_file="census"), explain=ExplainConfig(chronic_window_s=1.0)
    )
    rejected: Counter[str] = Counter()
    activities = 0

    def count(_: Activity) -> None:
        nonlocal activities
        activities += 1

    with (
        patch.object(exports_module, "OtlpFile", Census),
        open_exports(config, {}, live=False) as exports,
    ):
        blame = pipeline.ExplainStage(config, exports)
        observers = [exports.observe, blame.observe, count]
        pipeline.process(short_processes(int(sys.argv[1])), Enricher(), observers, rejected)
        blame.close()
    said = {
        "activities": activities,
        "rejected": rejected,
        "dropped": exports.dropped(),
        "memory": Census.memory[:-1],  # not of the end
        "cpu_s": time.process_time(),
    }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
