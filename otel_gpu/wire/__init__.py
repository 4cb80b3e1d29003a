"""
GENERATED from bpf/events.h and preload/layout.h by tools/generate_wire.py. Do not edit.

Enumerators are plain integers; names of some, by number, are at the end. Structures stand in
the headers' order; arrays of numbers give one value per element, arrays of structs come as bytes.
"""

from otel_gpu.wire.c_struct import CStruct

WIRE_VERSION = 2
COMM_BYTES = 16
PATH_BYTES = 256
MAX_APIS = 256
STATUS_KILLED = 1073741824
MAX_DEPTH = 8
MAX_INTERVALS = 4
MAX_PLACES = 8
MAX_LINKS = 8
CALL_BUCKETS = 16
MAX_KEPT = 2
MAX_STACK_FRAMES = 24
MAX_BOUNDS = 191
MAX_BUCKETS = 192
UUID_BYTES = 16
DEVICE_NAME_BYTES = 64
MAX_PYTHON_FRAMES = 128
MAX_RETURNS = 8
TEXT_BYTES = 512
LINE_TABLE_BYTES = 16384
STACK_COPY_BYTES = 32768
STALL_COPY_BYTES = 8192
THREAD_DUMP_COPY_BYTES = 24576
STATE_NONE = 255
FUNCTION_BYTES = 1024
FILE_SYSTEM_BYTES = 16
ADDRESS_BYTES = 16
STEP_NAME_BYTES = 32
MAX_STEP_DETECTORS = 64
DETECTOR_AREAS = 8
DETECTOR_CALLS = 32768
FOLDED_BY_NAME = 2
DETECTOR_HISTORY = 4
DETECTOR_PATTERNS = 4
RANGE_NAME_BYTES = 64
USER_SHARE = 3
USER_SPANS = 8
RINGS = 2
ALL_USERS = 4294967295
UNKNOWN_USER = 4294967294
PRELOAD_VIEW_WORDS = 30
PRELOAD_REFUSED_BIT = 63
RECENT_COLLECTIVES = 16
MAX_COLLECTIVE_OPERATIONS = 16
MAX_STREAM_WORK = 4
MAX_UNBORN = 8
MAX_DEVICE_COMMUNICATORS = 16
STACK_OF_ONE_BIT = 63
PRELOAD_MAGIC = 8317141777382731879
PRELOAD_VERSION = 4
PRELOAD_SLOTS = 1024
PRELOAD_SLOT_SERIES = 64
PRELOAD_COMMON_SERIES = 1024
PRELOAD_DETECTORS = 16
PRELOAD_ITERATIONS = 1024
PRELOAD_CONTROL_OFFSET = 4096
PRELOAD_COMMON_OFFSET = 8192
PRELOAD_SLOTS_OFFSET = 1646592
PRELOAD_SLOT_BYTES = 110592
PRELOAD_DETECTORS_OFFSET = 114892800
PRELOAD_DETECTOR_BYTES = 544768
PRELOAD_BYTES = 123609088

# enum record_kind
RECORD_CUDA_CALL = 1
RECORD_STALL = 2
RECORD_FORK = 3
RECORD_EXEC = 4
RECORD_EXIT = 5
RECORD_LIBRARY = 6
RECORD_DEVICE = 7
RECORD_GAP = 8
RECORD_SAMPLE = 9
RECORD_CODE = 10
RECORD_THREAD_DUMP = 12
RECORD_HANDLE = 15
RECORD_THREAD_CONTEXT = 16
RECORD_ITERATION = 19
RECORD_PRELOAD = 21
RECORD_CPU_SAMPLE = 11
RECORD_BLOCK_STACK = 13
RECORD_OUT_OF_MEMORY = 14
RECORD_STEP = 17
RECORD_RANGE = 20
RECORD_CAPTURE = 256
RECORD_CLOCK = 257
RECORD_PROCESS = 258
RECORD_AGGREGATES = 259
RECORD_COUNTERS = 260
RECORD_OPEN_CALL = 261
RECORD_PROBES = 262
RECORD_STATUS = 263
RECORD_STACK = 264
RECORD_TIMES = 265
RECORD_PRESSURE = 266
RECORD_USER_STACK = 267
RECORD_RESOURCE = 268
RECORD_CULPRIT = 269
RECORD_MEMORY = 270
RECORD_HOLDERS = 271
RECORD_MEMORY_MAP = 272
RECORD_FUNCTION = 273
RECORD_DEVICES = 274
RECORD_COMMUNICATORS = 275
RECORD_DEVICE_FAULT = 276
RECORD_FABRIC = 277

