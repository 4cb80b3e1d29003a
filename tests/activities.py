"""Activities as ``enrich`` makes them; a test gives only the values that it needs."""

from bisect import bisect_left

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    DeviceFaultActivity,
    DevicesActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    ProbesActivity,
    SampleActivity,
    Series,
    StallActivity,
    StatusActivity,
    TimesActivity,
)
from otel_gpu.enrich.identity.identities import CallStack, DeviceIdentity, Program
from otel_gpu.enrich.ids import SpanIds, capture_seed
from otel_gpu.enrich.known_work import WorkKind
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.enrich.stack_table import find_place
from otel_gpu.enrich.thread_times import NO_WAIT, ThreadTime
from otel_gpu.state.code_lines import NOWHERE, KnownStack, LineSums, Where
from otel_gpu.wire.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.wire.device_faults import DeviceFault
from otel_gpu.wire.events import CpuSample, CudaCall, Fork, Gap, OpenCall, Range, Stall, Step
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.histogram_layout import duration_bounds_ns, layout_description, size_bounds_bytes
from otel_gpu.wire.probe_table import APIS
from otel_gpu.wire.readings import Aggregate, SeriesKey

T0 = 1_800_000_000_000_000_000  # Unix time in nanoseconds at ktime 0
SECOND = 1_000_000_000
MS = 1_000_000
H100 = DeviceIdentity(0, "8f4d1ee8-0b3c-6bd6-a4f1-2e0e1b7b9a10", "NVIDIA H100 80GB HBM3")
APIS_BY_NAME = {api.name: api for api in APIS}
EXPONENTIAL = Config()
MALLOC_FRAME = Frame("native", "cudaMalloc", module="libcudart.so.12", address=0x1200)
EMPTY_FRAME = Frame("native", "at::native::empty_cuda", module="libtorch_cuda.so", address=0x99)
PATTERN_FRAME = Frame("cpython", "fragmentation_pattern", "/app/train.py", 74)
MAIN_FRAME = Frame("cpython", "<module>", "/app/train.py", 102)


def call_stack(number=0x9C1FB4E17D2A6B03, frames=None, *, complete=True):
    """A call stack; by default at line 74 of train.py, in cudaMalloc."""
    if frames is None:
        frames = (MALLOC_FRAME, EMPTY_FRAME, PATTERN_FRAME, MAIN_FRAME)
    return CallStack(number, frames, complete, "eh_frame", "ok", find_place(frames))


def image(pid=42, program_ktime_ns=5 * SECOND, name="trainer", parent_pid=None):
    """A program that started five seconds after ktime 0."""
    attributes = {
        "service.name": name,
        "service.instance.id": f"{pid}-{program_ktime_ns}",
        "process.pid": pid,
    }
    if parent_pid is not None:
        attributes["process.parent_pid"] = parent_pid
    return Program(pid, program_ktime_ns, name, T0 + program_ktime_ns, attributes)


def capture(config=EXPONENTIAL, unix_ns=T0):
    """The first activity of a stream."""
    info = {
        "agent": {"version": "0.1.0", "pid": 7},
        "host": {"name": "node1", "id": "abc", "boot_id": "b00t", "arch": "x86_64", "cpus": 2},
        "mode": "command",
        "layout": layout_description(config),
    }
    return CaptureActivity(unix_ns, info, capture_seed(unix_ns, info))


IDS = SpanIds(capture().seed)
"""Of what belongs to that capture."""


def aggregate(values, *, size_bytes=0, bounds=None):
    """The kernel side's aggregate of these values."""
    bounds = duration_bounds_ns(EXPONENTIAL) if bounds is None else bounds
    buckets = [0] * wire.MAX_BUCKETS
    for value in values:
        buckets[bisect_left(bounds, value)] += 1
    return Aggregate(sum(values), min(values), max(values), size_bytes, tuple(buckets))


def calls(process, api, durations_ns, **key):
    """The duration series of one API; keys as in ``SeriesKey``."""
    api = APIS_BY_NAME[api]
    size_bytes = key.pop("size_bytes", 0)
    device = key.pop("device", None)
    bounds = key.pop("bounds", None)
    return series(
        process,
        wire.METRIC_CALL_DURATION,
        aggregate(durations_ns, size_bytes=size_bytes, bounds=bounds),
        api=api.number,
        device=device,
        **key,
    )


def series(process, metric, counted, *, api=0, device=None, **key):
    """One series; ``device`` is a ``DeviceIdentity``."""
    full_key = {"status": 0, "copy_kind": wire.COPY_NONE, "nested": 0} | key
    return Series(
        process,
        SeriesKey(
            program_ktime_ns=process.program_ktime_ns,
            pid=process.pid,
            device=-1 if device is None else device.index,
            metric=metric,
            api=api,
            **full_key,
        ),
        next((a for a in APIS if a.number == api), None)
        if metric == wire.METRIC_CALL_DURATION
        else None,
        device,
        counted,
    )


