"""
A process's work on one device as a trace: the run, its steps, and the long parts of each.

    gpu.run            |===================================|
      gpu.step         |================|
        gpu.phase      |=====|                a named range of the program, on the host
        gpu.idle             |====|           with its cause
        gpu.kernel                |=====|     also gpu.copy, gpu.fill, gpu.graph
      gpu.step                          |==================|

Times are the file's.
"""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from otel_gpu import wire
from otel_gpu.enrich import ids
from otel_gpu.enrich.identity.identities import DeviceIdentity
from otel_gpu.explain.traces.device_use import DeviceUse, place_of
from otel_gpu.explain.traces.idle_causes import IdleCause
from otel_gpu.export import semconv
from otel_gpu.export.metrics.measures import device_attributes
from otel_gpu.export.metrics.points import Attributes
from otel_gpu.export.spans.descriptions import Pairs, add_thread
from otel_gpu.export.spans.device_parts import NO_STEP, StepPart, choose_parts
from otel_gpu.export.spans.finished import FinishedSpan, Origin
from otel_gpu.state.traces.device_steps import counted
from otel_gpu.state.traces.device_time import Phases
from otel_gpu.state.traces.kernel_kinds import copy_way
from otel_gpu.wire.device_activity import Work

MAX_SPANS: Final = 2_000
"""Of a file, with all its processes and devices."""

_NS_PER_SECOND = 1_000_000_000
_LAST_UNIX_NS = (1 << 63) - 1
_NAMES: Mapping[Work, str] = {
    Work.KERNEL: semconv.SPAN_KERNEL,
    Work.COPY: semconv.SPAN_COPY,
    Work.FILL: semconv.SPAN_FILL,
    Work.GRAPH: semconv.SPAN_GRAPH,
}
_COPY_KINDS: Mapping[str, int] = {
    "HtoH": wire.COPY_HOST_TO_HOST,
    "HtoD": wire.COPY_HOST_TO_DEVICE,
    "DtoH": wire.COPY_DEVICE_TO_HOST,
    "DtoD": wire.COPY_DEVICE_TO_DEVICE,
}
_LEFT_OUT: Mapping[str, str] = {
    "steps": semconv.OTEL_GPU_STEPS_LEFT_OUT,
    "phases": semconv.OTEL_GPU_PHASES_LEFT_OUT,
    "gaps": semconv.OTEL_GPU_GAPS_LEFT_OUT,
    "work": semconv.OTEL_GPU_WORK_LEFT_OUT,
}


def run_spans(use: DeviceUse, origin: Origin, seed: bytes, most: int) -> Iterator[FinishedSpan]:
    """
    Yield the spans of a process's work on one device, parents first.

    Args:
        use: Process and device.
        origin: Of all spans.
        seed: ``ids.capture_seed`` of the import.
        most: The limit of spans, at least one.
    """
    return _RunSpans(use, origin, seed=seed, most=most).build()


def device_pairs(use: DeviceUse) -> Attributes:
    """Return the attributes that identify a device; unknown ones are omitted."""
    if use.device < 0:
        return ()
    return device_attributes(DeviceIdentity(use.device, None, use.model.name or None))