# enum counter
COUNTER_LOST_RING_FULL = 0
COUNTER_LOST_SERIES_FULL = 1
COUNTER_LOST_THREADS_FULL = 2
COUNTER_LOST_PROCESSES_FULL = 3
COUNTER_LOST_NO_ENTRY = 4
COUNTER_LOST_NO_RETURN = 5
COUNTER_LOST_DEPTH_EXCEEDED = 6
COUNTER_LOST_READ_FAULT = 7
COUNTER_LOST_LIFECYCLE_RING_FULL = 8
COUNTER_LOST_EXIT_INSIDE_CALL = 9
COUNTER_SPANS_RATE_LIMITED = 10
COUNTER_PROBE_ENTRIES = 11
COUNTER_PROBE_RETURNS = 12
COUNTER_SCHEDULER_SWITCHES = 13
COUNTER_SPANS_CHOSEN = 14
COUNTER_STALLS_CHOSEN = 15
COUNTER_LOST_STACK = 16
COUNTER_LOST_TIMES_FULL = 17
COUNTER_GAPS_CHOSEN = 18
COUNTER_SWITCHES_REPAIRED = 19
COUNTER_SAMPLES = 20
COUNTER_SAMPLES_RATE_LIMITED = 21
COUNTER_LOST_SAMPLE = 22
COUNTER_LOST_PYTHON = 23
COUNTER_LOST_INTERPRETERS_FULL = 24
COUNTER_LOST_ALLOCATIONS_FULL = 25
COUNTER_LOST_UNKNOWN_FREE = 26
COUNTER_TIMES_FOLDED = 27
COUNTER_LOST_RESOURCE = 28
COUNTER_CPU_SAMPLES = 29
COUNTER_CPU_SAMPLES_RATE_LIMITED = 30
COUNTER_LOST_CPU_SAMPLE = 31
COUNTER_LOST_BLOCKS_FULL = 32
COUNTER_LOST_HOLDERS_FULL = 33
COUNTER_BLOCK_STACKS = 34
COUNTER_BLOCK_STACKS_RATE_LIMITED = 35
COUNTER_OUT_OF_MEMORY_RATE_LIMITED = 36
COUNTER_LOST_SIZE = 37
COUNTER_LOST_ELAPSED_TIME = 38
COUNTER_LOST_COMMUNICATORS_FULL = 39
COUNTER_LOST_STEP = 40
COUNTER_STEP_THREADS_RATE_LIMITED = 42
COUNTER_STEPS_RATE_LIMITED = 43
COUNTER_LOST_RANGE = 44
COUNTER_RANGES_RATE_LIMITED = 45
COUNTER_LOST_NOT_WATCHED_FROM_START = 46
COUNTER_LOST_MEMORY_READ = 47
COUNTER_COUNT = 48

# enum api_family
FAMILY_OTHER = 0
FAMILY_LAUNCH = 1
FAMILY_GRAPH_LAUNCH = 2
FAMILY_SYNCHRONIZE = 3
FAMILY_ALLOCATE = 4
FAMILY_FREE = 5
FAMILY_COPY = 6
FAMILY_MEMSET = 7
FAMILY_STREAM = 8
FAMILY_EVENT = 9
FAMILY_GRAPH = 10
FAMILY_SET_DEVICE = 11
FAMILY_GET_DEVICE = 12
FAMILY_DEVICE_UUID = 13
FAMILY_DEVICE_PROPERTIES = 14
FAMILY_HOST_ALLOCATE = 15
FAMILY_HOST_FREE = 16
FAMILY_UNMAP = 17
FAMILY_MEMORY_INFO = 18
FAMILY_KERNEL = 20
FAMILY_KERNEL_ALIAS = 21
FAMILY_QUERY = 22
FAMILY_ELAPSED_TIME = 23
FAMILY_COLLECTIVE = 24
FAMILY_COMMUNICATOR = 25
FAMILY_REGISTER = 26
FAMILY_DEREGISTER = 27
FAMILY_ASYNC_EVENT = 28
FAMILY_ASYNC_ACK = 29
FAMILY_CONTEXT = 30
FAMILY_PREPARE = 31

# enum api_layer
LAYER_RUNTIME = 1
LAYER_DRIVER = 2
LAYER_NCCL = 8
LAYER_VERBS = 9

# enum memory_key
MEMORY_HANDLE = 3
MEMORY_MAPPING = 4
MEMORY_PHYSICAL = 5

# enum launch_shape
LAUNCH_NONE = 0
LAUNCH_DIM3 = 1
LAUNCH_SCALARS = 2
LAUNCH_CONFIG = 3

# enum stream_capture
CAPTURE_NONE = 0
CAPTURE_BEGINS = 1
CAPTURE_ENDS = 2

# enum size_form
SIZE_OF_SLOTS = 0
SIZE_OF_EXTENT = 1
SIZE_OF_ARRAY = 2
SIZE_OF_ARRAY_3D = 3
SIZE_OF_COPY_3D = 4
SIZE_OF_LIST = 5
SIZE_OF_CU_COPY_2D = 6
SIZE_OF_CU_COPY_3D = 7
SIZE_OF_CU_ARRAY = 8
SIZE_OF_CU_ARRAY_3D = 9

# enum physical_memory
PHYSICAL_NONE = 0
PHYSICAL_CREATE = 1
PHYSICAL_IMPORT = 2
PHYSICAL_RETAIN = 3
PHYSICAL_RELEASE = 4
PHYSICAL_MAP = 5
PHYSICAL_UNMAP = 6

# enum nccl_call
NCCL_OTHER = 0
NCCL_COLLECTIVE = 1
NCCL_END_GROUP = 2
NCCL_GET_ID = 3
NCCL_INIT_RANK = 4
NCCL_INIT_RANK_SCALABLE = 5
NCCL_INIT_ALL = 6
NCCL_SPLIT = 7
NCCL_SHRINK = 8
NCCL_GROW = 9
NCCL_DESTROY = 10
NCCL_ABORT = 11
NCCL_ASYNC_ERROR = 12
NCCL_COUNT = 13
NCCL_USER_RANK = 14
NCCL_DEVICE = 15