def copies(process, sizes, copy_kind=wire.COPY_HOST_TO_DEVICE, device=None):
    """The size series of one direction of copies."""
    counted = aggregate(sizes, bounds=size_bounds_bytes(EXPONENTIAL))
    return series(process, wire.METRIC_COPY_SIZE, counted, copy_kind=copy_kind, device=device)


def forks(process, count):
    """The series that counts forks."""
    buckets = (count,) + (0,) * (wire.MAX_BUCKETS - 1)
    return series(process, wire.METRIC_FORK, Aggregate(0, 0, 0, 0, buckets))


def snapshot(at_s, *all_series):
    """All series, read ``at_s`` seconds after ktime 0."""
    return AggregatesActivity(T0 + round(at_s * SECOND), tuple(all_series))


def counters(at_s, **values):
    """The kernel side's counters, by their names in ``enrich``; others are 0."""
    named = dict.fromkeys(list(wire.COUNTER_NAMES.values())[: wire.COUNTER_COUNT], 0)
    return CountersActivity(
        T0 + round(at_s * SECOND), named | {f"counter_{name}": n for name, n in values.items()}
    )


def status(at_s, **info):
    """The agent's own figures."""
    return StatusActivity(T0 + round(at_s * SECOND), info)


def probes(at_s, library, symbols, exported, counted=0):
    """Symbols of one library that have probes."""
    info = {"library": library, "device": 1, "inode": 2, "symbols": symbols, "exported": exported}
    info["preload"] = counted
    return ProbesActivity(T0 + round(at_s * SECOND), info)


def ended(process, at_s, exit_code=0):
    """The end of a program."""
    return ExitActivity(process, T0 + round(at_s * SECOND), exit_code)


def replaced(process, at_s):
    """An exec: the process continues as another program."""
    return ExitActivity(process, T0 + round(at_s * SECOND), 0, is_replaced=True)


GPU = {
    "index": 0,
    "is_lost": False,
    "uuid": "GPU-8f6d2bd1-6c0a-4c5a-9d0b-9a8c7f6e5d4c",
    "model": "NVIDIA H200",
    "serial_number": "1654922007036",
    "utilization": {"general": 97, "memory": 31, "encoder": 0},
    "memory_bytes": {"limit": 1000, "usage": 250, "reserved": 10},
    "power_mw": 612_345,
    "energy_mj": 7_001,
    "temperature_c": 71,
    "memory_temperature_c": 88,
    "clock_mhz": 1410,
    "clock_limit_mhz": 1980,
    "errors": {"corrected": 3, "uncorrected": 0},
    "limited_ns": {"sw_power_cap": 5_000_000_007},
    "io_bytes": [["pcie", "transmit", 1_048_583]],
    "activity": {
        "sm_activity": 0.5,
        "sm_occupancy": 0.375,
        "tensor_activity": 0.25,
        "dram_activity": 0.125,
    },
    "processes": [{"pid": 42, "memory_bytes": 139, "sm_percent": 93}, {"pid": 7}],
    "parts": [{"uuid": "MIG-0", "memory_bytes": {"limit": 17, "usage": 16}}],
}
"""What a device may say of itself; process 42 is that of ``image``."""


def devices(at_s, **info):
    """A reading of the host's devices."""
    return DevicesActivity(T0 + round(at_s * SECOND), info)


def step(process, number, start_ktime_ns, duration_ns, **event):
    """A training step that the program reports, on the process's first thread."""
    end_ktime_ns = start_ktime_ns + duration_ns
    values = {
        "end_ktime_ns": end_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "start_ktime_ns": start_ktime_ns,
        "number": number,
        "loader_wait_ns": 0,
        "trace_id": b"",
        "span_id": b"",
        "trace_flags": 0,
        "source": wire.STEP_REPORTED,
        "confidence_percent": 100,
        "kind": wire.STEP_TRAINING,
        "name": "",
        "comm": process.comm,
    }
    made = Step(**(values | event))
    return StepActivity(process, made, T0 + start_ktime_ns, T0 + end_ktime_ns, *IDS.of_step(made))


def marked_range(process, name, start_ktime_ns, duration_ns, **event):
    """An NVTX range that the program's first thread pushed."""
    end_ktime_ns = start_ktime_ns + duration_ns
    values = {
        "end_ktime_ns": end_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "start_ktime_ns": start_ktime_ns,
        "trace_id": b"T" * 16,
        "span_id": start_ktime_ns.to_bytes(8),
        "parent_span_id": b"",
        "start_tid": process.pid,
        "trace_flags": 0,
        "range_kind": wire.RANGE_PUSHED,
        "name": name,
        "domain": "",
        "comm": process.comm,
    }
    made = Range(**(values | event))
    times = (T0 + start_ktime_ns, T0 + end_ktime_ns)
    return RangeActivity(process, made, *times, *IDS.of_range(made))


