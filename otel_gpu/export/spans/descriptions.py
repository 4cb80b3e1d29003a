"""Attributes of spans that describe calls, devices, waits and threads."""

from collections.abc import Iterator

from otel_gpu import wire
from otel_gpu.enrich.activities import StallActivity
from otel_gpu.enrich.identity.identities import Resource
from otel_gpu.explain.kinds import EffectKind
from otel_gpu.export import semconv
from otel_gpu.export.metrics.measures import switch_attributes
from otel_gpu.export.spans.finished import Attributes, AttributeValue
from otel_gpu.wire.blocks import OutOfMemory
from otel_gpu.wire.bodies import ResourceKind
from otel_gpu.wire.communicators import (
    DATATYPES,
    NO_REDUCTION,
    OPERATIONS,
    REDUCTIONS,
    asked_by,
    name_of,
)
from otel_gpu.wire.events import CudaCall, Gap, OpenCall, Stall
from otel_gpu.wire.probe_table import Api

_MAX_FUNCTIONS = 16
_INT64_LIMIT = 1 << 63
_WAKER = (semconv.OTEL_GPU_WAKER_PID, semconv.OTEL_GPU_WAKER_TID, semconv.OTEL_GPU_WAKER_COMM)

Pairs = list[tuple[str, AttributeValue]]
_WITH_PORT = frozenset({ResourceKind.TCP, ResourceKind.UDP})
_TRANSPORTS = _WITH_PORT | {ResourceKind.UNIX, ResourceKind.PIPE}


def describe_blocked(activity: StallActivity, stack: Attributes) -> Attributes:
    """Return what a thread waited for; ``stack`` has the attributes of its stack."""
    event = activity.event
    pairs: Pairs = list(switch_attributes(event.switch_type))
    waker = (event.waker_pid, event.waker_tid, event.waker_comm) if event.waker_tid else None
    add_wait(pairs, activity.reason, functions=activity.functions, waker=waker)
    if activity.resource is not None:
        add_resource(pairs, activity.resource)
    pairs.extend(stack)
    add_thread(pairs, event.tid, event.comm)
    return tuple(pairs)


def describe_collective(call: CudaCall) -> Iterator[tuple[str, int | str]]:
    """Yield the operation that an NCCL call requests, and its communicator."""
    if call.address:
        yield semconv.GPU_NCCL_COMM, f"{call.address:016x}"
    asked = asked_by(call.grid, call.block)
    if asked is None or asked[1].operation not in OPERATIONS:
        return
    number, signature = asked
    yield semconv.GPU_NCCL_OPERATION, OPERATIONS[signature.operation]
    if number:
        yield semconv.GPU_NCCL_NUMBER, number
    yield semconv.GPU_NCCL_ELEMENTS, signature.elements
    yield semconv.GPU_NCCL_DATATYPE, name_of(DATATYPES, signature.datatype)
    if signature.reduction != NO_REDUCTION:
        yield semconv.GPU_NCCL_REDUCTION, name_of(REDUCTIONS, signature.reduction)
    if signature.root >= 0:
        yield semconv.GPU_NCCL_ROOT, signature.root


def describe_run_queue_wait(event: Stall) -> Attributes:
    """Return who had the CPU that a thread waited for."""
    pairs: Pairs = list(switch_attributes(event.switch_type))
    if event.flags & wire.STALL_IDLE_CPU:
        pairs.append((semconv.OTEL_GPU_CPU_IDLE, True))
    if event.culprit_tid:
        add_culprit(pairs, event.culprit_pid, tid=event.culprit_tid, comm=event.culprit_comm)
    add_thread(pairs, event.tid, comm=event.comm, cpu=event.cpu)
    return tuple(pairs)