# enum stream_work
WORK_NONE = 0
WORK_RECORDED = 1
WORK_AWAITED = 2
WORK_EVENT_OVER = 3
WORK_STREAM_OVER = 4
WORK_DEVICE_OVER = 5
WORK_EVENT_GONE = 6
WORK_STREAM_GONE = 7

# enum copy_kind
COPY_HOST_TO_HOST = 0
COPY_HOST_TO_DEVICE = 1
COPY_DEVICE_TO_HOST = 2
COPY_DEVICE_TO_DEVICE = 3
COPY_DEFAULT = 4
COPY_NONE = 255

# enum sample_moment
SAMPLE_CALLS = 1
SAMPLE_STALLS = 2

# enum choice
CHOICE_FAILED = 1
CHOICE_SLOW = 2
CHOICE_SAMPLED = 4
CHOICE_FULL = 8
CHOICE_STALLED = 16
CHOICE_PARENT = 32
CHOICE_FIRST_USE = 64

# enum metric
METRIC_CALL_DURATION = 1
METRIC_LAUNCH_GAP = 2
METRIC_OFF_CPU = 3
METRIC_RUN_QUEUE = 4
METRIC_COPY_SIZE = 5
METRIC_FORK = 6
METRIC_ELAPSED_TIME = 7
METRIC_ASYNC_EVENT = 8

# enum switch_type
SWITCH_VOLUNTARY = 1
SWITCH_INVOLUNTARY = 2

# enum thread_state
STATE_ON_CPU = 0
STATE_RUN_QUEUE = 1
STATE_BLOCKED = 2

# enum call_context
CONTEXT_GAP = 0
CONTEXT_SYNCHRONIZE = 1
CONTEXT_CALL = 2
CONTEXT_OTHER = 3

# enum stall_flag
STALL_GIL = 1
STALL_FAULT = 2
STALL_IDLE_CPU = 4
STALL_THROTTLED = 8
STALL_AGENT = 16
STALL_PREEMPTED = 32
STALL_STOPPED = 64
STALL_FROZEN = 128

# enum library_flag
LIBRARY_NOT_CUDA = 1

# enum exit_flag
EXIT_NOT_SEEN = 1

# enum process_flag
PROCESS_FULL = 1
PROCESS_STOP_ON_LOAD = 2
PROCESS_NO_SPANS = 4
PROCESS_HAS_CUDA = 8
PROCESS_FORKED = 16
PROCESS_HAS_COMMUNICATORS = 32

# enum python_status
PYTHON_NONE = 0
PYTHON_NO_THREAD = 1
PYTHON_COMPLETE = 2
PYTHON_CUT = 3
PYTHON_BROKEN = 4

# enum python_frame_flag
PYTHON_FRAME_ENTRY = 1
PYTHON_FRAME_SHIM = 2

# enum thread_dump_flag
THREAD_DUMP_LATE = 1
THREAD_DUMP_FOLLOWED = 2
THREAD_DUMP_NO_USER = 4

# enum block_mode
BLOCKS_OFF = 0
BLOCKS_TOTALS = 1
BLOCKS_LARGE = 2
BLOCKS_ALL = 3

# enum out_of_memory_source
OUT_OF_MEMORY_FRAMEWORK = 1
OUT_OF_MEMORY_CALL = 2

# enum step_source
STEP_REPORTED = 1
STEP_FOUND = 2

# enum step_kind
STEP_UNKNOWN = 0
STEP_TRAINING = 1
STEP_EVALUATION = 2
STEP_PREFILL = 3
STEP_DECODE = 4

# enum range_kind
RANGE_PUSHED = 0
RANGE_STARTED = 1
RANGE_MARKED = 2

# enum collective_operation
COLLECTIVE_NONE = 0
COLLECTIVE_ALL_REDUCE = 1
COLLECTIVE_BROADCAST = 2
COLLECTIVE_REDUCE = 3
COLLECTIVE_ALL_GATHER = 4
COLLECTIVE_REDUCE_SCATTER = 5
COLLECTIVE_ALL_TO_ALL = 6
COLLECTIVE_GATHER = 7
COLLECTIVE_SCATTER = 8
COLLECTIVE_SEND = 9
COLLECTIVE_RECEIVE = 10

# enum communicator_flag
COMMUNICATOR_LATE = 1
COMMUNICATOR_ABORTED = 2
COMMUNICATOR_DESTROYED = 4

# enum verbs_status
VERBS_EVENT_STATUS = 1000

# enum share_kind
SHARE_SERIES = 0
SHARE_TIMES = 1
SHARE_FOLDED_TIMES = 2
SHARE_PROCESSES = 3
SHARE_THREADS = 4
SHARE_STACKS = 5
SHARE_LIFECYCLE = 6
SHARE_EVENTS = 7
SHARE_SPANS = 8
SHARE_BLOCK_STACKS = 9
SHARE_COUNT = 10

# enum published
PUBLISHED = 1
PUBLISHED_AND_PROBED = 2

# enum memory_kind
MEMORY_BLOCK = 0
MEMORY_SEGMENT = 1

