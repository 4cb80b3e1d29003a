"""
Maps each kernel-side series to its instruments and attributes.

One series can have several instruments: the calls of ``cudaMalloc`` are a duration, a number of
bytes allocated and a part of the bytes in use.
"""

# Some facts about counting once
# ------------------------------
# Most runtime calls make a driver call inside them (cudaMalloc, cuMemAlloc_v2), and both are
# probed. Durations keep the two apart by gpu.cuda.api and gpu.cuda.layer. All other instruments
# count requests, so they count only outermost calls, of either layer: a program that calls the
# driver directly has no runtime call around.

from collections.abc import Iterable, Iterator

from otel_gpu import wire
from otel_gpu.enrich.activities import OpenCallActivity, Series
from otel_gpu.enrich.cuda_errors import error_name
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.enrich.verbs_results import event_name
from otel_gpu.explain.accounting.verdicts import budget_of
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.export.otlp.sender import DropReason
from otel_gpu.export.semconv import Instrument
from otel_gpu.limits.caches import remembered
from otel_gpu.wire.blocks import MemoryTotals
from otel_gpu.wire.communicators import OPERATIONS
from otel_gpu.wire.probe_table import Api

_REGISTERED_SIGN = {wire.FAMILY_REGISTER: 1, wire.FAMILY_DEREGISTER: -1}
_IN_USE_SIGN = {wire.FAMILY_ALLOCATE: 1, wire.FAMILY_FREE: -1, wire.FAMILY_UNMAP: -1}


def measure(series: Series, device: DeviceIdentity | None) -> Iterator[Measurement]:
    """Yield a series's measurements; ``device`` is the device's identity as known by now."""
    key, aggregate = series.key, series.aggregate
    match key.metric:
        case wire.METRIC_CALL_DURATION if series.api is not None:
            instrument, attributes = duration_of(series.api, key.copy_kind, key.status, device)
            # ncclBcast calls ncclBroadcast, which is the same operation.
            if not key.nested or series.api.layer != wire.LAYER_NCCL:
                yield Measurement(instrument, attributes, source=key, value=aggregate)
            if key.status == 0 and not key.nested:
                attributes = device_attributes(device)
                yield from _outermost(series, series.api, attributes)
        case wire.METRIC_LAUNCH_GAP:
            instrument = semconv.METRIC_GPU_CUDA_LAUNCH_GAP
            yield Measurement(instrument, device_attributes(device), source=key, value=aggregate)
        case wire.METRIC_COPY_SIZE:
            attributes = _copy_attributes(key.copy_kind) + device_attributes(device)
            yield Measurement(
                semconv.METRIC_GPU_CUDA_MEMORY_COPIES, attributes, source=key, value=aggregate
            )
        case wire.METRIC_ELAPSED_TIME:
            instrument = semconv.METRIC_GPU_CUDA_EVENT_ELAPSED
            yield Measurement(instrument, device_attributes(device), source=key, value=aggregate)
        case wire.METRIC_OFF_CPU | wire.METRIC_RUN_QUEUE:
            is_off_cpu = key.metric == wire.METRIC_OFF_CPU
            off_cpu = semconv.METRIC_PROCESS_SCHEDULER_OFF_CPU_DURATION
            run_queue = semconv.METRIC_PROCESS_SCHEDULER_RUN_QUEUE_DURATION
            attributes = switch_attributes(key.api)
            yield Measurement(
                instrument=off_cpu if is_off_cpu else run_queue,
                attributes=attributes,
                source=key,
                value=aggregate,
            )
        case wire.METRIC_ASYNC_EVENT:
            attributes = ((semconv.VERBS_EVENT, event_name(key.copy_kind)),)
            instrument = semconv.METRIC_VERBS_ASYNC_EVENTS
            yield Measurement(instrument, attributes, source=key, value=aggregate.buckets[0])
        case wire.METRIC_FORK:
            yield Measurement(
                semconv.METRIC_PROCESS_FORKS, attributes=(), source=key, value=aggregate.buckets[0]
            )


def _outermost(series: Series, api: Api, attributes: Attributes) -> Iterator[Measurement]:
    key, aggregate = series.key, series.aggregate
    if instrument := semconv.COUNTS.get(api.name) or semconv.COUNTS.get(api.family):
        yield Measurement(instrument, attributes, source=key, value=aggregate.counted)
    if instrument := semconv.SUMS.get(api.name) or semconv.SUMS.get(api.family):
        yield Measurement(instrument, attributes, source=key, value=aggregate.size_bytes)
    if sign := _IN_USE_SIGN.get(api.family):
        instrument = semconv.METRIC_GPU_CUDA_MEMORY_IN_USE
        yield Measurement(instrument, attributes, source=key, value=sign * aggregate.size_bytes)
    if sign := _REGISTERED_SIGN.get(api.family):
        instrument = semconv.METRIC_VERBS_MEMORY_REGISTERED
        yield Measurement(instrument, attributes=(), source=key, value=sign * aggregate.size_bytes)


