"""
GENERATED from otel_gpu/export/semconv.yaml by tools/generate_semconv.py. Do not edit.

Attribute keys are plain strings; ``*_VALUES`` says what a wire number is called in
telemetry; ``COUNTS`` and ``SUMS`` by family or API say which metric is the number of calls, or
their bytes. What each name means is in the YAML and in docs/metrics.md.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu import wire


class Instrument(NamedTuple):
    """A metric: its name and what goes with it on the wire."""

    name: str
    kind: str
    unit: str
    description: str
    scope: str


SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# Scopes
SCOPE_CUDA = "otel_gpu.cuda"
SCOPE_SCHED = "otel_gpu.sched"
SCOPE_PROCESS = "otel_gpu.process"
SCOPE_CAUSAL = "otel_gpu.causal"
SCOPE_AGENT = "otel_gpu.agent"

# Attributes
GPU_CUDA_API = "gpu.cuda.api"
GPU_CUDA_LAYER = "gpu.cuda.layer"
GPU_CUDA_STREAM = "gpu.cuda.stream"
GPU_CUDA_RESULT = "gpu.cuda.result"
GPU_CUDA_SIZE = "gpu.cuda.size"
GPU_CUDA_KERNEL_FUNCTION = "gpu.cuda.kernel.function"
GPU_CUDA_KERNEL_GRID = "gpu.cuda.kernel.grid"
GPU_CUDA_KERNEL_BLOCK = "gpu.cuda.kernel.block"
CUDA_MEMCPY_KIND = "cuda.memcpy.kind"
CUDA_DEVICE_INDEX = "cuda.device.index"
CUDA_DEVICE_UUID = "cuda.device.uuid"
CUDA_DEVICE_MODEL = "cuda.device.model"
ERROR_TYPE = "error.type"
OTEL_GPU_CALL_BLOCKED_TIME = "otel_gpu.call.blocked.time"
OTEL_GPU_CALL_RUN_QUEUE_TIME = "otel_gpu.call.run_queue.time"
OTEL_GPU_CALL_VOLUNTARY_SWITCHES = "otel_gpu.call.voluntary_switches"
OTEL_GPU_CALL_INVOLUNTARY_SWITCHES = "otel_gpu.call.involuntary_switches"
OTEL_GPU_GAP_PREVIOUS_API = "otel_gpu.gap.previous_api"
OTEL_GPU_GAP_NEXT_API = "otel_gpu.gap.next_api"
OTEL_GPU_GAP_BLOCKED_TIME = "otel_gpu.gap.blocked.time"
OTEL_GPU_GAP_RUN_QUEUE_TIME = "otel_gpu.gap.run_queue.time"
OTEL_GPU_GAP_VOLUNTARY_SWITCHES = "otel_gpu.gap.voluntary_switches"
OTEL_GPU_GAP_INVOLUNTARY_SWITCHES = "otel_gpu.gap.involuntary_switches"
OTEL_GPU_CHOICE = "otel_gpu.choice"
OTEL_GPU_SAMPLE_WEIGHT = "otel_gpu.sample.weight"
OTEL_GPU_THREAD_TID = "otel_gpu.thread.tid"
THREAD_NAME = "thread.name"
CPU_LOGICAL_NUMBER = "cpu.logical_number"
PROCESS_CONTEXT_SWITCH_TYPE = "process.context_switch.type"
OTEL_GPU_STALL_REASON = "otel_gpu.stall.reason"
OTEL_GPU_KERNEL_FUNCTIONS = "otel_gpu.kernel.functions"
OTEL_GPU_CPU_IDLE = "otel_gpu.cpu.idle"
OTEL_GPU_CULPRIT_PID = "otel_gpu.culprit.pid"
OTEL_GPU_CULPRIT_TID = "otel_gpu.culprit.tid"
OTEL_GPU_CULPRIT_STATE = "otel_gpu.culprit.state"
OTEL_GPU_CULPRIT_COMM = "otel_gpu.culprit.comm"
OTEL_GPU_WAKER_PID = "otel_gpu.waker.pid"
OTEL_GPU_WAKER_TID = "otel_gpu.waker.tid"
OTEL_GPU_WAKER_COMM = "otel_gpu.waker.comm"
CODE_FUNCTION_NAME = "code.function.name"
CODE_FILE_PATH = "code.file.path"
CODE_LINE_NUMBER = "code.line.number"
CODE_STACKTRACE = "code.stacktrace"
OTEL_GPU_STACK_ID = "otel_gpu.stack.id"
OTEL_GPU_STACK_COMPLETE = "otel_gpu.stack.complete"
OTEL_GPU_STACK_FRAME_TYPES = "otel_gpu.stack.frame_types"
OTEL_GPU_FORK_CHILD_PID = "otel_gpu.fork.child.pid"
OTEL_GPU_FORK_CHILD_SERVICE_NAME = "otel_gpu.fork.child.service_name"
OTEL_GPU_FORK_CHILD_COMMAND = "otel_gpu.fork.child.command"
OTEL_GPU_EFFECT_KIND = "otel_gpu.effect.kind"
OTEL_GPU_EXCESS_TIME = "otel_gpu.excess.time"
OTEL_GPU_SEVERITY = "otel_gpu.severity"
OTEL_GPU_CAUSE_KIND = "otel_gpu.cause.kind"
OTEL_GPU_CAUSE_TIME = "otel_gpu.cause.time"
OTEL_GPU_CAUSE_SHARE = "otel_gpu.cause.share"
OTEL_GPU_CAUSE_SPAN_ID = "otel_gpu.cause.span_id"
OTEL_GPU_CAUSE_DROPPED = "otel_gpu.cause.dropped"
OTEL_GPU_UNEXPLAINED_SHARE = "otel_gpu.unexplained.share"
OTEL_GPU_UNEXPLAINED_TIME = "otel_gpu.unexplained.time"
OTEL_GPU_LOST_TIME = "otel_gpu.lost.time"
OTEL_GPU_INCIDENT_EFFECTS = "otel_gpu.incident.effects"
OTEL_GPU_ADVICE = "otel_gpu.advice"
STATE = "state"
REASON = "reason"
OTEL_GPU_PROBE_TYPE = "otel_gpu.probe.type"
OTEL_GPU_SPAN_SOURCE = "otel_gpu.span.source"
OTEL_GPU_PLACE = "otel_gpu.place"
OTEL_GPU_LIBRARY_PATH = "otel_gpu.library.path"
OTEL_METRIC_OVERFLOW = "otel.metric.overflow"

GPU_CUDA_LAYER_VALUES: Mapping[int, str] = {
    wire.LAYER_RUNTIME: "runtime",
    wire.LAYER_DRIVER: "driver",
}

CUDA_MEMCPY_KIND_VALUES: Mapping[int, str] = {
    wire.COPY_HOST_TO_HOST: "MemcpyHostToHost",
    wire.COPY_HOST_TO_DEVICE: "MemcpyHostToDevice",
    wire.COPY_DEVICE_TO_HOST: "MemcpyDeviceToHost",
    wire.COPY_DEVICE_TO_DEVICE: "MemcpyDeviceToDevice",
    wire.COPY_DEFAULT: "MemcpyDefault",
}

OTEL_GPU_CHOICE_VALUES: Mapping[int, str] = {
    wire.CHOICE_FAILED: "failed",
    wire.CHOICE_SLOW: "slow",
    wire.CHOICE_SAMPLED: "sampled",
    wire.CHOICE_FULL: "full",
    wire.CHOICE_STALLED: "stalled",
    wire.CHOICE_PARENT: "parent",
}

PROCESS_CONTEXT_SWITCH_TYPE_VALUES: Mapping[int, str] = {
    wire.SWITCH_VOLUNTARY: "voluntary",
    wire.SWITCH_INVOLUNTARY: "involuntary",
}

REASON_VALUES: Mapping[int, str] = {
    wire.COUNTER_LOST_RING_FULL: "ring_full",
    wire.COUNTER_LOST_SERIES_FULL: "series_full",
    wire.COUNTER_LOST_THREADS_FULL: "threads_full",
    wire.COUNTER_LOST_PROCESSES_FULL: "processes_full",
    wire.COUNTER_LOST_NO_ENTRY: "no_entry",
    wire.COUNTER_LOST_NO_RETURN: "no_return",
    wire.COUNTER_LOST_DEPTH_EXCEEDED: "depth_exceeded",
    wire.COUNTER_LOST_READ_FAULT: "read_fault",
    wire.COUNTER_LOST_LIFECYCLE_RING_FULL: "lifecycle_ring_full",
    wire.COUNTER_LOST_EXIT_INSIDE_CALL: "exit_inside_call",
    wire.COUNTER_SPANS_WITHHELD_RATE: "rate",
    wire.COUNTER_LOST_STACK: "stacks_full",
    wire.COUNTER_LOST_TIMES_FULL: "times_full",
    wire.COUNTER_LOST_SAMPLE: "sample",
    wire.COUNTER_LOST_PYTHON: "python_frames",
    wire.COUNTER_SAMPLES_WITHHELD: "rate",
    wire.COUNTER_LOST_INTERPRETERS_FULL: "interpreters_full",
    wire.COUNTER_LOST_ALLOCATIONS_FULL: "allocations_full",
    wire.COUNTER_LOST_UNKNOWN_FREE: "unknown_free",
}

OTEL_GPU_PROBE_TYPE_VALUES: Mapping[int, str] = {
    wire.COUNTER_PROBE_ENTRIES: "entry",
    wire.COUNTER_PROBE_RETURNS: "return",
    wire.COUNTER_SCHEDULER_SWITCHES: "sched_switch",
}

OTEL_GPU_SPAN_SOURCE_VALUES: Mapping[int, str] = {
    wire.COUNTER_SPANS_CHOSEN: "call",
    wire.COUNTER_STALLS_CHOSEN: "stall",
    wire.COUNTER_GAPS_CHOSEN: "gap",
}

# Spans that are not named after an API
SPAN_OPEN_CALL = "gpu.cuda.call.open"
SPAN_LAUNCH_GAP = "gpu.launch_gap"
SPAN_BLOCKED = "sched.blocked"
SPAN_RUN_QUEUE_WAIT = "sched.run_queue_wait"
SPAN_OFF_CPU = "sched.off_cpu"
SPAN_FORK = "process.fork"
SPAN_CAUSAL_CHAIN = "gpu.causal_chain"
SPAN_CAUSE_PREFIX = "gpu.cause."
SPAN_CAUSE_BLOCKED = "sched.blocked"
SPAN_CAUSE_RUN_QUEUE_WAIT = "sched.run_queue_wait"
SPAN_CAUSE_OFF_CPU = "sched.off_cpu"
SPAN_INCIDENT = "gpu.incident"

# Events of spans, and log records
EVENT_STACK = "stack"
EVENT_CAUSE = "gpu.cause"
LOG_STACK = "otel_gpu.stack"

# Metrics
METRIC_GPU_CUDA_CALL_DURATION = Instrument(
    "gpu.cuda.call.duration",
    "histogram",
    "s",
    "Host time from the entry of a CUDA call to its return. Not time on the device.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_LAUNCH_GAP = Instrument(
    "gpu.cuda.launch.gap",
    "histogram",
    "s",
    "Time of a thread between the return of its last CUDA call and the entry of a launch.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_THREAD_TIME = Instrument(
    "gpu.cuda.thread.time",
    "counter",
    "s",
    "Time of threads that make CUDA calls, by what they did with it. Sums to wall time.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_THREAD_STALL_TIME = Instrument(
    "gpu.cuda.thread.stall.time",
    "counter",
    "s",
    "Time that threads that make CUDA calls were kept from going on, by who kept them and what that one did meanwhile.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_CALL_OPEN_AGE = Instrument(
    "gpu.cuda.call.open.age",
    "gauge",
    "s",
    "Age of the longest-open CUDA call that has not returned for longer than the limit.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_KERNEL_LAUNCH_CALLS = Instrument(
    "gpu.cuda.kernel.launch.calls", "counter", "", "Kernel launches.", SCOPE_CUDA
)
METRIC_GPU_CUDA_GRAPH_LAUNCH_CALLS = Instrument(
    "gpu.cuda.graph.launch.calls", "counter", "", "Graph launches.", SCOPE_CUDA
)
METRIC_GPU_CUDA_MEMORY_ALLOCATIONS = Instrument(
    "gpu.cuda.memory.allocations", "counter", "By", "Bytes of device memory allocated.", SCOPE_CUDA
)
METRIC_GPU_CUDA_MEMORY_FREE_BYTES = Instrument(
    "gpu.cuda.memory.free.bytes", "counter", "By", "Bytes of device memory given back.", SCOPE_CUDA
)
METRIC_GPU_CUDA_MEMORY_IN_USE = Instrument(
    "gpu.cuda.memory.in_use",
    "updowncounter",
    "By",
    "Bytes of device memory allocated and not given back since watching began.",
    SCOPE_CUDA,
)
METRIC_GPU_CUDA_MEMORY_COPIES = Instrument(
    "gpu.cuda.memory.copies", "histogram", "By", "Sizes of copies.", SCOPE_CUDA
)
METRIC_GPU_CUDA_MEMSET_BYTES = Instrument(
    "gpu.cuda.memset.bytes", "counter", "By", "Bytes set.", SCOPE_CUDA
)
METRIC_GPU_CUDA_HOST_REGISTER_BYTES = Instrument(
    "gpu.cuda.host.register.bytes", "counter", "By", "Bytes of host memory registered.", SCOPE_CUDA
)
METRIC_GPU_CUDA_STREAM_CREATE_CALLS = Instrument(
    "gpu.cuda.stream.create.calls", "counter", "", "Streams created.", SCOPE_CUDA
)
METRIC_GPU_CUDA_STREAM_DESTROY_CALLS = Instrument(
    "gpu.cuda.stream.destroy.calls", "counter", "", "Streams destroyed.", SCOPE_CUDA
)
METRIC_GPU_CUDA_STREAM_SYNCHRONIZE_CALLS = Instrument(
    "gpu.cuda.stream.synchronize.calls", "counter", "", "Waits for a stream.", SCOPE_CUDA
)
METRIC_GPU_CUDA_EVENT_RECORD_CALLS = Instrument(
    "gpu.cuda.event.record.calls", "counter", "", "CUDA events recorded.", SCOPE_CUDA
)
METRIC_GPU_CUDA_EVENT_SYNCHRONIZE_CALLS = Instrument(
    "gpu.cuda.event.synchronize.calls", "counter", "", "Waits for a CUDA event.", SCOPE_CUDA
)
METRIC_GPU_CUDA_DEVICE_SYNCHRONIZE_CALLS = Instrument(
    "gpu.cuda.device.synchronize.calls", "counter", "", "Waits for a whole device.", SCOPE_CUDA
)
METRIC_PROCESS_SCHEDULER_OFF_CPU_DURATION = Instrument(
    "process.scheduler.off_cpu.duration",
    "histogram",
    "s",
    "Time of a thread off the CPU, from switching out to switching in.",
    SCOPE_SCHED,
)
METRIC_PROCESS_SCHEDULER_RUN_QUEUE_DURATION = Instrument(
    "process.scheduler.run_queue.duration",
    "histogram",
    "s",
    "Time in which a thread could run and waited for a CPU.",
    SCOPE_SCHED,
)
METRIC_PROCESS_FORKS = Instrument(
    "process.forks",
    "counter",
    "{fork}",
    "Processes that the process made. Threads are not counted.",
    SCOPE_PROCESS,
)
METRIC_OTEL_GPU_RECORDS_LOST = Instrument(
    "otel_gpu.records.lost",
    "counter",
    "{record}",
    "What the kernel side saw and could not count or hand over.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_RECORDS_REJECTED = Instrument(
    "otel_gpu.records.rejected",
    "counter",
    "{record}",
    "Records that could not be understood.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_SPANS_CHOSEN = Instrument(
    "otel_gpu.spans.chosen",
    "counter",
    "{span}",
    "Calls, gaps and stalls that the kernel side handed over to become spans.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_SPANS_WITHHELD = Instrument(
    "otel_gpu.spans.withheld",
    "counter",
    "{span}",
    "Calls, gaps and stalls that deserved a span and got none, to keep to a limit.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_STACKS_TAKEN = Instrument(
    "otel_gpu.stacks.taken",
    "counter",
    "{stack}",
    "User stacks that the kernel side took, of chosen calls and of threads that left the CPU.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_STACKS_WITHHELD = Instrument(
    "otel_gpu.stacks.withheld",
    "counter",
    "{stack}",
    "User stacks that were not taken, to keep to a limit.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_STACKS_RESOLVED = Instrument(
    "otel_gpu.stacks.resolved",
    "counter",
    "{stack}",
    "Calls and stalls whose stack was found.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_STACKS_DISTINCT = Instrument(
    "otel_gpu.stacks.distinct",
    "counter",
    "{stack}",
    "Different stacks among those that were found.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_STACKS_DROPPED = Instrument(
    "otel_gpu.stacks.dropped",
    "counter",
    "{stack}",
    "User stacks that were taken and not used, or missed.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_SYMBOLS_DROPPED = Instrument(
    "otel_gpu.symbols.dropped",
    "counter",
    "{symbol}",
    "What names functions in user stacks and was not used. Their frames have no name.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_CHAINS = Instrument(
    "otel_gpu.chains", "counter", "{chain}", "Causal chains that became spans.", SCOPE_AGENT
)
METRIC_OTEL_GPU_CHAINS_WITHHELD = Instrument(
    "otel_gpu.chains.withheld",
    "counter",
    "{chain}",
    "Causal chains that did not become spans, to keep to a limit.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_INCIDENTS = Instrument(
    "otel_gpu.incidents", "counter", "{incident}", "Incidents that became spans.", SCOPE_AGENT
)
METRIC_OTEL_GPU_SPANS_DROPPED = Instrument(
    "otel_gpu.spans.dropped",
    "counter",
    "{span}",
    "Finished spans that were not exported.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_SERIES_DROPPED = Instrument(
    "otel_gpu.series.dropped",
    "counter",
    "{series}",
    "Series of ended processes that were given up before they could be exported.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_ERRORS = Instrument(
    "otel_gpu.errors",
    "counter",
    "{error}",
    "Errors inside the agent that nobody expected. Each cost what was being handled.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_ITEMS_SKIPPED = Instrument(
    "otel_gpu.items.skipped",
    "counter",
    "{item}",
    "What a part of the agent was not given while it was switched off for its errors.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_SWITCHED_OFF = Instrument(
    "otel_gpu.switched_off",
    "gauge",
    "1",
    "1 while a part of the agent is switched off for its errors, 0 when it works again.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_PROBE_HITS = Instrument(
    "otel_gpu.probe.hits",
    "counter",
    "{hit}",
    "How often probes fired for watched processes.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_OVERHEAD_TIME = Instrument(
    "otel_gpu.overhead.time",
    "counter",
    "s",
    "CPU time of the agent's user-space side.",
    SCOPE_AGENT,
)
METRIC_OTEL_GPU_OVERHEAD_MEMORY = Instrument(
    "otel_gpu.overhead.memory", "gauge", "By", "Resident memory of the agent.", SCOPE_AGENT
)
METRIC_OTEL_GPU_COVERAGE = Instrument(
    "otel_gpu.coverage",
    "gauge",
    "1",
    "Share of a library's known CUDA symbols that carry probes.",
    SCOPE_AGENT,
)

COUNTS: Mapping[int | str, Instrument] = {
    wire.FAMILY_LAUNCH: METRIC_GPU_CUDA_KERNEL_LAUNCH_CALLS,
    wire.FAMILY_GRAPH_LAUNCH: METRIC_GPU_CUDA_GRAPH_LAUNCH_CALLS,
    "cudaStreamCreate": METRIC_GPU_CUDA_STREAM_CREATE_CALLS,
    "cudaStreamCreateWithFlags": METRIC_GPU_CUDA_STREAM_CREATE_CALLS,
    "cudaStreamCreateWithPriority": METRIC_GPU_CUDA_STREAM_CREATE_CALLS,
    "cuStreamCreate": METRIC_GPU_CUDA_STREAM_CREATE_CALLS,
    "cuStreamCreateWithPriority": METRIC_GPU_CUDA_STREAM_CREATE_CALLS,
    "cudaStreamDestroy": METRIC_GPU_CUDA_STREAM_DESTROY_CALLS,
    "cuStreamDestroy": METRIC_GPU_CUDA_STREAM_DESTROY_CALLS,
    "cudaStreamSynchronize": METRIC_GPU_CUDA_STREAM_SYNCHRONIZE_CALLS,
    "cuStreamSynchronize": METRIC_GPU_CUDA_STREAM_SYNCHRONIZE_CALLS,
    "cudaEventRecord": METRIC_GPU_CUDA_EVENT_RECORD_CALLS,
    "cudaEventRecordWithFlags": METRIC_GPU_CUDA_EVENT_RECORD_CALLS,
    "cuEventRecord": METRIC_GPU_CUDA_EVENT_RECORD_CALLS,
    "cuEventRecordWithFlags": METRIC_GPU_CUDA_EVENT_RECORD_CALLS,
    "cudaEventSynchronize": METRIC_GPU_CUDA_EVENT_SYNCHRONIZE_CALLS,
    "cuEventSynchronize": METRIC_GPU_CUDA_EVENT_SYNCHRONIZE_CALLS,
    "cudaDeviceSynchronize": METRIC_GPU_CUDA_DEVICE_SYNCHRONIZE_CALLS,
    "cuCtxSynchronize": METRIC_GPU_CUDA_DEVICE_SYNCHRONIZE_CALLS,
}

SUMS: Mapping[int | str, Instrument] = {
    wire.FAMILY_ALLOCATE: METRIC_GPU_CUDA_MEMORY_ALLOCATIONS,
    wire.FAMILY_FREE: METRIC_GPU_CUDA_MEMORY_FREE_BYTES,
    wire.FAMILY_UNMAP: METRIC_GPU_CUDA_MEMORY_FREE_BYTES,
    wire.FAMILY_MEMSET: METRIC_GPU_CUDA_MEMSET_BYTES,
    "cudaHostRegister": METRIC_GPU_CUDA_HOST_REGISTER_BYTES,
}