# enum preload_loss
PRELOAD_LOST_SERIES_FULL = 0
PRELOAD_LOST_DEPTH_EXCEEDED = 1
PRELOAD_LOST_NO_RETURN = 2
PRELOAD_LOST_SLOTS_FULL = 3
PRELOAD_LOST_COPIES_FULL = 4
PRELOAD_LOST_BOUND_PAST = 5
PRELOAD_LOST_DETECTORS_FULL = 6
PRELOAD_LOSSES = 8

# enum preload_probe
PRELOAD_PROBE_THREAD = 0
PRELOAD_PROBE_CALL = 1
PRELOAD_PROBE_GAP = 2

# enum preload_clock
PRELOAD_CLOCK_SYSTEM = 0
PRELOAD_CLOCK_CYCLES = 1

# enum preload_control_flag
PRELOAD_FULL = 1
PRELOAD_NO_CALLS = 2
PRELOAD_STREAM_WORK = 4
PRELOAD_STEPS = 8

RECORD_HEADER = CStruct("kind:H flags:H size:I ktime_ns:Q program_ktime_ns:Q pid:I tid:I")
CUDA_CALL_RECORD = CStruct(
    "start_ktime_ns:Q parent_start_ktime_ns:Q root_start_ktime_ns:Q blocked_ns:Q run_queue_ns:Q "
    "size_bytes:Q address:Q stream:Q function:Q user_stack:Q status:i device:i weight:I "
    "voluntary_switches:I involuntary_switches:I cpu:I grid:3I block:3I api:H variant:H "
    "copy_kind:B choices:B depth:B 1x comm:16s",
    RECORD_HEADER,
)
STALL_RECORD = CStruct(
    "start_ktime_ns:Q runnable_ktime_ns:Q call_start_ktime_ns:Q root_start_ktime_ns:Q "
    "user_stack:Q culprit_pid:I culprit_tid:I waker_pid:I waker_tid:I cpu:I call_api:H "
    "call_depth:B switch_type:B kernel_stack:i system_call:i argument:Q flags:I resource:I "
    "comm:16s culprit_comm:16s waker_comm:16s",
    RECORD_HEADER,
)
CPU_SAMPLING = CStruct("one_in:I period_ns:I")
CPU_SAMPLE_RECORD = CStruct(
    "user_stack:Q weight_ns:Q root_start_ktime_ns:Q kernel_stack:i cpu:I api:H context:B 5x "
    "comm:16s",
    RECORD_HEADER,
)
PYTHON_FRAME = CStruct("code:Q offset:I flags:I")
SAVED_RETURN = CStruct("stack_address:Q return_address:Q")
SAMPLE_RECORD = CStruct(
    "instruction_pointer:Q stack_pointer:Q frame_pointer:Q link_register:Q return_count:I "
    "python_count:I python_status:I stack_bytes:I python_frames:2048s returns:128s",
    RECORD_HEADER,
)
THREAD_DUMP_RECORD = CStruct(
    "since_clock_ns:Q clock_behind_ns:Q stack_pointers:8Q open_calls:I flags:I kernel_stack:i "
    "system_call:i task_state:I state:I comm:16s",
    RECORD_HEADER,
)
CODE_TEXT = CStruct("length:I character_bytes:I data:512s")
CODE_RECORD = CStruct(
    "code:Q address:Q first_line:i version:I line_table_bytes:I line_table_length:I file.length:I "
    "file.character_bytes:I file.data:512s qualified_name.length:I "
    "qualified_name.character_bytes:I qualified_name.data:512s line_table:16384s",
    RECORD_HEADER,
)
GAP_RECORD = CStruct(
    "start_ktime_ns:Q blocked_ns:Q run_queue_ns:Q device:i voluntary_switches:I "
    "involuntary_switches:I previous_api:H next_api:H choices:I 4x comm:16s",
    RECORD_HEADER,
)
TIMES_KEY = CStruct(
    "program_ktime_ns:Q pid:I kernel_stack:i system_call:i state:B context:B flags:B end_state:B "
    "who_pid:I who_tid:I end_pid:I end_tid:I end_kernel_stack:i end_system_call:i resource:I "
    "api:H end_flags:B is_folded:B"
)
TIMES = CStruct("time_ns:Q count:Q ended_ns:Q who_comm:16s end_comm:16s")
TIMES_RECORD = CStruct("count:I 4x", RECORD_HEADER)
FORK_RECORD = CStruct(
    "start_ktime_ns:Q child_program_ktime_ns:Q call_start_ktime_ns:Q root_start_ktime_ns:Q "
    "child_pid:I 4x comm:16s",
    RECORD_HEADER,
)
EXEC_RECORD = CStruct(
    "old_program_ktime_ns:Q inode:Q device:I stopped:I comm:16s path:256s",
    RECORD_HEADER,
)
EXIT_RECORD = CStruct("start_boot_ns:Q exit_code:I 4x comm:16s", RECORD_HEADER)
LIBRARY_RECORD = CStruct("stopped:I 4x path:256s", RECORD_HEADER)
PRELOAD_RECORD = CStruct("memory:Q stopped:I 4x", RECORD_HEADER)
DEVICE_RECORD = CStruct("device:i has_name:I uuid:16s name:64s", RECORD_HEADER)
HANDLE_RECORD = CStruct("handle:Q same_as:Q name:1024s", RECORD_HEADER)
DEVICE_KEY = CStruct("program_ktime_ns:Q pid:I device:i")
MEMORY_TOTALS = CStruct(
    "last_ktime_ns:Q allocated_bytes:Q reserved_bytes:Q peak_allocated_bytes:Q "
    "peak_reserved_bytes:Q before_bytes:q before_freed_bytes:Q allocations:Q frees:Q "
    "handed_out_bytes:Q taken_back_bytes:Q unequal:Q unsampled_bytes:Q rate_limited_bytes:Q"
)
HOLDER_KEY = CStruct("program_ktime_ns:Q stack:Q pid:I device:i")
HOLDER = CStruct(
    "live_bytes:q live_blocks:q allocated_bytes:Q allocated_blocks:Q large_live_bytes:Q"
)
MEMORY_RECORD = CStruct("count:I 4x", RECORD_HEADER)
BLOCK_STACK_RECORD = CStruct("stack:Q user_stack:Q device:i 4x", RECORD_HEADER)
OUT_OF_MEMORY_RECORD = CStruct(
    "asked_bytes:Q allocated_bytes:Q reserved_bytes:Q device_free_bytes:Q device_total_bytes:Q "
    "device_ktime_ns:Q root_start_ktime_ns:Q user_stack:Q device:i source:H api:H comm:16s",
    RECORD_HEADER,
)
THREAD_CONTEXT_RECORD = CStruct(
    "start_ktime_ns:Q trace_id:16s span_id:8s trace_flags:B 7x",
    RECORD_HEADER,
)
STEP_RECORD = CStruct(
    "start_ktime_ns:Q number:Q loader_wait_ns:Q trace_id:16s span_id:8s trace_flags:B source:B "
    "confidence_percent:B step_kind:B 4x name:32s comm:16s",
    RECORD_HEADER,
)
ITERATION_RECORD = CStruct("start_ktime_ns:Q detector:I 4x comm:16s", RECORD_HEADER)
DETECTOR_CALL = CStruct("start_ktime_ns:Q gap_ns:I symbol:H api:B copy_kind:B")
STEP_DETECTOR = CStruct(
    "starts:4Q ends:4Q start_mask:Q end_mask:Q start_calls:I area:I folds:I tid:I pid:I kept:I "
    "program_ktime_ns:Q made:Q history:Q returns_ktime_ns:4Q start_ktime_ns:Q arrival_ktime_ns:Q "
    "last_return_ktime_ns:Q distinct:I before:H is_over:B has_ended:B"
)
REPORTED_STEP = CStruct(
    "start_ktime_ns:Q end_ktime_ns:Q now_ktime_ns:Q number:Q loader_wait_ns:Q trace_id:16s "
    "span_id:8s trace_flags:B step_kind:B 6x name:32s"
)
RANGE_RECORD = CStruct(
    "start_ktime_ns:Q trace_id:16s span_id:8s parent_span_id:8s start_tid:I trace_flags:B "
    "range_kind:B 2x name:64s domain:64s comm:16s",
    RECORD_HEADER,
)
REPORTED_RANGE = CStruct(
    "start_ns:Q end_ns:Q now_ns:Q trace_id:16s span_id:Q parent_span_id:Q left_out:Q "
    "published_address:Q start_tid:I trace_flags:B range_kind:B 2x name:64s domain:64s"
)
COMMUNICATOR_KEY = CStruct("program_ktime_ns:Q handle:Q pid:I generation:I")
COLLECTIVE = CStruct(
    "number:Q count:Q called_ktime_ns:Q root:i operation:B datatype:B reduction:B 1x"
)
COMMUNICATOR = CStruct(
    "id:Q called:Q completed:Q completed_ktime_ns:Q completions:Q waited_ns:Q captured:Q failed:Q "
    "made_ktime_ns:Q rank:i rank_count:i device:i async_error:i flags:I 4x calls:16Q bytes:16Q "
    "recent:512s"
)
CLOCK_RECORD = CStruct("unix_ns:Q", RECORD_HEADER)
COUNTERS_RECORD = CStruct("values:48Q", RECORD_HEADER)
OPEN_CALL_RECORD = CStruct(
    "start_ktime_ns:Q root_start_ktime_ns:Q blocked_ns:Q run_queue_ns:Q user_stack:Q device:i "
    "api:H depth:B 1x comm:16s",
    RECORD_HEADER,
)
AGGREGATE_KEY = CStruct(
    "program_ktime_ns:Q pid:I status:i device:i metric:H api:H copy_kind:B nested:B 6x"
)
AGGREGATE = CStruct("sum:Q min_complement:Q max:Q size_bytes:Q buckets:192Q")
AGGREGATES_RECORD = CStruct("count:I 4x", RECORD_HEADER)
API_DESCRIPTOR = CStruct(
    "family:B layer:B size_slot:B height_slot:B stream_slot:B address_slot:B address_is_output:B "
    "copy_kind_slot:B fixed_copy_kind:B launch_shape:B function_slot:B device_slot:B size_shift:B "
    "stream_capture:B properties_slot:B physical:B size_form:B stream_work:B nccl:B operation:B "
    "communicator_slot:B datatype_slot:B reduction_slot:B root_slot:B returns_pointer:B preload:B"
)
SHARES = CStruct(
    "held:10i refused:10I record_arrival_ktime_ns:2Q span_arrival_ktime_ns:Q "
    "block_stack_arrival_ktime_ns:Q"
)
SHARE_CORRECTIONS = CStruct("held:10i")
PROGRAM_KEY = CStruct("program_ktime_ns:Q pid:I 4x")
ENDED_SHARES = CStruct(
    "shares.held:10i shares.refused:10I shares.record_arrival_ktime_ns:2Q "
    "shares.span_arrival_ktime_ns:Q shares.block_stack_arrival_ktime_ns:Q uid:I comm:16s 4x"
)
SETTINGS = CStruct(
    "duration_bounds_ns:192Q size_bounds_bytes:192Q slow_floor_ns:Q stall_floor_ns:Q "
    "call_stall_floor_ns:Q span_interval_ns:Q span_burst_ns:Q wakeup_bytes:Q sample_limit_bytes:Q "
    "stall_samples_interval_ns:Q tick_period_ns:Q cpu_sample_interval_ns:Q large_bytes:Q "
    "sample_bytes:Q block_stack_interval_ns:Q started_boot_ns:Q sample_one_in:I watch_all:I "
    "default_process_flags:I agent_pid:I pid_namespace_inode:I sample_moments:I block_mode:I "
    "finds_steps:I share_bounds:10I apis:6656s"
)
PROCESS = CStruct(
    "program_ktime_ns:Q span_arrival_ktime_ns:Q flags:I resources:I gil_tid:I communicators:I "
    "step_arrival_ktime_ns:Q event_arrival_ktime_ns:Q stopped_ktime_ns:Q shares.held:10i "
    "shares.refused:10I shares.record_arrival_ktime_ns:2Q shares.span_arrival_ktime_ns:Q "
    "shares.block_stack_arrival_ktime_ns:Q uid:I stopped_tid:I"
)
INTERPRETER = CStruct(
    "program_ktime_ns:Q start:Q end:Q version:I runtime_interpreters:I interpreter_next:I "
    "interpreter_threads:I thread_next:I thread_id:I thread_frame:I c_frame_frame:I frame_code:I "
    "frame_previous:I frame_instruction:I frame_owner:I frame_bytes:I shim_owner:I "
    "code_first_line:I code_file:I code_name:I code_line_table:I code_instructions:I code_bytes:I "
    "text_length:I text_state:I text_ascii:I text_compact:I bytes_length:I bytes_data:I"
)
THREAD_CONTEXT_PLACE = CStruct("program_ktime_ns:Q offset:q module:Q")
THRESHOLD_KEY = CStruct("program_ktime_ns:Q pid:I api:H copy_kind:B 1x")
THREAD_DUMP_KEY = CStruct("pid:I tid:I")
FILE_KEY = CStruct("inode:Q device:I 4x")
OPEN_CALL = CStruct(
    "start_ktime_ns:Q stack_pointer:Q size_bytes:Q address:Q stream:Q function:Q blocked_ns:Q "
    "run_queue_ns:Q voluntary_switches:I involuntary_switches:I grid:3I block:3I device:i api:H "
    "variant:H copy_kind:B choices:B is_on_host:B has_no_size:B status:i is_published:B 7x"
)
PUBLISHED_CONTEXT = CStruct("trace_id:16s span_id:Q valid:B trace_flags:B attributes_bytes:H 4x")
PUBLISHED_RANGE = CStruct(
    "trace_id:16s span_id:Q valid:B trace_flags:B attributes_bytes:H 4x within_span_id:Q"
)
INTERVAL = CStruct(
    "start_ktime_ns:Q runnable_ktime_ns:Q end_ktime_ns:Q call_start_ktime_ns:Q user_stack:Q "
    "argument:Q culprit_pid:I culprit_tid:I waker_pid:I waker_tid:I cpu:I kernel_stack:i "
    "system_call:i flags:I call_api:H call_depth:B switch_type:B resource:I culprit_comm:16s "
    "waker_comm:16s context.trace_id:16s context.span_id:Q context.valid:B context.trace_flags:B "
    "context.attributes_bytes:H 4x"
)
CPU_TIME = CStruct("time_ns:Q booked_ns:Q place:I 4x")
KEPT_WAITS = CStruct(
    "key.program_ktime_ns:Q key.pid:I key.kernel_stack:i key.system_call:i key.state:B "
    "key.context:B key.flags:B key.end_state:B key.who_pid:I key.who_tid:I key.end_pid:I "
    "key.end_tid:I key.end_kernel_stack:i key.end_system_call:i key.resource:I key.api:H "
    "key.end_flags:B key.is_folded:B time_ns:Q count:Q booked_ns:Q booked_count:Q changes:I "
    "misses:I"
)
WAIT_LINK = CStruct(
    "start_ktime_ns:Q last_ktime_ns:Q runnable_ktime_ns:Q end_ktime_ns:Q blocked_ns:Q "
    "run_queue_ns:Q end_pid:I end_tid:I kernel_stack:i system_call:i state:B flags:B 6x"
)
DIVISION = CStruct(
    "from_ktime_ns:Q to_ktime_ns:Q unbooked_ns:Q left_ns:Q small_ns:Q run_queue_ns:Q floor_ns:Q "
    "ended:Q"
)
FAILED_REQUEST = CStruct(
    "ktime_ns:Q asked_bytes:Q root_start_ktime_ns:Q user_stack:Q device:i api:I"
)
THREAD = CStruct(
    "program_ktime_ns:Q booked:Q links_ktime_ns:Q slices_start_ktime_ns:Q slices_end_ktime_ns:Q "
    "slices_ns:Q off_ktime_ns:Q runnable_ktime_ns:Q blocked_ns:Q run_queue_ns:Q "
    "last_return_ktime_ns:Q clone_ktime_ns:Q context_ktime_ns:Q noted_ktime_ns:Q gap_span_id:Q "
    "step_return_ktime_ns:Q ranges_address:Q gap_blocked_ns:Q gap_run_queue_ns:Q argument:Q "
    "runtime_ns:Q user_stack:Q stall_samples_arrival_ktime_ns:Q last_file:Q last_inode:Q "
    "last_inode_number:Q failed.ktime_ns:Q failed.asked_bytes:Q failed.root_start_ktime_ns:Q "
    "failed.user_stack:Q failed.device:i failed.api:I device_free_bytes:Q device_total_bytes:Q "
    "device_ktime_ns:Q device_answer:Q prepared_ktime_ns:Q preload_slot:Q preload_view:30Q pid:I "
    "tid:I voluntary_switches:I involuntary_switches:I culprit_pid:I culprit_tid:I waker_pid:I "
    "waker_tid:I device:i depth:I gap_voluntary_switches:I gap_involuntary_switches:I "
    "kernel_stack:i system_call:i stall_flags:I process_flags:I until_sample:I entries:I "
    "returns:I next_link:I woken_cpu:I descriptor:i resource:I shared_resource:I "
    "last_descriptor:i last_resource:I last_shared_resource:I slices_place:I "
    "slices_kernel_stack:i slices_system_call:i waits_for_io:I collectives_epoch:I "
    "has_communicators:I detector:I until_detector:I counts_in_step:I may_be_reported:I "
    "last_api:H switch_type:B sampled:B call_buckets:16s off_cpu_bucket:B run_queue_bucket:B 6x "
    "culprit_comm:16s waker_comm:16s comm:16s context.trace_id:16s context.span_id:Q "
    "context.valid:B context.trace_flags:B context.attributes_bytes:H 4x kept:192s on_cpu:192s "
    "links:576s division.from_ktime_ns:Q division.to_ktime_ns:Q division.unbooked_ns:Q "
    "division.left_ns:Q division.small_ns:Q division.run_queue_ns:Q division.floor_ns:Q "
    "division.ended:Q part.start_ktime_ns:Q part.last_ktime_ns:Q part.runnable_ktime_ns:Q "
    "part.end_ktime_ns:Q part.blocked_ns:Q part.run_queue_ns:Q part.end_pid:I part.end_tid:I "
    "part.kernel_stack:i part.system_call:i part.state:B part.flags:B 6x intervals:608s "
    "calls:960s"
)
ALLOCATION_KEY = CStruct("program_ktime_ns:Q address:Q pid:I layer:I")
STREAM_KEY = CStruct("program_ktime_ns:Q stream:Q pid:I 4x")
CAPTURE = CStruct("origin:Q ktime_ns:Q")
KEPT_COMMUNICATOR = CStruct(
    "communicator.id:Q communicator.called:Q communicator.completed:Q "
    "communicator.completed_ktime_ns:Q communicator.completions:Q communicator.waited_ns:Q "
    "communicator.captured:Q communicator.failed:Q communicator.made_ktime_ns:Q "
    "communicator.rank:i communicator.rank_count:i communicator.device:i "
    "communicator.async_error:i communicator.flags:I 4x communicator.calls:16Q "
    "communicator.bytes:16Q communicator.recent:512s magic:Q children:I 4x"
)
COLLECTIVE_WORK = CStruct("handle:Q number:Q ktime_ns:Q generation:I 4x")
STREAM_WORKS = CStruct("capture.origin:Q capture.ktime_ns:Q works:128s")
UNBORN = CStruct("where:Q id:Q rank:i rank_count:i")
UNBORN_LIST = CStruct("unborn:192s")
COMMUNICATOR_LIST = CStruct("keys:384s")
ALLOCATION = CStruct("size_bytes:Q physical:Q device:i references:I ktime_ns:Q")
DEVICE_MEMORY = CStruct(
    "totals.last_ktime_ns:Q totals.allocated_bytes:Q totals.reserved_bytes:Q "
    "totals.peak_allocated_bytes:Q totals.peak_reserved_bytes:Q totals.before_bytes:q "
    "totals.before_freed_bytes:Q totals.allocations:Q totals.frees:Q totals.handed_out_bytes:Q "
    "totals.taken_back_bytes:Q totals.unequal:Q totals.unsampled_bytes:Q "
    "totals.rate_limited_bytes:Q until_sample_bytes:q failed_ktime_ns:Q is_inherited:Q tick:Q"
)
BLOCK_KEY = CStruct("program_ktime_ns:Q address:Q pid:I kind:I")
BLOCK = CStruct("size_bytes:Q weight_bytes:Q stack:Q ktime_ns:Q device:i weight_blocks:I")
HELD = CStruct(
    "holder.live_bytes:q holder.live_blocks:q holder.allocated_bytes:Q holder.allocated_blocks:Q "
    "holder.large_live_bytes:Q is_sent:Q"
)
CHAIN_KEY = CStruct("program_ktime_ns:Q stack:Q pid:I 4x")
KERNEL_STACK = CStruct("addresses:24Q")
RESOURCE_IDENTITY = CStruct(
    "inode:Q operations:Q device:I family:H socket_type:H local_port:H remote_port:H "
    "is_listening:B is_remote:B 2x remote_address:16s"
)
RESOURCE = CStruct(
    "identity.inode:Q identity.operations:Q identity.device:I identity.family:H "
    "identity.socket_type:H identity.local_port:H identity.remote_port:H identity.is_listening:B "
    "identity.is_remote:B 2x identity.remote_address:16s shared:I pid:I program_ktime_ns:Q "
    "inode:Q peer_inode:Q retransmits:Q special_device:I mode:H local_port:H local_address:16s "
    "file_system:16s subtype:16s path:256s"
)
PRELOAD_HEADER = CStruct(
    "magic:Q size_bytes:Q start_ktime_ns:Q version:I pid:I slots_begun:I common_begun:I clock:I "
    "4x lost:8Q"
)
PRELOAD_CONTROL = CStruct(
    "generation:I flags:I gap_floor_ns:Q call_floor_ns:Q sample_one_in:I version:I slow_ns:256Q"
)
PRELOAD_KEY = CStruct("status:i device:i metric:H api:H copy_kind:B nested:B 2x")
PRELOAD_SERIES = CStruct(
    "key.status:i key.device:i key.metric:H key.api:H key.copy_kind:B key.nested:B 2x "
    "aggregate.sum:Q aggregate.min_complement:Q aggregate.max:Q aggregate.size_bytes:Q "
    "aggregate.buckets:192Q 16x"
)
PRELOAD_COMMON = CStruct("series:1638400s")
PRELOAD_OPEN_CALL = CStruct("start_ktime_ns:Q stack_pointer:Q api:H variant:H device:i")
PRELOAD_PLACE = CStruct("call_ns:Q gap_ns:Q")
PRELOAD_SLOT = CStruct(
    "tid:I generation:I depth:I device:i last_return_ktime_ns:Q begun_ktime_ns:Q series_begun:I "
    "until_sample:I last_api:I threads:I calls:192s places:4096s 3856x series:102400s"
)
PRELOAD_ITERATION = CStruct("start_ktime_ns:Q end_ktime_ns:Q")
PRELOAD_DETECTOR = CStruct(
    "detector.starts:4Q detector.ends:4Q detector.start_mask:Q detector.end_mask:Q "
    "detector.start_calls:I detector.area:I detector.folds:I detector.tid:I detector.pid:I "
    "detector.kept:I detector.program_ktime_ns:Q detector.made:Q detector.history:Q "
    "detector.returns_ktime_ns:4Q detector.start_ktime_ns:Q detector.arrival_ktime_ns:Q "
    "detector.last_return_ktime_ns:Q detector.distinct:I detector.before:H detector.is_over:B "
    "detector.has_ended:B iterations_made:Q 3896x iterations:16384s calls:524288s"
)
PRELOAD_CALL = CStruct(
    "start_ktime_ns:Q end_ktime_ns:Q parent_start_ktime_ns:Q root_start_ktime_ns:Q size_bytes:Q "
    "address:Q stream:Q function:Q status:i device:i weight:I grid:3I block:3I depth:I api:H "
    "variant:H copy_kind:B choices:B 2x"
)
PRELOAD_GAP = CStruct("start_ktime_ns:Q end_ktime_ns:Q device:i previous_api:H next_api:H")

