"""Activities with every field filled in, for the tests of ``export``."""

from opentelemetry.sdk.trace import SpanLimits

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    CallActivity,
    CaptureActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import DeviceIdentity, Program
from otel_gpu.enrich.ids import SpanIds
from otel_gpu.export.otlp.span_limits import SpanSizeLimits
from otel_gpu.export.resources import Origins, ProcessResources
from otel_gpu.export.spans.activity_spans import SpanBuilder
from otel_gpu.export.spans.stack_events import Stacks
from otel_gpu.wire.events import CudaCall, Fork, Gap, OpenCall, Stall
from otel_gpu.wire.probe_table import API_BY_NUMBER

# What Unix time was when the monotonic clock stood at 0.
BOOT_UNIX_NS = 1_700_000_000_000_000_000
CUDA_MALLOC = 10
CUDA_MEMCPY_ASYNC = 31
CUDA_LAUNCH_KERNEL = 1
CU_MEM_ALLOC = 110

PROCESS = Program(
    pid=42,
    program_ktime_ns=7,
    comm="python",
    start_unix_ns=BOOT_UNIX_NS + 7,
    attributes={"service.name": "trainer", "service.instance.id": "i-1", "process.pid": 42},
)
CHILD = Program(
    pid=43,
    program_ktime_ns=2_000,
    comm="python",
    start_unix_ns=BOOT_UNIX_NS + 2_000,
    attributes={"service.name": "loader", "process.pid": 43, "process.command": "python"},
)
DEVICE = DeviceIdentity(0, "8f4d1ee8-0b3c-6bd6-a4f1-2e0e1b7b9a10", "NVIDIA H100 80GB HBM3")
CAPTURE = CaptureActivity(
    BOOT_UNIX_NS,
    {
        "agent": {"version": "9.8.7", "pid": 1},
        "host": {"name": "node-1", "id": "machine", "arch": "amd64", "boot_id": "boot"},
        "mode": "command",
        "layout": {
            "durations": {"kind": "exponential", "scale": 2, "offset": -120},
            "sizes": {"kind": "exponential", "scale": 0, "offset": -1},
        },
    },
    b"capture1",
)
IDS = SpanIds(CAPTURE.seed)

_CALL = CudaCall(
    end_ktime_ns=3_000,
    program_ktime_ns=7,
    pid=42,
    tid=44,
    start_ktime_ns=1_000,
    parent_start_ktime_ns=0,
    root_start_ktime_ns=1_000,
    blocked_ns=0,
    run_queue_ns=0,
    size_bytes=0,
    address=0,
    stream=0,
    function=0,
    user_stack=0,
    status=0,
    device=-1,
    weight=1,
    voluntary_switches=0,
    involuntary_switches=0,
    cpu=3,
    grid=(0, 0, 0),
    block=(0, 0, 0),
    api=CUDA_MALLOC,
    variant=0,
    copy_kind=wire.COPY_NONE,
    choices=0,
    depth=0,
    comm="worker",
)
_STALL = Stall(
    end_ktime_ns=2_500,
    program_ktime_ns=7,
    pid=42,
    tid=44,
    start_ktime_ns=1_500,
    runnable_ktime_ns=2_000,
    call_start_ktime_ns=1_000,
    root_start_ktime_ns=1_000,
    user_stack=0,
    culprit_pid=90,
    culprit_tid=91,
    waker_pid=80,
    waker_tid=81,
    cpu=2,
    call_api=CUDA_MALLOC,
    call_depth=0,
    switch_type=wire.SWITCH_VOLUNTARY,
    kernel_stack=-1,
    system_call=-1,
    argument=0,
    flags=0,
    comm="worker",
    culprit_comm="hog",
    waker_comm="waker",
)
_GAP = Gap(
    end_ktime_ns=9_000,
    program_ktime_ns=7,
    pid=42,
    tid=44,
    start_ktime_ns=3_000,
    blocked_ns=0,
    run_queue_ns=0,
    device=-1,
    voluntary_switches=0,
    involuntary_switches=0,
    previous_api=CUDA_MALLOC,
    next_api=CUDA_LAUNCH_KERNEL,
    choices=0,
    comm="worker",
)
_FORK = Fork(
    end_ktime_ns=2_000,
    program_ktime_ns=7,
    pid=42,
    tid=44,
    start_ktime_ns=1_900,
    child_program_ktime_ns=2_000,
    call_start_ktime_ns=0,
    root_start_ktime_ns=0,
    child_pid=43,
    comm="worker",
)
_OPEN = OpenCall(
    ktime_ns=10_000_001_000,
    program_ktime_ns=7,
    pid=42,
    tid=44,
    start_ktime_ns=1_000,
    root_start_ktime_ns=1_000,
    blocked_ns=9_000_000_000,
    run_queue_ns=0,
    user_stack=0,
    device=-1,
    api=CUDA_MALLOC,
    depth=0,
    comm="worker",
)


def call(device=None, process=PROCESS, stack=None, kernel="", **changes) -> CallActivity:
    event = _CALL._replace(**changes)
    return CallActivity(
        process,
        event,
        API_BY_NUMBER[event.api],
        BOOT_UNIX_NS + event.start_ktime_ns,
        BOOT_UNIX_NS + event.end_ktime_ns,
        device,
        stack,
        kernel,
        *IDS.of_call(event),
    )


def stall(
    reason="", functions=(), process=PROCESS, stack=None, resource=None, **changes
) -> StallActivity:
    event = _STALL._replace(**changes)
    return StallActivity(
        process,
        event,
        BOOT_UNIX_NS + event.start_ktime_ns,
        BOOT_UNIX_NS + event.runnable_ktime_ns,
        BOOT_UNIX_NS + event.end_ktime_ns,
        reason,
        functions,
        stack,
        *IDS.of_stall(event),
        resource,
    )


def gap(device=None, process=PROCESS, **changes) -> GapActivity:
    event = _GAP._replace(**changes)
    return GapActivity(
        process,
        event,
        API_BY_NUMBER[event.previous_api],
        API_BY_NUMBER[event.next_api],
        BOOT_UNIX_NS + event.start_ktime_ns,
        BOOT_UNIX_NS + event.end_ktime_ns,
        device,
        *IDS.of_gap(event),
    )


def fork(child=CHILD, **changes) -> ForkActivity:
    event = _FORK._replace(**changes)
    return ForkActivity(
        PROCESS,
        event,
        child,
        BOOT_UNIX_NS + event.start_ktime_ns,
        BOOT_UNIX_NS + event.end_ktime_ns,
        *IDS.of_fork(event),
    )


def open_call(stack=None, **changes) -> OpenCallActivity:
    event = _OPEN._replace(**changes)
    return OpenCallActivity(
        PROCESS,
        event,
        API_BY_NUMBER[event.api],
        BOOT_UNIX_NS + event.start_ktime_ns,
        BOOT_UNIX_NS + event.ktime_ns,
        None,
        stack,
        *IDS.of_open_call(event),
    )


def builder(limits: SpanSizeLimits | None = None, stacks: str = "event") -> SpanBuilder:
    """What makes spans, with the usual limits."""
    limits = limits or SpanSizeLimits(SpanLimits())
    return SpanBuilder(
        Origins("9.8.7", ProcessResources({})), limits, Stacks(stacks, limits.value_length)
    )
