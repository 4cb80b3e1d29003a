"""A process's work on one device as metrics: of its whole window, complete."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from otel_gpu import wire
from otel_gpu.explain.traces.device_use import DeviceUse
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.export.semconv import Instrument
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.wire.readings import Aggregate


def measure_run(
    use: DeviceUse, device: Attributes, bounds_ns: Sequence[int]
) -> Iterator[Measurement]:
    """
    Yield the measurements of one device.

    Args:
        use: Process and device.
        device: Attributes of the device.
        bounds_ns: Upper bounds of the buckets of durations.
    """

    def measurement(
        instrument: Instrument, value: int | Aggregate, *labels: tuple[str, str]
    ) -> Measurement:
        return Measurement(
            instrument, attributes=(*labels, *device), source=(use.device, *labels), value=value
        )

    phases = use.phases
    states = {
        "compute": phases.compute_ns,
        "communication": phases.exposed_communication_ns,
        "memcpy": phases.exposed_copy_ns,
    }
    if use.knows_idle:
        states["idle"] = phases.idle_ns
    for state, time_ns in states.items():
        yield measurement(semconv.METRIC_GPU_DEVICE_TIME, time_ns, (semconv.STATE, state))
    for cause, time_ns in use.idle_ns.items() if use.is_reliable else ():
        labels = (semconv.OTEL_GPU_IDLE_CAUSE, str(cause))
        yield measurement(semconv.METRIC_GPU_DEVICE_IDLE_TIME, time_ns, labels)
    activities = use.trace.activities
    by_kind: dict[KernelKind, array[int]] = {}
    for row in use.timeline.rows:
        durations_ns = by_kind.setdefault(use.kinds[activities.names[row]], array("q"))
        durations_ns.append(activities.durations_ns[row])
    for kind, durations_ns in by_kind.items():
        labels = (semconv.OTEL_GPU_WORK_KIND, str(kind))
        counted = _aggregate(durations_ns, bounds_ns)
        yield measurement(semconv.METRIC_GPU_DEVICE_WORK_DURATION, counted, labels)
    if use.launches.delays_ns:
        counted = _aggregate(use.launches.delays_ns, bounds_ns)
        yield measurement(semconv.METRIC_GPU_DEVICE_LAUNCH_DELAY, counted)


def _aggregate(durations_ns: Iterable[int], bounds_ns: Sequence[int]) -> Aggregate:
    buckets = [0] * wire.MAX_BUCKETS
    total_ns = longest_ns = 0
    shortest_ns: int | None = None
    for duration_ns in durations_ns:
        buckets[min(bisect_left(bounds_ns, duration_ns), wire.MAX_BUCKETS - 1)] += 1
        total_ns += duration_ns
        longest_ns = max(longest_ns, duration_ns)
        shortest_ns = duration_ns if shortest_ns is None else min(shortest_ns, duration_ns)
    return Aggregate(
        sum=total_ns, min=shortest_ns or 0, max=longest_ns, size_bytes=0, buckets=tuple(buckets)
    )