def call(process, api, start_ktime_ns, duration_ns, *, device=None, stack=None, kernel="", **event):
    """A recorded call."""
    end_ktime_ns = start_ktime_ns + duration_ns
    values = dict.fromkeys(CudaCall._fields, 0) | {
        "end_ktime_ns": end_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "start_ktime_ns": start_ktime_ns,
        "root_start_ktime_ns": start_ktime_ns,
        "device": -1 if device is None else device.index,
        "weight": 1,
        "grid": (0, 0, 0),
        "block": (0, 0, 0),
        "api": APIS_BY_NAME[api].number,
        "copy_kind": wire.COPY_NONE,
        "choices": wire.CHOICE_FULL,
        "comm": process.comm,
    }
    made = CudaCall(**(values | event))
    return CallActivity(
        process,
        made,
        APIS_BY_NAME[api],
        T0 + start_ktime_ns,
        T0 + end_ktime_ns,
        device,
        stack,
        kernel,
        *IDS.of_call(made),
    )


def open_call(
    process, api, start_ktime_ns, seen_ktime_ns, *, tid=None, device=None, stack=None, **event
):
    """A call that has not returned."""
    values = dict.fromkeys(OpenCall._fields, 0) | {
        "ktime_ns": seen_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid if tid is None else tid,
        "start_ktime_ns": start_ktime_ns,
        "root_start_ktime_ns": start_ktime_ns,
        "device": -1 if device is None else device.index,
        "api": APIS_BY_NAME[api].number,
        "comm": process.comm,
    }
    made = OpenCall(**(values | event))
    return OpenCallActivity(
        process,
        made,
        APIS_BY_NAME[api],
        T0 + start_ktime_ns,
        T0 + seen_ktime_ns,
        device,
        stack,
        *IDS.of_open_call(made),
    )


def stall(
    process,
    start_ktime_ns,
    runnable_ktime_ns,
    end_ktime_ns,
    *,
    reason="",
    functions=(),
    stack=None,
    resource=None,
    **event,
):
    """A thread off the CPU."""
    values = dict.fromkeys(Stall._fields, 0) | {
        "end_ktime_ns": end_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "start_ktime_ns": start_ktime_ns,
        "runnable_ktime_ns": runnable_ktime_ns,
        "switch_type": wire.SWITCH_VOLUNTARY,
        "kernel_stack": -1,
        "system_call": -1,
        "comm": process.comm,
        "culprit_comm": "",
        "waker_comm": "",
    }
    made = Stall(**(values | event))
    return StallActivity(
        process,
        made,
        T0 + start_ktime_ns,
        T0 + runnable_ktime_ns,
        T0 + end_ktime_ns,
        reason,
        functions,
        stack,
        *IDS.of_stall(made),
        resource,
    )


def sample(
    process,
    ktime_ns,
    weight_ns=10 * MS,
    *,
    functions=(),
    stack=None,
    in_call=None,
    **event,
):
    """A sample of a thread on a CPU, between CUDA calls or inside the API ``in_call``."""
    values = dict.fromkeys(CpuSample._fields, 0) | {
        "ktime_ns": ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "weight_ns": weight_ns,
        "user_stack": 0 if stack is None else stack.id,
        "kernel_stack": 1 if functions else -1,
        "context": wire.CONTEXT_GAP,
        "comm": process.comm,
    }
    if in_call is not None:
        values |= {"api": APIS_BY_NAME[in_call].number, "context": wire.CONTEXT_CALL}
        values |= {"root_start_ktime_ns": ktime_ns - MS}
    made = CpuSample(**(values | event))
    return SampleActivity(process, made, T0 + ktime_ns, functions, stack)


def lines_at(*counts, work="", lost=0, file="/app/pictures.py", complete=True):
    """Lines from functions, line numbers and sample counts; ``lost`` samples have no line."""
    sums = LineSums()
    for number, (function, line, count) in enumerate(counts, 1):
        frames = (Frame("cpython", function, file, line), MAIN_FRAME)
        stack = call_stack(0x5A0 + number, frames, complete=complete)
        known = KnownStack(Where(function, file, line), WorkKind(work) if work else None, stack)
        sums.add(known, count, count * 10_000_000)
    if lost:
        sums.add(NOWHERE, lost, lost * 10_000_000)
    return sums.lines()


