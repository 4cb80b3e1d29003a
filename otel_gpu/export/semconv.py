"""
GENERATED from otel_gpu/export/semconv.yaml by tools/generate_semconv.py. Do not edit.

``*_VALUES`` map wire numbers to names in telemetry. ``COUNTS`` and ``SUMS`` map a family or API to
the metric of its number of calls, or of their bytes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu import wire


class Instrument(NamedTuple):
    """A metric; what it means and its scope are looked up by its name."""

    name: str
    unit: str = ""
    kind: str = "counter"

    @property
    def description(self) -> str:
        return _DESCRIPTIONS[self.name]

    @property
    def scope(self) -> str:
        return next(s for prefix, s in _METRIC_SCOPES.items() if self.name.startswith(prefix))


def _named(names: Mapping[int, str], prefix: str) -> dict[int, str]:
    return {n: name.removeprefix(prefix) for n, name in names.items() if name.startswith(prefix)}


SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# Scopes
SCOPE_HARDWARE = "otel_gpu.hardware"
SCOPE_DEVICE = "otel_gpu.device"
SCOPE_NCCL = "otel_gpu.nccl"
SCOPE_VERBS = "otel_gpu.verbs"
SCOPE_NVTX = "otel_gpu.nvtx"
SCOPE_CUDA = "otel_gpu.cuda"
SCOPE_SCHED = "otel_gpu.sched"
SCOPE_PROCESS = "otel_gpu.process"
SCOPE_CAUSAL = "otel_gpu.causal"
SCOPE_CPU = "otel_gpu.cpu"
SCOPE_AGENT = "otel_gpu.agent"

# Attributes
GPU_CUDA_API = "gpu.cuda.api"
GPU_CUDA_LAYER = "gpu.cuda.layer"
VERBS_OPERATION = "verbs.operation"
VERBS_EVENT = "verbs.event"
GPU_CUDA_STREAM = "gpu.cuda.stream"
GPU_CUDA_RESULT = "gpu.cuda.result"
GPU_CUDA_SIZE = "gpu.cuda.size"
GPU_CUDA_KERNEL_FUNCTION = "gpu.cuda.kernel.function"
GPU_CUDA_KERNEL_NAME = "gpu.cuda.kernel.name"
GPU_CUDA_KERNEL_GRID = "gpu.cuda.kernel.grid"
GPU_CUDA_KERNEL_BLOCK = "gpu.cuda.kernel.block"
CUDA_MEMCPY_KIND = "cuda.memcpy.kind"
CUDA_DEVICE_INDEX = "cuda.device.index"
CUDA_DEVICE_UUID = "cuda.device.uuid"
CUDA_DEVICE_MODEL = "cuda.device.model"
ERROR_TYPE = "error.type"
OTEL_GPU_MEMORY_ASKED = "otel_gpu.memory.asked"
OTEL_GPU_MEMORY_ALLOCATED = "otel_gpu.memory.allocated"
OTEL_GPU_MEMORY_RESERVED = "otel_gpu.memory.reserved"
OTEL_GPU_MEMORY_DEVICE_FREE = "otel_gpu.memory.device.free"
OTEL_GPU_MEMORY_DEVICE_TOTAL = "otel_gpu.memory.device.total"
OTEL_GPU_CALL_BEGAN_BEFORE_CAPTURE = "otel_gpu.call.began_before_capture"
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
OTEL_GPU_PARENT_SOURCE = "otel_gpu.parent.source"
OTEL_GPU_THREAD_TID = "otel_gpu.thread.tid"
THREAD_NAME = "thread.name"
PROFILE_FRAME_TYPE = "profile.frame.type"
CPU_LOGICAL_NUMBER = "cpu.logical_number"
PROCESS_CONTEXT_SWITCH_TYPE = "process.context_switch.type"
OTEL_GPU_STALL_REASON = "otel_gpu.stall.reason"
OTEL_GPU_RESOURCE_KIND = "otel_gpu.resource.kind"
OTEL_GPU_RESOURCE_NAME = "otel_gpu.resource.name"
OTEL_GPU_RESOURCE_REMOTE = "otel_gpu.resource.remote"
FILE_PATH = "file.path"
SYSTEM_FILESYSTEM_TYPE = "system.filesystem.type"
SYSTEM_FILESYSTEM_MOUNTPOINT = "system.filesystem.mountpoint"
NETWORK_TRANSPORT = "network.transport"
NETWORK_PEER_ADDRESS = "network.peer.address"
NETWORK_PEER_PORT = "network.peer.port"
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
OTEL_GPU_CAUSE_LINES = "otel_gpu.cause.lines"
OTEL_GPU_CAUSE_COUNTED = "otel_gpu.cause.counted"
OTEL_GPU_CAUSE_SAMPLES = "otel_gpu.cause.samples"
OTEL_GPU_CAUSE_WORK = "otel_gpu.cause.work"
OTEL_GPU_CAUSE_DROPPED = "otel_gpu.cause.dropped"
OTEL_GPU_UNEXPLAINED_SHARE = "otel_gpu.unexplained.share"
OTEL_GPU_UNEXPLAINED_TIME = "otel_gpu.unexplained.time"
OTEL_GPU_LOST_TIME = "otel_gpu.lost.time"
OTEL_GPU_INCIDENT_EFFECTS = "otel_gpu.incident.effects"
OTEL_GPU_INCIDENT_CHRONIC = "otel_gpu.incident.chronic"
OTEL_GPU_ADVICE = "otel_gpu.advice"
STATE = "state"
GPU_NCCL_COMM = "gpu.nccl.comm"
GPU_NCCL_RANK = "gpu.nccl.rank"
GPU_NCCL_RANK_COUNT = "gpu.nccl.rank_count"
GPU_NCCL_OPERATION = "gpu.nccl.operation"
GPU_NCCL_STATE = "gpu.nccl.state"
GPU_NCCL_NUMBER = "gpu.nccl.number"
GPU_NCCL_ELEMENTS = "gpu.nccl.elements"
GPU_NCCL_DATATYPE = "gpu.nccl.datatype"
GPU_NCCL_REDUCTION = "gpu.nccl.reduction"
GPU_NCCL_ROOT = "gpu.nccl.root"
GPU_NCCL_CALLED = "gpu.nccl.called"
GPU_NCCL_COMPLETED = "gpu.nccl.completed"
GPU_NCCL_PENDING_TIME = "gpu.nccl.pending.time"
GPU_STEP_KIND = "gpu.step.kind"
GPU_STEP_SOURCE = "gpu.step.source"
GPU_STEP_NUMBER = "gpu.step.number"
GPU_STEP_CONFIDENCE = "gpu.step.confidence"
GPU_STEP_USUAL_TIME = "gpu.step.usual.time"
GPU_STEP_NAME = "gpu.step.name"
GPU_STEP_LOADER_WAIT = "gpu.step.loader_wait"
GPU_NVTX_DOMAIN = "gpu.nvtx.domain"
GPU_NVTX_RANGE_KIND = "gpu.nvtx.range.kind"
GPU_NVTX_RANGE_START_TID = "gpu.nvtx.range.start.tid"
OTEL_GPU_SOURCE_NAME = "otel_gpu.source.name"
OTEL_GPU_SOURCE_TOOL = "otel_gpu.source.tool"
OTEL_GPU_VERDICT = "otel_gpu.verdict"
OTEL_GPU_FAULTS = "otel_gpu.faults"
OTEL_GPU_TIMES_ESTIMATED = "otel_gpu.times.estimated"
OTEL_GPU_STEP_COUNT = "otel_gpu.step.count"
OTEL_GPU_STEP_MEDIAN_TIME = "otel_gpu.step.median.time"
OTEL_GPU_STEP_NAME = "otel_gpu.step.name"
OTEL_GPU_STEP_SET_ASIDE = "otel_gpu.step.set_aside"
OTEL_GPU_PHASE_NAME = "otel_gpu.phase.name"
OTEL_GPU_COMPUTE_TIME = "otel_gpu.compute.time"
OTEL_GPU_COMMUNICATION_TIME = "otel_gpu.communication.time"
OTEL_GPU_COPY_TIME = "otel_gpu.copy.time"
OTEL_GPU_IDLE_TIME = "otel_gpu.idle.time"
OTEL_GPU_IDLE_CAUSE = "otel_gpu.idle.cause"
OTEL_GPU_HOST_OPERATION = "otel_gpu.host.operation"
OTEL_GPU_HOST_FUNCTION = "otel_gpu.host.function"
OTEL_GPU_WORK_KIND = "otel_gpu.work.kind"
OTEL_GPU_STREAM = "otel_gpu.stream"
OTEL_GPU_STEPS_LEFT_OUT = "otel_gpu.steps.left_out"
OTEL_GPU_PHASES_LEFT_OUT = "otel_gpu.phases.left_out"
OTEL_GPU_GAPS_LEFT_OUT = "otel_gpu.gaps.left_out"
OTEL_GPU_WORK_LEFT_OUT = "otel_gpu.work.left_out"
HW_ID = "hw.id"
HW_TYPE = "hw.type"
HW_VENDOR = "hw.vendor"
HW_MODEL = "hw.model"
HW_SERIAL_NUMBER = "hw.serial_number"
HW_DRIVER_VERSION = "hw.driver_version"
HW_NAME = "hw.name"
HW_FIRMWARE_VERSION = "hw.firmware_version"
HW_NETWORK_PHYSICAL_ADDRESS = "hw.network.physical_address"
NETWORK_INTERFACE_NAME = "network.interface.name"
RDMA_LINK_LAYER = "rdma.link_layer"
RDMA_EVENT = "rdma.event"
RDMA_COUNTER = "rdma.counter"
HW_PARENT = "hw.parent"
HW_STATE = "hw.state"
HW_GPU_TASK = "hw.gpu.task"
HW_TEMPERATURE_SENSOR = "hw.temperature.sensor"
NETWORK_IO_DIRECTION = "network.io.direction"
GPU_LINK = "gpu.link"
GPU_CLOCK_LIMIT_REASON = "gpu.clock.limit.reason"
GPU_XID = "gpu.xid"
GPU_XID_MEANING = "gpu.xid.meaning"
GPU_BUS_ID = "gpu.bus_id"
GPU_FAULT_MESSAGE = "gpu.fault.message"
GPU_FAULT_COUNT = "gpu.fault.count"
GPU_FAULT_SOURCE = "gpu.fault.source"
GPU_FAULT_PID = "gpu.fault.pid"
GPU_FAULT_PROCESS_NAME = "gpu.fault.process_name"
GPU_CLOCK_FREQUENCY_READ = "gpu.clock.frequency_read"
GPU_CLOCK_LIMIT_READ = "gpu.clock.limit_read"
REASON = "reason"
OTEL_GPU_PROBE_TYPE = "otel_gpu.probe.type"
OTEL_GPU_SPAN_SOURCE = "otel_gpu.span.source"
OTEL_GPU_PLACE = "otel_gpu.place"
OTEL_GPU_CACHE = "otel_gpu.cache"
OTEL_GPU_LIBRARY_PATH = "otel_gpu.library.path"
OTEL_METRIC_OVERFLOW = "otel.metric.overflow"
CUDA_MEMCPY_KIND_VALUES: Mapping[int, str] = {
    wire.COPY_HOST_TO_HOST: "MemcpyHostToHost",
    wire.COPY_HOST_TO_DEVICE: "MemcpyHostToDevice",
    wire.COPY_DEVICE_TO_HOST: "MemcpyDeviceToHost",
    wire.COPY_DEVICE_TO_DEVICE: "MemcpyDeviceToDevice",
    wire.COPY_DEFAULT: "MemcpyDefault",
}
OTEL_GPU_CHOICE_VALUES: Mapping[int, str] = _named(wire.CHOICE_NAMES, "choice_")
PROCESS_CONTEXT_SWITCH_TYPE_VALUES: Mapping[int, str] = _named(wire.SWITCH_TYPE_NAMES, "switch_")
GPU_STEP_KIND_VALUES: Mapping[int, str] = _named(wire.STEP_KIND_NAMES, "step_")
GPU_STEP_SOURCE_VALUES: Mapping[int, str] = {
    wire.STEP_REPORTED: "program",
    wire.STEP_FOUND: "agent",
}
GPU_NVTX_RANGE_KIND_VALUES: Mapping[int, str] = {
    wire.RANGE_PUSHED: "push",
    wire.RANGE_STARTED: "start",
    wire.RANGE_MARKED: "mark",
}
REASON_VALUES: Mapping[int, str] = _named(wire.COUNTER_NAMES, "counter_lost_") | {
    wire.COUNTER_LOST_STACK: "stacks_full",
    wire.COUNTER_LOST_RESOURCE: "resources_full",
    wire.COUNTER_LOST_PYTHON: "python_frames",
    wire.COUNTER_SAMPLES_RATE_LIMITED: "rate",
    wire.COUNTER_CPU_SAMPLES_RATE_LIMITED: "budget",
    wire.COUNTER_OUT_OF_MEMORY_RATE_LIMITED: "failure_rate",
    wire.COUNTER_SPANS_RATE_LIMITED: "rate",
    wire.COUNTER_RANGES_RATE_LIMITED: "range_rate",
    wire.COUNTER_BLOCK_STACKS_RATE_LIMITED: "rate",
    wire.COUNTER_STEP_THREADS_RATE_LIMITED: "threads",
    wire.COUNTER_STEPS_RATE_LIMITED: "rate",
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
SPAN_SLOW_STEP = "gpu.slow_step"
SPAN_OUT_OF_MEMORY = "gpu.memory.oom"
SPAN_DEVICE_FAULT = "gpu.device.fault"
SPAN_LAUNCH_GAP = "gpu.launch_gap"
SPAN_BLOCKED = "sched.blocked"
SPAN_RUN_QUEUE_WAIT = "sched.run_queue_wait"
SPAN_FORK = "process.fork"
SPAN_RUN = "gpu.run"
SPAN_STEP = "gpu.step"
SPAN_PHASE = "gpu.phase"
SPAN_IDLE = "gpu.idle"
SPAN_KERNEL = "gpu.kernel"
SPAN_COPY = "gpu.copy"
SPAN_FILL = "gpu.fill"
SPAN_GRAPH = "gpu.graph"
SPAN_CAUSAL_CHAIN = "gpu.causal_chain"
SPAN_CAUSE_PREFIX = "gpu.cause."
SPAN_CAUSE_BLOCKED = "sched.blocked"
SPAN_CAUSE_RUN_QUEUE_WAIT = "sched.run_queue_wait"
SPAN_INCIDENT = "gpu.incident"

# Events of spans, and log records
EVENT_STACK = "stack"
EVENT_CAUSE = "gpu.cause"
LOG_STACK = "otel_gpu.stack"
LOG_DEVICE_FAULT = "gpu.device.fault"
LOG_PENDING = "gpu.nccl.pending"

# Metrics
METRIC_GPU_DEVICE_TIME = Instrument("gpu.device.time", "s")
METRIC_GPU_DEVICE_IDLE_TIME = Instrument("gpu.device.idle.time", "s")
METRIC_GPU_DEVICE_WORK_DURATION = Instrument("gpu.device.work.duration", "s", "histogram")
METRIC_GPU_DEVICE_LAUNCH_DELAY = Instrument("gpu.device.launch.delay", "s", "histogram")
METRIC_GPU_CUDA_CALL_DURATION = Instrument("gpu.cuda.call.duration", "s", "histogram")
METRIC_GPU_NCCL_CALL_DURATION = Instrument("gpu.nccl.call.duration", "s", "histogram")
METRIC_GPU_STEP_DURATION = Instrument("gpu.step.duration", "s", "histogram")
METRIC_GPU_CUDA_LAUNCH_GAP = Instrument("gpu.cuda.launch.gap", "s", "histogram")
METRIC_GPU_CUDA_THREAD_TIME = Instrument("gpu.cuda.thread.time", "s")
METRIC_GPU_CUDA_THREAD_STALL_TIME = Instrument("gpu.cuda.thread.stall.time", "s")
METRIC_GPU_CUDA_CALL_OPEN_AGE = Instrument("gpu.cuda.call.open.age", "s", "gauge")
METRIC_GPU_CUDA_KERNEL_LAUNCH_CALLS = Instrument("gpu.cuda.kernel.launch.calls")
METRIC_GPU_CUDA_GRAPH_LAUNCH_CALLS = Instrument("gpu.cuda.graph.launch.calls")
METRIC_GPU_CUDA_MEMORY_ALLOCATIONS = Instrument("gpu.cuda.memory.allocations", "By")
METRIC_GPU_CUDA_MEMORY_FREE_BYTES = Instrument("gpu.cuda.memory.free.bytes", "By")
METRIC_GPU_CUDA_MEMORY_IN_USE = Instrument("gpu.cuda.memory.in_use", "By", "updowncounter")
METRIC_GPU_MEMORY_ALLOCATED = Instrument("gpu.memory.allocated", "By", "updowncounter")
METRIC_GPU_MEMORY_RESERVED = Instrument("gpu.memory.reserved", "By", "updowncounter")
METRIC_GPU_MEMORY_PEAK = Instrument("gpu.memory.peak", "By", "gauge")
METRIC_GPU_MEMORY_FAILURES = Instrument("gpu.memory.failures", "{failure}")
METRIC_VERBS_CALL_DURATION = Instrument("verbs.call.duration", "s", "histogram")
METRIC_VERBS_MEMORY_REGISTERED = Instrument("verbs.memory.registered", "By", "updowncounter")
METRIC_VERBS_ASYNC_EVENTS = Instrument("verbs.async.events", "{event}")
METRIC_GPU_NCCL_COLLECTIVES = Instrument("gpu.nccl.collectives", "{collective}")
METRIC_GPU_NCCL_BYTES = Instrument("gpu.nccl.bytes", "By")
METRIC_GPU_NCCL_SEQUENCE = Instrument("gpu.nccl.sequence", "{collective}", "gauge")
METRIC_GPU_NCCL_SIGNATURE = Instrument("gpu.nccl.signature", "{checksum}", "gauge")
METRIC_GPU_NCCL_PENDING = Instrument("gpu.nccl.pending", "{collective}", "gauge")
METRIC_GPU_NCCL_PENDING_AGE = Instrument("gpu.nccl.pending.age", "s", "gauge")
METRIC_GPU_NCCL_WAIT_TIME = Instrument("gpu.nccl.wait.time", "s")
METRIC_GPU_NCCL_COMPLETIONS = Instrument("gpu.nccl.completions", "{collective}")
METRIC_GPU_NCCL_ERRORS = Instrument("gpu.nccl.errors", "{error}")
METRIC_HW_STATUS = Instrument("hw.status", "1", "updowncounter")
METRIC_HW_ERRORS = Instrument("hw.errors", "{error}")
METRIC_HW_NETWORK_UP = Instrument("hw.network.up", "1", "updowncounter")
METRIC_HW_NETWORK_BANDWIDTH_LIMIT = Instrument(
    "hw.network.bandwidth.limit", "By/s", "updowncounter"
)
METRIC_HW_NETWORK_IO = Instrument("hw.network.io", "By")
METRIC_HW_NETWORK_PACKETS = Instrument("hw.network.packets", "{packet}")
METRIC_RDMA_EVENTS = Instrument("rdma.events", "{event}")
METRIC_RDMA_TRANSMIT_WAIT = Instrument("rdma.transmit.wait", "{tick}")
METRIC_HW_POWER = Instrument("hw.power", "W", "gauge")
METRIC_HW_ENERGY = Instrument("hw.energy", "J")
METRIC_HW_TEMPERATURE = Instrument("hw.temperature", "Cel", "gauge")
METRIC_HW_GPU_UTILIZATION = Instrument("hw.gpu.utilization", "1", "gauge")
METRIC_HW_GPU_MEMORY_LIMIT = Instrument("hw.gpu.memory.limit", "By", "updowncounter")
METRIC_HW_GPU_MEMORY_USAGE = Instrument("hw.gpu.memory.usage", "By", "updowncounter")
METRIC_HW_GPU_MEMORY_UTILIZATION = Instrument("hw.gpu.memory.utilization", "1", "gauge")
METRIC_HW_GPU_IO = Instrument("hw.gpu.io", "By")
METRIC_GPU_CLOCK_FREQUENCY = Instrument("gpu.clock.frequency", "Hz", "gauge")
METRIC_GPU_CLOCK_LIMIT = Instrument("gpu.clock.limit", "Hz", "gauge")
METRIC_GPU_CLOCK_LIMITED_TIME = Instrument("gpu.clock.limited.time", "s")
METRIC_GPU_SM_ACTIVITY = Instrument("gpu.sm.activity", "1", "gauge")
METRIC_GPU_SM_OCCUPANCY = Instrument("gpu.sm.occupancy", "1", "gauge")
METRIC_GPU_TENSOR_ACTIVITY = Instrument("gpu.tensor.activity", "1", "gauge")
METRIC_GPU_DRAM_ACTIVITY = Instrument("gpu.dram.activity", "1", "gauge")
METRIC_GPU_PROCESS_MEMORY_USAGE = Instrument("gpu.process.memory.usage", "By", "updowncounter")
METRIC_GPU_PROCESS_UTILIZATION = Instrument("gpu.process.utilization", "1", "gauge")
METRIC_GPU_CUDA_MEMORY_COPIES = Instrument("gpu.cuda.memory.copies", "By", "histogram")
METRIC_GPU_CUDA_EVENT_ELAPSED = Instrument("gpu.cuda.event.elapsed", "s", "histogram")
METRIC_GPU_CUDA_MEMSET_BYTES = Instrument("gpu.cuda.memset.bytes", "By")
METRIC_GPU_CUDA_HOST_REGISTER_BYTES = Instrument("gpu.cuda.host.register.bytes", "By")
METRIC_GPU_CUDA_STREAM_CREATE_CALLS = Instrument("gpu.cuda.stream.create.calls")
METRIC_GPU_CUDA_STREAM_DESTROY_CALLS = Instrument("gpu.cuda.stream.destroy.calls")
METRIC_GPU_CUDA_STREAM_SYNCHRONIZE_CALLS = Instrument("gpu.cuda.stream.synchronize.calls")
METRIC_GPU_CUDA_EVENT_RECORD_CALLS = Instrument("gpu.cuda.event.record.calls")
METRIC_GPU_CUDA_EVENT_SYNCHRONIZE_CALLS = Instrument("gpu.cuda.event.synchronize.calls")
METRIC_GPU_CUDA_DEVICE_SYNCHRONIZE_CALLS = Instrument("gpu.cuda.device.synchronize.calls")
METRIC_PROCESS_SCHEDULER_OFF_CPU_DURATION = Instrument(
    "process.scheduler.off_cpu.duration", "s", "histogram"
)
METRIC_PROCESS_SCHEDULER_RUN_QUEUE_DURATION = Instrument(
    "process.scheduler.run_queue.duration", "s", "histogram"
)
METRIC_PROCESS_FORKS = Instrument("process.forks", "{fork}")
METRIC_OTEL_GPU_RECORDS_LOST = Instrument("otel_gpu.records.lost", "{record}")
METRIC_OTEL_GPU_RECORDS_REJECTED = Instrument("otel_gpu.records.rejected", "{record}")
METRIC_OTEL_GPU_SPANS_CHOSEN = Instrument("otel_gpu.spans.chosen", "{span}")
METRIC_OTEL_GPU_SPANS_RATE_LIMITED = Instrument("otel_gpu.spans.rate_limited", "{span}")
METRIC_OTEL_GPU_TIMES_FOLDED = Instrument("otel_gpu.times.folded", "{time}")
METRIC_OTEL_GPU_STACKS_TAKEN = Instrument("otel_gpu.stacks.taken", "{stack}")
METRIC_OTEL_GPU_STACKS_RATE_LIMITED = Instrument("otel_gpu.stacks.rate_limited", "{stack}")
METRIC_OTEL_GPU_CPU_SAMPLES_TAKEN = Instrument("otel_gpu.cpu_samples.taken", "{sample}")
METRIC_OTEL_GPU_CPU_SAMPLES_RATE_LIMITED = Instrument(
    "otel_gpu.cpu_samples.rate_limited", "{sample}"
)
METRIC_OTEL_GPU_BLOCK_STACKS_TAKEN = Instrument("otel_gpu.block_stacks.taken", "{stack}")
METRIC_OTEL_GPU_BLOCK_STACKS_RATE_LIMITED = Instrument(
    "otel_gpu.block_stacks.rate_limited", "{stack}"
)
METRIC_OTEL_GPU_STEPS_RATE_LIMITED = Instrument("otel_gpu.steps.rate_limited", "{step}")
METRIC_OTEL_GPU_STEPS_THREADS_RATE_LIMITED = Instrument(
    "otel_gpu.steps.threads.rate_limited", "{thread}"
)
METRIC_OTEL_GPU_MEMORY_COVERAGE = Instrument("otel_gpu.memory.coverage", "1", "gauge")
METRIC_OTEL_GPU_MEMORY_UNPLACED = Instrument("otel_gpu.memory.unplaced", "By")
METRIC_OTEL_GPU_STACKS_RESOLVED = Instrument("otel_gpu.stacks.resolved", "{stack}")
METRIC_OTEL_GPU_STACKS_DISTINCT = Instrument("otel_gpu.stacks.distinct", "{stack}")
METRIC_OTEL_GPU_STACKS_DROPPED = Instrument("otel_gpu.stacks.dropped", "{stack}")
METRIC_OTEL_GPU_SYMBOLS_DROPPED = Instrument("otel_gpu.symbols.dropped", "{symbol}")
METRIC_OTEL_GPU_CHAINS = Instrument("otel_gpu.chains", "{chain}")
METRIC_OTEL_GPU_CHAINS_RATE_LIMITED = Instrument("otel_gpu.chains.rate_limited", "{chain}")
METRIC_OTEL_GPU_INCIDENTS = Instrument("otel_gpu.incidents", "{incident}")
METRIC_OTEL_GPU_SPANS_DROPPED = Instrument("otel_gpu.spans.dropped", "{span}")
METRIC_OTEL_GPU_SERIES_DROPPED = Instrument("otel_gpu.series.dropped", "{series}")
METRIC_OTEL_GPU_ERRORS = Instrument("otel_gpu.errors", "{error}")
METRIC_OTEL_GPU_ITEMS_SKIPPED = Instrument("otel_gpu.items.skipped", "{item}")
METRIC_OTEL_GPU_SWITCHED_OFF = Instrument("otel_gpu.switched_off", "1", "gauge")
METRIC_OTEL_GPU_PROBE_HITS = Instrument("otel_gpu.probe.hits", "{hit}")
METRIC_OTEL_GPU_OVERHEAD_TIME = Instrument("otel_gpu.overhead.time", "s")
METRIC_OTEL_GPU_OVERHEAD_MEMORY = Instrument("otel_gpu.overhead.memory", "By", "gauge")
METRIC_OTEL_GPU_CACHE_ENTRIES = Instrument("otel_gpu.cache.entries", "{entry}", "gauge")
METRIC_OTEL_GPU_CACHE_SIZE = Instrument("otel_gpu.cache.size", "By", "gauge")
METRIC_OTEL_GPU_CACHE_RELEASED = Instrument("otel_gpu.cache.released", "{entry}")
METRIC_OTEL_GPU_DEVICES_LATE = Instrument("otel_gpu.devices.late", "{reading}")
METRIC_OTEL_GPU_FABRIC_LATE = Instrument("otel_gpu.fabric.late", "{reading}")
METRIC_OTEL_GPU_FABRIC_FAILED = Instrument("otel_gpu.fabric.failed", "{read}")
METRIC_OTEL_GPU_DEVICES_FAILED = Instrument("otel_gpu.devices.failed", "{call}")
METRIC_OTEL_GPU_COVERAGE = Instrument("otel_gpu.coverage", "1", "gauge")
METRIC_OTEL_GPU_PRELOAD_COVERAGE = Instrument("otel_gpu.preload.coverage", "1", "gauge")
METRIC_OTEL_GPU_PRELOAD_CALLS = Instrument("otel_gpu.preload.calls", "{call}")

_DESCRIPTIONS: Mapping[str, str] = {
    "gpu.device.time": "Time of a device by activity. Adds up to the recorded window.",
    "gpu.device.idle.time": "Idle time of a device by cause. Adds up to all its idle time.",
    "gpu.device.work.duration": "Device time of each kernel, copy, fill or graph. Never the time of a call.",
    "gpu.device.launch.delay": "Time from the return of the enqueuing call to the start of the work on the device.",
    "gpu.cuda.call.duration": "Host time from the entry of a CUDA call to its return. Not time on the device.",
    "gpu.nccl.call.duration": "Host time from the entry of an NCCL call to its return. Not time on the device.",
    "gpu.step.duration": "Time from the start to the end of a thread's step.",
    "gpu.cuda.launch.gap": "Time of a thread between the return of its last CUDA call and the entry of a launch.",
    "gpu.cuda.thread.time": "Time of threads that make CUDA calls, by state. Adds up to wall time.",
    "gpu.cuda.thread.stall.time": "Time that threads that make CUDA calls waited, by culprit and the culprit's state during the wait.",
    "gpu.cuda.call.open.age": "Age of the oldest CUDA call that has been open for longer than `capture.open_call_limit_s`.",
    "gpu.cuda.kernel.launch.calls": "Kernel launches.",
    "gpu.cuda.graph.launch.calls": "Graph launches.",
    "gpu.cuda.memory.allocations": "Bytes of device memory allocated.",
    "gpu.cuda.memory.free.bytes": "Bytes of device memory freed.",
    "gpu.cuda.memory.in_use": "Bytes of device memory allocated and not freed since the capture began.",
    "gpu.memory.allocated": "Bytes of device memory in use, as the process's framework allocator reports.",
    "gpu.memory.reserved": "Bytes of device memory that the allocator took from the device, in use or not.",
    "gpu.memory.peak": "Peak bytes of device memory in use since the capture began, as the allocator reports.",
    "gpu.memory.failures": "Failed requests for device memory.",
    "verbs.call.duration": "Host time inside verbs calls.",
    "verbs.memory.registered": "Bytes of memory registered for adapters, and not deregistered, since the capture began.",
    "verbs.async.events": "Asynchronous events of adapters, such as the failure of a port or queue pair.",
    "gpu.nccl.collectives": "Queued collectives, sends and receives.",
    "gpu.nccl.bytes": "Bytes of these calls on this rank.",
    "gpu.nccl.sequence": "Number of the last collective. Of the `called` numbers, the rank with the lowest is the one that the others wait for.",
    "gpu.nccl.signature": "Checksum of the last call's operation, elements, type, reduction and root. Ranks with the same number and different checksums disagree.",
    "gpu.nccl.pending": "Collectives that are queued and not known to the program to be complete.",
    "gpu.nccl.pending.age": "Seconds since the call of the oldest of them, among the last 16.",
    "gpu.nccl.wait.time": "Time from calls until the program knew that their collectives were complete.",
    "gpu.nccl.completions": "Collectives that the program knows to be complete.",
    "gpu.nccl.errors": "Failed calls (`_OTHER`), and 1 for the last asynchronous error that the program read.",
    "hw.status": "1 for the current state of a device or port, 0 for all other states.",
    "hw.errors": "ECC errors of a device since the driver was loaded (`corrected`, `uncorrected`), and XIDs since the capture began (`xid_79`); errors of a network port since its driver was loaded.",
    "hw.network.up": "1 for a usable port.",
    "hw.network.bandwidth.limit": "Bandwidth of a port, in each direction.",
    "hw.network.io": "Bytes through a port.",
    "hw.network.packets": "Packets through a port.",
    "rdma.events": "Events that are rare on a healthy network, as an adapter counts them.",
    "rdma.transmit.wait": "Time that a port had data to send and was not allowed to. The vendor defines the length of a tick.",
    "hw.power": "Power draw of a device.",
    "hw.energy": "Energy consumed since the driver was loaded.",
    "hw.temperature": "Temperature of a device.",
    "hw.gpu.utilization": "Share of the driver's last sampling period in which the device had activity of a kind.",
    "hw.gpu.memory.limit": "Memory of a device, or of a MIG device.",
    "hw.gpu.memory.usage": "Memory in use by all processes, without the driver's reserve.",
    "hw.gpu.memory.utilization": "Share of the memory in use.",
    "hw.gpu.io": "Bytes over PCIe and NVLink.",
    "gpu.clock.frequency": "Clock of the streaming multiprocessors.",
    "gpu.clock.limit": "Maximum of this clock.",
    "gpu.clock.limited.time": "Time in which the clocks were below their maximum.",
    "gpu.sm.activity": "Share of the time since the last reading in which streaming multiprocessors had a warp, averaged over all of them.",
    "gpu.sm.occupancy": "Resident warps as a share of the maximum, since the last reading.",
    "gpu.tensor.activity": "Share of the time since the last reading in which tensor cores were active.",
    "gpu.dram.activity": "Share of the time since the last reading in which device memory was read or written.",
    "gpu.process.memory.usage": "Device memory of a watched process, as the driver reports it.",
    "gpu.process.utilization": "Share of the time in which kernels of a watched process ran on a device.",
    "gpu.cuda.memory.copies": "Sizes of copies.",
    "gpu.cuda.event.elapsed": "Device time between two CUDA events, as the program measured it. Not host time.",
    "gpu.cuda.memset.bytes": "Bytes set.",
    "gpu.cuda.host.register.bytes": "Bytes of host memory registered.",
    "gpu.cuda.stream.create.calls": "Streams created.",
    "gpu.cuda.stream.destroy.calls": "Streams destroyed.",
    "gpu.cuda.stream.synchronize.calls": "Waits for a stream.",
    "gpu.cuda.event.record.calls": "CUDA events recorded.",
    "gpu.cuda.event.synchronize.calls": "Waits for a CUDA event.",
    "gpu.cuda.device.synchronize.calls": "Waits for a whole device.",
    "process.scheduler.off_cpu.duration": "Time of a thread off the CPU, from switching out to switching in.",
    "process.scheduler.run_queue.duration": "Time in which a thread was runnable and waited for a CPU.",
    "process.forks": "Processes that the process created. Threads are not counted.",
    "otel_gpu.records.lost": "Events that the kernel side observed and could not count or deliver.",
    "otel_gpu.records.rejected": "Malformed records.",
    "otel_gpu.spans.chosen": "Calls, gaps and stalls that the kernel side delivered to become spans.",
    "otel_gpu.spans.rate_limited": "Rate-limited calls, gaps, stalls and NVTX ranges: they qualified for a span and got none.",
    "otel_gpu.times.folded": "Intervals counted without details, such as the culprit, because the table of thread times was full.",
    "otel_gpu.stacks.taken": "User stacks that the kernel side captured: of recorded calls, of threads that left the CPU, and of threads on a CPU.",
    "otel_gpu.stacks.rate_limited": "Rate-limited user stacks: they were not captured.",
    "otel_gpu.cpu_samples.taken": "Samples of threads on a CPU.",
    "otel_gpu.cpu_samples.rate_limited": "Rate-limited ticks of the sampling clocks that found a watched thread. The remaining samples weigh more, so that their sum stays right.",
    "otel_gpu.block_stacks.taken": "Stacks of device memory blocks that the kernel side sent, one for each new code location.",
    "otel_gpu.block_stacks.rate_limited": "Rate-limited stacks of device memory blocks. It is unknown where these bytes were allocated.",
    "otel_gpu.steps.rate_limited": "Rate-limited steps, of threads that make more of them than the agent follows.",
    "otel_gpu.steps.threads.rate_limited": "Threads without step detection, because there are too many threads.",
    "otel_gpu.memory.coverage": "Share of an allocator's reports whose total equals what was observed until then.",
    "otel_gpu.memory.unplaced": "Bytes of device memory from an allocator whose code location is unknown.",
    "otel_gpu.stacks.resolved": "Calls, stalls and CPU samples whose stack was found.",
    "otel_gpu.stacks.distinct": "Different stacks among those that were found.",
    "otel_gpu.stacks.dropped": "User stacks that were captured and not used, or missed.",
    "otel_gpu.symbols.dropped": "Unusable symbol records of user stacks. Their frames have no name.",
    "otel_gpu.chains": "Causal chains that became spans.",
    "otel_gpu.chains.rate_limited": "Rate-limited causal chains: they did not become spans.",
    "otel_gpu.incidents": "Incidents that became spans.",
    "otel_gpu.spans.dropped": "Finished spans that were not exported.",
    "otel_gpu.series.dropped": "Series of ended processes that were evicted before their export.",
    "otel_gpu.errors": "Unexpected errors inside the agent. Each lost the item that was being handled.",
    "otel_gpu.items.skipped": "Items that a part of the agent did not get while it was switched off because of its errors.",
    "otel_gpu.switched_off": "1 while a part of the agent is switched off because of its errors, 0 when it works again.",
    "otel_gpu.probe.hits": "Number of times that probes fired for watched processes.",
    "otel_gpu.overhead.time": "CPU time of the agent's user-space side.",
    "otel_gpu.overhead.memory": "Resident memory of the agent.",
    "otel_gpu.cache.entries": "Entries of a cache of the agent.",
    "otel_gpu.cache.size": "Size of a cache of the agent, estimated from a few of its entries.",
    "otel_gpu.cache.released": "Entries that a cache evicted to keep all caches within `capture.cache_bytes`.",
    "otel_gpu.devices.late": "Readings of the host's devices that took longer than 5 s.",
    "otel_gpu.fabric.late": "Readings of the host's network adapters that took longer than 5 s.",
    "otel_gpu.fabric.failed": "Failed reads of /sys/class/infiniband, by errno name.",
    "otel_gpu.devices.failed": "Failed NVML calls, by NVML's name of the error.",
    "otel_gpu.coverage": "Share of a library's known CUDA symbols whose calls are counted, by probes or by programs themselves.",
    "otel_gpu.preload.coverage": "Share of a library's known CUDA symbols whose calls programs count themselves, without a probe.",
    "otel_gpu.preload.calls": "Calls that programs counted themselves, without a probe.",
}

_METRIC_SCOPES: Mapping[str, str] = {
    "hw.": SCOPE_HARDWARE,
    "rdma.": SCOPE_HARDWARE,
    "gpu.clock.": SCOPE_HARDWARE,
    "gpu.sm.": SCOPE_HARDWARE,
    "gpu.tensor.": SCOPE_HARDWARE,
    "gpu.dram.": SCOPE_HARDWARE,
    "gpu.process.": SCOPE_HARDWARE,
    "gpu.device.": SCOPE_DEVICE,
    "gpu.nccl.": SCOPE_NCCL,
    "verbs.": SCOPE_VERBS,
    "gpu.nvtx.": SCOPE_NVTX,
    "gpu.": SCOPE_CUDA,
    "process.scheduler.": SCOPE_SCHED,
    "process.": SCOPE_PROCESS,
    "otel_gpu.": SCOPE_AGENT,
}

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