_CONSTANTS = {name: value for name, value in globals().items() if isinstance(value, int)}


def _names(first: str, last: str) -> dict[int, str]:
    # The enumerators of one enumeration stand one after the other.
    order = list(_CONSTANTS)
    return {
        _CONSTANTS[name]: name.lower() for name in order[order.index(first) : order.index(last) + 1]
    }


RECORD_KIND_NAMES = _names("RECORD_CUDA_CALL", "RECORD_FABRIC")
COUNTER_NAMES = _names("COUNTER_LOST_RING_FULL", "COUNTER_COUNT")
API_FAMILY_NAMES = _names("FAMILY_OTHER", "FAMILY_PREPARE")
API_LAYER_NAMES = _names("LAYER_RUNTIME", "LAYER_VERBS")
COPY_KIND_NAMES = _names("COPY_HOST_TO_HOST", "COPY_NONE")
CHOICE_NAMES = _names("CHOICE_FAILED", "CHOICE_FIRST_USE")
METRIC_NAMES = _names("METRIC_CALL_DURATION", "METRIC_ASYNC_EVENT")
SWITCH_TYPE_NAMES = _names("SWITCH_VOLUNTARY", "SWITCH_INVOLUNTARY")
THREAD_STATE_NAMES = _names("STATE_ON_CPU", "STATE_BLOCKED")
CALL_CONTEXT_NAMES = _names("CONTEXT_GAP", "CONTEXT_OTHER")
STALL_FLAG_NAMES = _names("STALL_GIL", "STALL_FROZEN")
STEP_SOURCE_NAMES = _names("STEP_REPORTED", "STEP_FOUND")
STEP_KIND_NAMES = _names("STEP_UNKNOWN", "STEP_DECODE")
RANGE_KIND_NAMES = _names("RANGE_PUSHED", "RANGE_MARKED")