def gap(process, previous_api, next_api, start_ktime_ns, end_ktime_ns, *, device=None, **event):
    """A recorded gap between two calls."""
    values = dict.fromkeys(Gap._fields, 0) | {
        "end_ktime_ns": end_ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "start_ktime_ns": start_ktime_ns,
        "device": -1 if device is None else device.index,
        "previous_api": APIS_BY_NAME[previous_api].number,
        "next_api": APIS_BY_NAME[next_api].number,
        "choices": wire.CHOICE_SLOW,
        "comm": process.comm,
    }
    made = Gap(**(values | event))
    return GapActivity(
        process,
        made,
        APIS_BY_NAME[previous_api],
        APIS_BY_NAME[next_api],
        T0 + start_ktime_ns,
        T0 + end_ktime_ns,
        device,
        *IDS.of_gap(made),
    )


def times(at_s, *thread_times):
    """Thread times, read ``at_s`` seconds after ktime 0."""
    return TimesActivity(T0 + round(at_s * SECOND), tuple(thread_times))


def thread_time(process, state, context, time_ns, *, reason="", count=1, ended_ns=0, wait=NO_WAIT):
    """Time of a process's threads in one state."""
    return ThreadTime(process, state, context, reason, time_ns, count, ended_ns, wait)


def fork(parent, child, start_ktime_ns, end_ktime_ns):
    """A fork."""
    event = Fork(
        end_ktime_ns=end_ktime_ns,
        program_ktime_ns=parent.program_ktime_ns,
        pid=parent.pid,
        tid=parent.pid,
        start_ktime_ns=start_ktime_ns,
        child_program_ktime_ns=child.program_ktime_ns,
        call_start_ktime_ns=0,
        root_start_ktime_ns=0,
        child_pid=child.pid,
        comm=parent.comm,
    )
    return ForkActivity(
        parent, event, child, T0 + start_ktime_ns, T0 + end_ktime_ns, *IDS.of_fork(event)
    )


def totals(allocated_bytes, reserved_bytes=None, **values):
    """Totals of an allocator on a device; by default all allocations were observed."""
    reserved_bytes = allocated_bytes if reserved_bytes is None else reserved_bytes
    known = dict.fromkeys(MemoryTotals._fields, 0) | {
        "allocated_bytes": allocated_bytes,
        "reserved_bytes": reserved_bytes,
        "peak_allocated_bytes": allocated_bytes,
        "peak_reserved_bytes": reserved_bytes,
        "allocations": 1,
        "handed_out_bytes": allocated_bytes,
    }
    return MemoryTotals(**(known | values))


def holder(live_bytes, live_blocks=1, allocated_bytes=None, allocated_blocks=None):
    """The blocks of one stack."""
    return Holder(
        live_bytes,
        live_blocks,
        live_bytes if allocated_bytes is None else allocated_bytes,
        live_blocks if allocated_blocks is None else allocated_blocks,
        live_bytes,
    )


def blocks(process, at_s, said=None, holders=(), *, number=0, device=H100):
    """A reading of an allocator; ``holders`` are (key, holder, stack)."""
    unix_ns = T0 + round(at_s * SECOND)
    return BlocksActivity(unix_ns, process, number, device, said, tuple(holders))


def line_stack(line, function="step", file="/app/train.py"):
    """The stack of an allocation, in a line of a program."""
    return call_stack(0xB10C0000 + line, (Frame("cpython", function, file, line), MAIN_FRAME))


def out_of_memory(process, at_s, asked_bytes, *, stack=None, map=None, stacks=None, **event):  # noqa: A002
    """A failed memory request; by default of a framework."""
    ktime_ns = round(at_s * SECOND)
    values = dict.fromkeys(OutOfMemory._fields, 0) | {
        "ktime_ns": ktime_ns,
        "program_ktime_ns": process.program_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "asked_bytes": asked_bytes,
        "source": wire.OUT_OF_MEMORY_FRAMEWORK,
        "comm": process.comm,
    }
    made = OutOfMemory(**(values | event))
    api = next((api for api in APIS if api.number == made.api), None)
    return OutOfMemoryActivity(
        T0 + ktime_ns,
        process,
        made,
        H100,
        api,
        stack,
        map,
        stacks or {},
        *IDS.of_out_of_memory(made),
    )


def device_fault(at_s, xid=79, *, process=None, bus_id="0000:4e:00", **event):
    """An error of a device, with or without a process."""
    ktime_ns = round(at_s * SECOND)
    key = (process.program_ktime_ns, process.pid) if process else (0, 0)
    fields = {"reported_by": "kernel_log", "xid": xid, "bus_id": bus_id, "reported_pid": key[1]}
    fields |= {"reported_name": process.comm if process else "", "times": 1, "message": ""} | event
    made = DeviceFault(ktime_ns, *key, **fields)
    return DeviceFaultActivity(T0 + ktime_ns, process, made, *IDS.of_device_fault(made))