def describe_failure(event: OutOfMemory, api: Api | None, stack: Attributes) -> Attributes:
    """Return the requested size and the memory state; ``stack`` has the attributes of the stack."""
    pairs: Pairs = [(semconv.ERROR_TYPE, EffectKind.OUT_OF_MEMORY)]
    if api is not None:
        pairs.append((semconv.GPU_CUDA_API, api.name))
    sizes = [
        (semconv.OTEL_GPU_MEMORY_ASKED, event.asked_bytes),
        (semconv.OTEL_GPU_MEMORY_ALLOCATED, event.allocated_bytes),
        (semconv.OTEL_GPU_MEMORY_RESERVED, event.reserved_bytes),
    ]
    if event.device_total_bytes:
        sizes += [
            (semconv.OTEL_GPU_MEMORY_DEVICE_FREE, event.device_free_bytes),
            (semconv.OTEL_GPU_MEMORY_DEVICE_TOTAL, event.device_total_bytes),
        ]
    pairs.extend((name, signed(size_bytes)) for name, size_bytes in sizes)
    pairs.extend(stack)
    add_thread(pairs, event.tid, event.comm)
    return tuple(pairs)


def add_resource(pairs: Pairs, resource: Resource) -> None:
    """Add the resource that a thread waited for."""
    kind, name = resource.kind, resource.name
    pairs.append((semconv.OTEL_GPU_RESOURCE_KIND, kind))
    if resource.is_remote:
        pairs.append((semconv.OTEL_GPU_RESOURCE_REMOTE, True))
    if kind in _TRANSPORTS:
        pairs.append((semconv.NETWORK_TRANSPORT, kind))
        address, port = name, ""
        if kind in _WITH_PORT:
            address, _, port = name.rpartition(":")
        if address and not resource.is_incoming:
            pairs.append((semconv.NETWORK_PEER_ADDRESS, address.strip("[]")))
            if port.isdecimal():
                pairs.append((semconv.NETWORK_PEER_PORT, int(port)))
    elif kind == ResourceKind.COLLECTIVE:
        pairs.append((semconv.OTEL_GPU_RESOURCE_NAME, name))
    elif name:
        pairs.append((semconv.FILE_PATH, name))
    if resource.file_system:
        pairs.append((semconv.SYSTEM_FILESYSTEM_TYPE, resource.file_system))
    if resource.mount:
        pairs.append((semconv.SYSTEM_FILESYSTEM_MOUNTPOINT, resource.mount))


def add_wait(
    pairs: Pairs, reason: str, functions: tuple[str, ...], waker: tuple[int, int, str] | None
) -> None:
    """Add the reason of a wait, its kernel functions, and the waker (pid, tid, name)."""
    if reason:
        pairs.append((semconv.OTEL_GPU_STALL_REASON, reason))
    if functions:
        pairs.append((semconv.OTEL_GPU_KERNEL_FUNCTIONS, functions[:_MAX_FUNCTIONS]))
    if waker is not None:
        pairs.extend(zip(_WAKER, waker, strict=True))


def add_culprit(pairs: Pairs, pid: int, tid: int, comm: str) -> None:
    """Add the thread that had the CPU, or held what another one waited for."""
    pairs.append((semconv.OTEL_GPU_CULPRIT_PID, pid))
    pairs.append((semconv.OTEL_GPU_CULPRIT_TID, tid))
    if comm:
        pairs.append((semconv.OTEL_GPU_CULPRIT_COMM, comm))


def add_account(
    pairs: Pairs, event: CudaCall | Gap | OpenCall, names: tuple[str, str, str, str]
) -> None:
    """Add how long and how often a thread was off the CPU; zeros are omitted."""
    blocked, run_queue, voluntary, involuntary = names
    if event.blocked_ns:
        pairs.append((blocked, event.blocked_ns / 1e9))
    if event.run_queue_ns:
        pairs.append((run_queue, event.run_queue_ns / 1e9))
    if isinstance(event, OpenCall):
        return
    if event.voluntary_switches:
        pairs.append((voluntary, event.voluntary_switches))
    if event.involuntary_switches:
        pairs.append((involuntary, event.involuntary_switches))


def add_thread(pairs: Pairs, tid: int, comm: str, cpu: int | None = None) -> None:
    """Add the thread, and its CPU if known."""
    pairs.append((semconv.OTEL_GPU_THREAD_TID, tid))
    if comm:
        pairs.append((semconv.THREAD_NAME, comm))
    if cpu is not None:
        pairs.append((semconv.CPU_LOGICAL_NUMBER, cpu))


def signed(value: int) -> int:
    """Return an unsigned number as OTLP's signed one with the same bits."""
    return value if value < _INT64_LIMIT else value - 2 * _INT64_LIMIT
