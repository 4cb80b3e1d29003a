"""
Spans from activities.

Attributes without information are omitted: a size of 0, the default stream, an unknown device.

Some facts about calls that do not return -----------------------------------------

A span is exported when it ends, and a hung call never ends: the call that an operator must see
would be the one that is missing. So an open call is reported by a child span,
``gpu.cuda.call.open``, from the call's start to the check that saw it. The parent's id is known
before the parent exists (``enrich/ids.py``), so the trace becomes complete if the call returns.

The agent checks about once a second. A call that hangs for a day would make 86400 spans, so a call
is reported only when its age has doubled: 17 times for the day.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    END_OF,
    Activity,
    CallActivity,
    DeviceFaultActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    OutOfMemoryActivity,
    StallActivity,
)
from otel_gpu.enrich.cuda_errors import error_name
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.marks import RangeActivity, StepActivity
from otel_gpu.export import semconv
from otel_gpu.export.metrics.measures import call_attributes, device_attributes
from otel_gpu.export.metrics.steps import describe_slow
from otel_gpu.export.otlp.span_limits import SpanSizeLimits
from otel_gpu.export.resources import Origins
from otel_gpu.export.spans import descriptions
from otel_gpu.export.spans.descriptions import Pairs, add_account, add_thread
from otel_gpu.export.spans.device_faults import fault_span
from otel_gpu.export.spans.finished import (
    STATUS_ERROR,
    STATUS_UNSET,
    Attributes,
    AttributeValue,
    FinishedSpan,
    Origin,
    SharedAttributes,
)
from otel_gpu.export.spans.stack_events import NO_STACK, Stacks, StackTelemetry
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.steps import ThreadSteps
from otel_gpu.wire.events import CudaCall

_CHOICE_NAMES = tuple(semconv.OTEL_GPU_CHOICE_VALUES.items())
_OF_CALL = (
    semconv.OTEL_GPU_CALL_BLOCKED_TIME,
    semconv.OTEL_GPU_CALL_RUN_QUEUE_TIME,
    semconv.OTEL_GPU_CALL_VOLUNTARY_SWITCHES,
    semconv.OTEL_GPU_CALL_INVOLUNTARY_SWITCHES,
)
_OF_GAP = (
    semconv.OTEL_GPU_GAP_BLOCKED_TIME,
    semconv.OTEL_GPU_GAP_RUN_QUEUE_TIME,
    semconv.OTEL_GPU_GAP_VOLUNTARY_SWITCHES,
    semconv.OTEL_GPU_GAP_INVOLUNTARY_SWITCHES,
)
# CUDA's layers have the scope of most spans.
_SCOPES = {wire.LAYER_NCCL: semconv.SCOPE_NCCL, wire.LAYER_VERBS: semconv.SCOPE_VERBS}
_NO_DIMENSIONS = (0, 0, 0)
_OF_APPLICATION = (semconv.OTEL_GPU_PARENT_SOURCE, "thread_context")
_UNNAMED_RANGE = "range"
_MAX_CACHED = 4096
# About a kilobyte each.
_MAX_REPEATED = 2048
_STREAM = CudaCall._fields.index("stream")
# The fields from ``status_code`` to ``logs``, as nearly all spans have them.
_NOTHING_MORE = tuple(FinishedSpan._field_defaults.values())[:-1]
_new_tuple = tuple.__new__


class SpanBuilder:
    """Turns activities into finished spans."""

    def __init__(self, origins: Origins, limits: SpanSizeLimits, stacks: Stacks) -> None:
        self._limits = limits
        self._stacks = stacks
        self._origins = origins
        # The origin of the latest call's program.
        self._process: Program | None = None
        self._origin: Origin
        # Attributes of calls, by all that they depend on.
        self._repeated: dict[tuple[object, ...], Attributes] = {}
        self._steps = ThreadSteps()
        # Ages at which open calls are reported next, by the call's span id.
        self._open_due_ns: Fifo[bytes, int] = Fifo(_MAX_CACHED)
        self._builders: dict[type, Callable[[Any], tuple[FinishedSpan, ...]]] = {
            CallActivity: self._call,
            GapActivity: self._gap,
            StallActivity: self._stall,
            ForkActivity: self._fork,
            OpenCallActivity: self._open_call,
            DeviceFaultActivity: self._device_fault,
            OutOfMemoryActivity: self._out_of_memory,
            StepActivity: self._step,
            RangeActivity: self._range,
            ExitActivity: self._exit,
        }

    def spans(self, activity: Activity) -> tuple[FinishedSpan, ...]:
        """Return the spans of one activity."""
        build = self._builders.get(type(activity))
        if build is None:
            return ()
        spans = build(activity)
        if self._limits.may_cut:
            spans = tuple(map(self._limits.apply, spans))
        return spans

    def _call(self, activity: CallActivity) -> tuple[FinishedSpan, ...]:
        # Unpacked at once: access to each field by name takes longer than the rest of this
        # function.
        process, event, api, start_unix_ns, end_unix_ns, device, stack, kernel, *ids = activity
        more: tuple[object, ...] = _NOTHING_MORE
        is_nccl = api.layer == wire.LAYER_NCCL
        # Collectives are numbered, so they do not repeat.
        if event.blocked_ns or event.run_queue_ns or event.status or stack is not None or is_nccl:
            written = self._stacks.of(stack, end_unix_ns)
            attributes = self._describe_call(activity, written.pairs)
            code, message = STATUS_UNSET, ""
            if event.status:
                code = STATUS_ERROR
                message = f"{api.name} returned {error_name(api.layer, event.status)}"
            more = (code, message, written.events, (), 0, 0, 0, written.logs)
        else:
            # A program makes the same few calls from the same few threads. All fields that the
            # attributes depend on are in the event from ``stream`` on, except those named here.
            # From the second time on the attributes are one object.
            has_parent = bool(ids[2])
            key = (device, event.tid, event.size_bytes, kernel, has_parent, event[_STREAM:])
            known = self._repeated.get(key)
            if known is None:
                if len(self._repeated) >= _MAX_REPEATED:
                    self._repeated.clear()
                known = self._repeated[key] = self._describe_call(activity, ())
            elif type(known) is tuple:
                known = self._repeated[key] = SharedAttributes(known)
            attributes = known
        if self._open_due_ns:
            self._open_due_ns.pop(activity.span_id, None)
        if process is not self._process:
            self._process = process
            self._origin = self._origins.of(process)[semconv.SCOPE_CUDA]
        times = (start_unix_ns, end_unix_ns)
        scope = _SCOPES.get(api.layer)
        origin = self._origin if scope is None else self._origins.of(process)[scope]
        span = (origin, *ids, api.name, *times, attributes, *more, event.tid)
        # As FinishedSpan(…), which takes three times as long.
        return (_new_tuple(FinishedSpan, span),)

    def _describe_call(self, activity: CallActivity, stack: Attributes) -> Attributes:
        event = activity.event
        pairs: Pairs = list(call_attributes(activity.api, event.copy_kind, 0, activity.device))
        if event.stream:
            pairs.append((semconv.GPU_CUDA_STREAM, descriptions.signed(event.stream)))
        if event.size_bytes:
            pairs.append((semconv.GPU_CUDA_SIZE, descriptions.signed(event.size_bytes)))
        is_nccl = activity.api.layer == wire.LAYER_NCCL
        pairs.extend(
            descriptions.describe_collective(event) if is_nccl else _describe_kernel(activity)
        )
        if event.status:
            pairs.append((semconv.GPU_CUDA_RESULT, event.status))
            pairs.append((semconv.ERROR_TYPE, error_name(activity.api.layer, event.status)))
        add_account(pairs, event, _OF_CALL)
        if event.choices:
            pairs.append((semconv.OTEL_GPU_CHOICE, _choice_names(event.choices)))
        if event.weight > 1:
            pairs.append((semconv.OTEL_GPU_SAMPLE_WEIGHT, event.weight))
        if activity.parent_span_id and not event.parent_start_ktime_ns:
            pairs.append(_OF_APPLICATION)
        pairs.extend(stack)
        add_thread(pairs, event.tid, comm=event.comm, cpu=event.cpu)
        return tuple(pairs)

    def _open_call(self, activity: OpenCallActivity) -> tuple[FinishedSpan, ...]:
        event = activity.event
        age_ns = event.ktime_ns - event.start_ktime_ns
        call_id = activity.parent_span_id
        if age_ns < self._open_due_ns.get(call_id, 0):
            return ()
        self._open_due_ns[call_id] = 2 * age_ns
        pairs: Pairs = list(call_attributes(activity.api, wire.COPY_NONE, 0, activity.device))
        if event.began_before_capture:
            pairs.append((semconv.OTEL_GPU_CALL_BEGAN_BEFORE_CAPTURE, True))
        add_account(pairs, event, _OF_CALL)
        stack = self._stacks.of(activity.stack, activity.seen_unix_ns)
        pairs.extend(stack.pairs)
        add_thread(pairs, event.tid, event.comm)
        return self._span(
            activity, semconv.SCOPE_CUDA, name=semconv.SPAN_OPEN_CALL, pairs=pairs, stack=stack
        )

    def _out_of_memory(self, activity: OutOfMemoryActivity) -> tuple[FinishedSpan, ...]:
        event, api = activity.event, activity.api
        stack = self._stacks.of(activity.stack, activity.unix_ns)
        pairs = descriptions.describe_failure(event, api, stack.pairs)
        pairs += device_attributes(activity.device)
        size_bytes = descriptions.signed(event.asked_bytes)
        span = FinishedSpan(
            origin=self._origins.of(activity.process)[semconv.SCOPE_CUDA],
            trace_id=activity.trace_id,
            span_id=activity.span_id,
            parent_span_id=activity.parent_span_id,
            name=semconv.SPAN_OUT_OF_MEMORY,
            start_unix_ns=activity.unix_ns,
            end_unix_ns=activity.unix_ns,
            attributes=pairs,
            status_code=STATUS_ERROR,
            status_message=f"a request for {size_bytes:,} bytes of device memory failed",
            events=stack.events,
            logs=stack.logs,
            tid=event.tid,
        )
        return (span,)

    def _step(self, activity: StepActivity) -> tuple[FinishedSpan, ...]:
        slow = self._steps.observe(activity)
        # The program sends its own span of the step.
        if slow is None or activity.event.span_id:
            return ()
        return self._span(
            activity, semconv.SCOPE_CUDA, name=semconv.SPAN_SLOW_STEP, pairs=describe_slow(slow)
        )

    def _range(self, activity: RangeActivity) -> tuple[FinishedSpan, ...]:
        event = activity.event
        pairs: Pairs = []
        if event.domain:
            pairs.append((semconv.GPU_NVTX_DOMAIN, event.domain))
        if kind := semconv.GPU_NVTX_RANGE_KIND_VALUES.get(event.range_kind):
            pairs.append((semconv.GPU_NVTX_RANGE_KIND, kind))
        if event.start_tid != event.tid:
            pairs.append((semconv.GPU_NVTX_RANGE_START_TID, event.start_tid))
        add_thread(pairs, event.tid, event.comm)
        return self._span(
            activity, semconv.SCOPE_NVTX, name=event.name or _UNNAMED_RANGE, pairs=pairs
        )

    def _device_fault(self, activity: DeviceFaultActivity) -> tuple[FinishedSpan, ...]:
        if activity.process is None:
            return ()
        origin = self._origins.of(activity.process)[semconv.SCOPE_HARDWARE]
        return (fault_span(activity, origin),)

    def _gap(self, activity: GapActivity) -> tuple[FinishedSpan, ...]:
        event = activity.event
        pairs: Pairs = [
            (semconv.OTEL_GPU_GAP_PREVIOUS_API, activity.previous_api.name),
            (semconv.OTEL_GPU_GAP_NEXT_API, activity.next_api.name),
        ]
        pairs.extend(device_attributes(activity.device))
        add_account(pairs, event, _OF_GAP)
        if event.choices:
            pairs.append((semconv.OTEL_GPU_CHOICE, _choice_names(event.choices)))
        if activity.parent_span_id:
            pairs.append(_OF_APPLICATION)
        add_thread(pairs, event.tid, event.comm)
        return self._span(activity, semconv.SCOPE_CUDA, name=semconv.SPAN_LAUNCH_GAP, pairs=pairs)

    def _stall(self, activity: StallActivity) -> tuple[FinishedSpan, ...]:
        return tuple(self._stall_parts(activity))

    def _stall_parts(self, activity: StallActivity) -> Iterator[FinishedSpan]:
        event = activity.event
        origin = self._origins.of(activity.process)[semconv.SCOPE_SCHED]
        trace_id, parent_id = activity.trace_id, activity.parent_span_id
        # Inside a call or a gap, that is the parent.
        inside = event.call_start_ktime_ns or event.root_start_ktime_ns
        source = (_OF_APPLICATION,) if parent_id and not inside else ()
        runnable_unix_ns = activity.runnable_unix_ns
        if runnable_unix_ns > activity.start_unix_ns:
            name = semconv.SPAN_BLOCKED
            # The stack is from the time when the thread left the CPU.
            stack = self._stacks.of(activity.stack, activity.start_unix_ns)
            pairs = descriptions.describe_blocked(activity, stack.pairs) + source
            times = (activity.start_unix_ns, runnable_unix_ns)
            ids = (trace_id, activity.span_id, parent_id)
            span = FinishedSpan(origin, *ids, name, *times, pairs, tid=event.tid)
            yield span._replace(events=stack.events, logs=stack.logs) if stack.pairs else span
        if activity.end_unix_ns > runnable_unix_ns:
            name = semconv.SPAN_RUN_QUEUE_WAIT
            pairs = descriptions.describe_run_queue_wait(event) + source
            times = (runnable_unix_ns, activity.end_unix_ns)
            ids = (trace_id, activity.run_queue_span_id, parent_id)
            yield FinishedSpan(origin, *ids, name, *times, pairs, tid=event.tid)

    def _fork(self, activity: ForkActivity) -> tuple[FinishedSpan, ...]:
        event = activity.event
        child = activity.child.attributes
        pairs: Pairs = [(semconv.OTEL_GPU_FORK_CHILD_PID, event.child_pid)]
        if name := child.get(SERVICE_NAME):
            pairs.append((semconv.OTEL_GPU_FORK_CHILD_SERVICE_NAME, name))
        if command := child.get("process.command"):
            pairs.append((semconv.OTEL_GPU_FORK_CHILD_COMMAND, command))
        if activity.parent_span_id and not event.call_start_ktime_ns:
            pairs.append(_OF_APPLICATION)
        add_thread(pairs, event.tid, event.comm)
        return self._span(activity, semconv.SCOPE_PROCESS, name=semconv.SPAN_FORK, pairs=pairs)

    def _span(
        self,
        activity: GapActivity | ForkActivity | OpenCallActivity | StepActivity | RangeActivity,
        scope: str,
        name: str,
        pairs: Pairs,
        stack: StackTelemetry = NO_STACK,
    ) -> tuple[FinishedSpan, ...]:
        span = FinishedSpan(
            origin=self._origins.of(activity.process)[scope],
            trace_id=activity.trace_id,
            span_id=activity.span_id,
            parent_span_id=activity.parent_span_id,
            name=name,
            start_unix_ns=activity.start_unix_ns,
            end_unix_ns=END_OF[type(activity)](activity),
            attributes=tuple(pairs),
            events=stack.events,
            logs=stack.logs,
            tid=activity.event.tid,
        )
        return (span,)

    def _exit(self, activity: ExitActivity) -> tuple[FinishedSpan, ...]:
        self._origins.forget(activity.process)
        self._process = None
        return ()


def _describe_kernel(activity: CallActivity) -> Iterator[tuple[str, AttributeValue]]:
    event = activity.event
    if event.function:
        yield semconv.GPU_CUDA_KERNEL_FUNCTION, hex(event.function)
    if activity.kernel:
        yield semconv.GPU_CUDA_KERNEL_NAME, activity.kernel
    if event.grid != _NO_DIMENSIONS:
        yield semconv.GPU_CUDA_KERNEL_GRID, event.grid
        yield semconv.GPU_CUDA_KERNEL_BLOCK, event.block


@lru_cache(maxsize=len(_CHOICE_NAMES) ** 2)
def _choice_names(choices: int) -> tuple[str, ...]:
    return tuple(name for bit, name in _CHOICE_NAMES if choices & bit)