def measure_thread_times(times: Iterable[ThreadTime]) -> Iterator[Measurement]:
    """Yield ``gpu.cuda.thread.time`` of one process: time of its launching threads, by state."""
    for state, time_ns in budget_of(times).items():
        if time_ns:
            attributes = ((semconv.STATE, state),)
            yield Measurement(
                semconv.METRIC_GPU_CUDA_THREAD_TIME, attributes, source=state, value=time_ns
            )


def measure_open_call(call: OpenCallActivity) -> Measurement:
    """Return ``gpu.cuda.call.open.age`` of one call."""
    attributes = call_attributes(call.api, wire.COPY_NONE, 0, call.device)
    source = (call.event.tid, call.event.start_ktime_ns)
    age_ns = call.seen_unix_ns - call.start_unix_ns
    return Measurement(
        semconv.METRIC_GPU_CUDA_CALL_OPEN_AGE, attributes, source=source, value=age_ns
    )


def measure_memory(
    number: int, totals: MemoryTotals, device: DeviceIdentity | None
) -> Iterator[Measurement]:
    """Yield the figures of a framework's allocator, of one device of a process."""
    attributes = device_attributes(device)
    reports = totals.allocations + totals.frees
    for instrument, value in (
        (semconv.METRIC_GPU_MEMORY_ALLOCATED, totals.allocated_bytes),
        (semconv.METRIC_GPU_MEMORY_RESERVED, totals.reserved_bytes),
        (semconv.METRIC_GPU_MEMORY_PEAK, totals.peak_allocated_bytes),
    ):
        yield Measurement(instrument, attributes, source=number, value=value)
    if not reports:
        # Imported from another tool, which does not report what it missed.
        return
    coverage = 1 - min(totals.unequal, reports) / reports
    instrument = semconv.METRIC_OTEL_GPU_MEMORY_COVERAGE
    yield Measurement(instrument, attributes, source=number, value=coverage)
    for reason, size_bytes in (
        (DropReason.NOT_SAMPLED, totals.unsampled_bytes),
        ("rate", totals.rate_limited_bytes),
    ):
        instrument, reasons = semconv.METRIC_OTEL_GPU_MEMORY_UNPLACED, ((semconv.REASON, reason),)
        yield Measurement(
            instrument,
            attributes=(*reasons, *attributes),
            source=(number, reason),
            value=size_bytes,
        )


def measure_failures(number: int, count: int, device: DeviceIdentity | None) -> Measurement:
    """Return how many requests for memory of one device failed."""
    attributes = device_attributes(device)
    return Measurement(semconv.METRIC_GPU_MEMORY_FAILURES, attributes, source=number, value=count)


@remembered("attributes", 4096, 500)
def duration_of(
    api: Api, copy_kind: int, status: int, device: DeviceIdentity | None
) -> tuple[Instrument, Attributes]:
    """Return the histogram of a call's duration, and the attributes of its point."""
    if api.layer == wire.LAYER_VERBS:
        instrument = semconv.METRIC_VERBS_CALL_DURATION
        attributes: Attributes = ((semconv.VERBS_OPERATION, api.name),)
    elif api.layer == wire.LAYER_NCCL:
        instrument = semconv.METRIC_GPU_NCCL_CALL_DURATION
        operation = OPERATIONS.get(api.operation, api.name)
        attributes = ((semconv.GPU_NCCL_OPERATION, operation), *device_attributes(device))
    else:
        attributes = call_attributes(api, copy_kind, status, device)
        return semconv.METRIC_GPU_CUDA_CALL_DURATION, attributes
    if status:
        attributes += ((semconv.ERROR_TYPE, error_name(api.layer, status)),)
    return instrument, attributes


@remembered("attributes", 4096, 1_000)
def call_attributes(
    api: Api, copy_kind: int, status: int, device: DeviceIdentity | None
) -> Attributes:
    """Return the attributes of a call's duration point."""
    attributes: Attributes = (
        (semconv.GPU_CUDA_API, api.name),
        (semconv.GPU_CUDA_LAYER, api.layer_name),
    )
    attributes += _copy_attributes(copy_kind) + device_attributes(device)
    if status:
        attributes += ((semconv.ERROR_TYPE, error_name(api.layer, status)),)
    return attributes


def device_attributes(device: DeviceIdentity | None) -> Attributes:
    """Return a device's attributes, named as in OBI; unknown ones are omitted."""
    if device is None:
        return ()
    attributes: Attributes = ((semconv.CUDA_DEVICE_INDEX, device.index),)
    if device.uuid is not None:
        attributes += ((semconv.CUDA_DEVICE_UUID, device.uuid),)
    if device.model is not None:
        attributes += ((semconv.CUDA_DEVICE_MODEL, device.model),)
    return attributes


def _copy_attributes(copy_kind: int) -> Attributes:
    name = semconv.CUDA_MEMCPY_KIND_VALUES.get(copy_kind)
    return ((semconv.CUDA_MEMCPY_KIND, name),) if name is not None else ()


def switch_attributes(switch_type: int) -> Attributes:
    """Return whether a context switch was voluntary, if known."""
    name = semconv.PROCESS_CONTEXT_SWITCH_TYPE_VALUES.get(switch_type)
    return ((semconv.PROCESS_CONTEXT_SWITCH_TYPE, name),) if name is not None else ()