class _RunSpans:
    def __init__(self, use: DeviceUse, origin: Origin, seed: bytes, most: int) -> None:
        self._use, self._origin = use, origin
        self._trace_id, self._span_id = ids.run_ids(seed, use.trace.source, use.device)
        self._device = device_pairs(use)
        self._parts = choose_parts(use, most - 1)

    def build(self) -> Iterator[FinishedSpan]:
        yield self._run()
        for number in self._parts.steps:
            yield self._step(number)
        for part in self._parts.phases:
            yield self._below(
                part, kind=b"phase", name=semconv.SPAN_PHASE, pairs=self._describe_phase(part.row)
            )
        for part in self._parts.gaps:
            pairs = self._describe_gap(part.row)
            yield self._below(
                part, kind=b"idle", name=semconv.SPAN_IDLE, pairs=[*pairs, *self._device]
            )
        for part in self._parts.work:
            work = Work(self._use.trace.activities.kinds[part.row])
            pairs = self._describe_work(work, part.row)
            yield self._below(part, kind=b"work", name=_NAMES[work], pairs=[*pairs, *self._device])

    def _run(self) -> FinishedSpan:
        use, trace = self._use, self._use.trace
        pairs: Pairs = [
            (semconv.OTEL_GPU_SOURCE_NAME, trace.source),
            (semconv.OTEL_GPU_SOURCE_TOOL, trace.tool),
            (semconv.OTEL_GPU_VERDICT, use.verdict.verdict),
        ]
        if use.health:
            pairs.append((semconv.OTEL_GPU_FAULTS, tuple(str(one.fault) for one in use.health)))
        if not trace.is_dated:
            pairs.append((semconv.OTEL_GPU_TIMES_ESTIMATED, True))
        pairs.append((semconv.OTEL_GPU_STEP_COUNT, len(use.steps)))
        if steps := counted(use.steps):
            median_ns = median(step.duration_ns for step in steps)
            pairs.append((semconv.OTEL_GPU_STEP_MEDIAN_TIME, median_ns / _NS_PER_SECOND))
        pairs += self._describe_time(use.phases, use.idle_ns)
        left_out = self._parts.left_out
        pairs += [(name, left_out[what]) for what, name in _LEFT_OUT.items() if left_out[what]]
        start_ns, end_ns = use.start_ns, use.start_ns + use.phases.window_ns
        if use.steps:
            # The host begins before its device, and can end after it.
            start_ns = min(start_ns, use.steps[0].start_ns)
            end_ns = max(end_ns, use.steps[-1].end_ns)
        whole = (start_ns, end_ns)
        return self._span(
            self._span_id,
            parent_id=b"",
            name=semconv.SPAN_RUN,
            times_ns=whole,
            pairs=[*pairs, *self._device],
        )

    def _step(self, number: int) -> FinishedSpan:
        step = self._use.steps[number]
        pairs: Pairs = [(semconv.OTEL_GPU_STEP_NAME, step.name)]
        if step.set_aside:
            pairs.append((semconv.OTEL_GPU_STEP_SET_ASIDE, step.set_aside))
        pairs += self._describe_time(step.phases, self._parts.idle_ns.get(number, {}))
        own_id, times = self._step_id(number), (step.start_ns, step.end_ns)
        pairs += self._device
        return self._span(
            own_id, parent_id=self._span_id, name=semconv.SPAN_STEP, times_ns=times, pairs=pairs
        )

    def _step_id(self, number: int) -> bytes:
        if number == NO_STEP:
            return self._span_id
        return ids.run_part_span_id(self._span_id, b"step", number)

    def _below(self, part: StepPart, kind: bytes, name: str, pairs: Pairs) -> FinishedSpan:
        own_id = ids.run_part_span_id(self._span_id, kind, part.row)
        times = (part.start_ns, part.start_ns + part.duration_ns)
        return self._span(
            own_id, parent_id=self._step_id(part.step), name=name, times_ns=times, pairs=pairs
        )

    def _span(
        self, own_id: bytes, parent_id: bytes, name: str, times_ns: tuple[int, int], pairs: Pairs
    ) -> FinishedSpan:
        base_ns = self._use.trace.base_unix_ns
        # A file can contain any time.
        start_unix_ns, end_unix_ns = (min(max(0, base_ns + at), _LAST_UNIX_NS) for at in times_ns)
        return FinishedSpan(
            origin=self._origin,
            trace_id=self._trace_id,
            span_id=own_id,
            parent_span_id=parent_id,
            name=name,
            start_unix_ns=start_unix_ns,
            end_unix_ns=end_unix_ns,
            attributes=tuple(pairs),
        )

    def _describe_time(self, phases: Phases, idle_ns: Mapping[IdleCause, int]) -> Pairs:
        times_ns = {
            semconv.OTEL_GPU_COMPUTE_TIME: phases.compute_ns,
            semconv.OTEL_GPU_COMMUNICATION_TIME: phases.exposed_communication_ns,
            semconv.OTEL_GPU_COPY_TIME: phases.exposed_copy_ns,
        }
        if self._use.knows_idle:
            times_ns[semconv.OTEL_GPU_IDLE_TIME] = phases.idle_ns
        pairs: Pairs = [(name, time_ns / _NS_PER_SECOND) for name, time_ns in times_ns.items()]
        if self._use.is_reliable and idle_ns:
            cause = max(idle_ns, key=lambda one: idle_ns[one])
            # Before the first activity of a device, the cause of its idle time is unknown.
            if idle_ns[cause] >= phases.idle_ns - sum(idle_ns.values()):
                pairs.append((semconv.OTEL_GPU_IDLE_CAUSE, str(cause)))
        return pairs

    def _describe_phase(self, row: int) -> Pairs:
        trace = self._use.trace
        thread = trace.threads[trace.host.threads[row]]
        pairs: Pairs = [(semconv.OTEL_GPU_PHASE_NAME, trace.names[trace.host.names[row]])]
        add_thread(pairs, thread.tid, thread.name)
        return pairs

    def _describe_gap(self, number: int) -> Pairs:
        if not self._use.is_reliable:
            return []
        place = place_of(self._use.trace, self._use.every_gap[number])
        texts = {
            semconv.OTEL_GPU_IDLE_CAUSE: str(place.cause),
            semconv.OTEL_GPU_HOST_OPERATION: place.name,
            semconv.OTEL_GPU_HOST_FUNCTION: place.python,
        }
        return [(name, text) for name, text in texts.items() if text]

    def _describe_work(self, work: Work, row: int) -> Pairs:
        trace, activities = self._use.trace, self._use.trace.activities
        number, stream = activities.names[row], activities.streams[row]
        name = trace.names[number]
        pairs: Pairs = [(semconv.OTEL_GPU_WORK_KIND, str(self._use.kinds[number]))]
        if work is Work.KERNEL and name:
            pairs.append((semconv.GPU_CUDA_KERNEL_NAME, name))
        if work is Work.COPY and (kind := _COPY_KINDS.get(copy_way(name))) is not None:
            pairs.append((semconv.CUDA_MEMCPY_KIND, semconv.CUDA_MEMCPY_KIND_VALUES[kind]))
        if size_bytes := activities.sizes_bytes[row]:
            pairs.append((semconv.GPU_CUDA_SIZE, size_bytes))
        if stream >= 0:
            pairs.append((semconv.OTEL_GPU_STREAM, stream))
        return pairs
