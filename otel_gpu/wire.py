"""
GENERATED from bpf/events.h by tools/generate_wire.py. Do not edit.

Enumerators are plain integers. Each struct is a ``struct.Struct`` with the names
of the values that it unpacks to; a nested header comes first, arrays of numbers
give one value per element, arrays of structs come as bytes.
"""

import struct

WIRE_VERSION = 1
COMM_BYTES = 16
PATH_BYTES = 256
MAX_APIS = 192
MAX_DEPTH = 8
MAX_INTERVALS = 4
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
RECORD_KIND_NAMES = {
    1: "record_cuda_call",
    2: "record_stall",
    3: "record_fork",
    4: "record_exec",
    5: "record_exit",
    6: "record_library",
    7: "record_device",
    8: "record_gap",
    9: "record_sample",
    10: "record_code",
    256: "record_capture",
    257: "record_clock",
    258: "record_process",
    259: "record_aggregates",
    260: "record_counters",
    261: "record_open_call",
    262: "record_probes",
    263: "record_status",
    264: "record_stack",
    265: "record_times",
    266: "record_pressure",
    267: "record_user_stack",
}

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
COUNTER_SPANS_WITHHELD_RATE = 10
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
COUNTER_SAMPLES_WITHHELD = 21
COUNTER_LOST_SAMPLE = 22
COUNTER_LOST_PYTHON = 23
COUNTER_LOST_INTERPRETERS_FULL = 24
COUNTER_LOST_ALLOCATIONS_FULL = 25
COUNTER_LOST_UNKNOWN_FREE = 26
COUNTER_COUNT = 27
COUNTER_NAMES = {
    0: "counter_lost_ring_full",
    1: "counter_lost_series_full",
    2: "counter_lost_threads_full",
    3: "counter_lost_processes_full",
    4: "counter_lost_no_entry",
    5: "counter_lost_no_return",
    6: "counter_lost_depth_exceeded",
    7: "counter_lost_read_fault",
    8: "counter_lost_lifecycle_ring_full",
    9: "counter_lost_exit_inside_call",
    10: "counter_spans_withheld_rate",
    11: "counter_probe_entries",
    12: "counter_probe_returns",
    13: "counter_scheduler_switches",
    14: "counter_spans_chosen",
    15: "counter_stalls_chosen",
    16: "counter_lost_stack",
    17: "counter_lost_times_full",
    18: "counter_gaps_chosen",
    19: "counter_switches_repaired",
    20: "counter_samples",
    21: "counter_samples_withheld",
    22: "counter_lost_sample",
    23: "counter_lost_python",
    24: "counter_lost_interpreters_full",
    25: "counter_lost_allocations_full",
    26: "counter_lost_unknown_free",
    27: "counter_count",
}

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
API_FAMILY_NAMES = {
    0: "family_other",
    1: "family_launch",
    2: "family_graph_launch",
    3: "family_synchronize",
    4: "family_allocate",
    5: "family_free",
    6: "family_copy",
    7: "family_memset",
    8: "family_stream",
    9: "family_event",
    10: "family_graph",
    11: "family_set_device",
    12: "family_get_device",
    13: "family_device_uuid",
    14: "family_device_properties",
    15: "family_host_allocate",
    16: "family_host_free",
    17: "family_unmap",
}

# enum api_layer
LAYER_RUNTIME = 1
LAYER_DRIVER = 2
API_LAYER_NAMES = {
    1: "layer_runtime",
    2: "layer_driver",
}

# enum memory_key
MEMORY_HANDLE = 3
MEMORY_MAPPING = 4
MEMORY_PHYSICAL = 5
MEMORY_KEY_NAMES = {
    3: "memory_handle",
    4: "memory_mapping",
    5: "memory_physical",
}

# enum launch_shape
LAUNCH_NONE = 0
LAUNCH_DIM3 = 1
LAUNCH_SCALARS = 2
LAUNCH_CONFIG = 3
LAUNCH_SHAPE_NAMES = {
    0: "launch_none",
    1: "launch_dim3",
    2: "launch_scalars",
    3: "launch_config",
}

# enum stream_capture
CAPTURE_NONE = 0
CAPTURE_BEGINS = 1
CAPTURE_ENDS = 2
STREAM_CAPTURE_NAMES = {
    0: "capture_none",
    1: "capture_begins",
    2: "capture_ends",
}

# enum physical_memory
PHYSICAL_NONE = 0
PHYSICAL_CREATE = 1
PHYSICAL_IMPORT = 2
PHYSICAL_RETAIN = 3
PHYSICAL_RELEASE = 4
PHYSICAL_MAP = 5
PHYSICAL_UNMAP = 6
PHYSICAL_MEMORY_NAMES = {
    0: "physical_none",
    1: "physical_create",
    2: "physical_import",
    3: "physical_retain",
    4: "physical_release",
    5: "physical_map",
    6: "physical_unmap",
}

# enum copy_kind
COPY_HOST_TO_HOST = 0
COPY_HOST_TO_DEVICE = 1
COPY_DEVICE_TO_HOST = 2
COPY_DEVICE_TO_DEVICE = 3
COPY_DEFAULT = 4
COPY_NONE = 255
COPY_KIND_NAMES = {
    0: "copy_host_to_host",
    1: "copy_host_to_device",
    2: "copy_device_to_host",
    3: "copy_device_to_device",
    4: "copy_default",
    255: "copy_none",
}

# enum sample_moment
SAMPLE_CALLS = 1
SAMPLE_STALLS = 2
SAMPLE_MOMENT_NAMES = {
    1: "sample_calls",
    2: "sample_stalls",
}

# enum choice
CHOICE_FAILED = 1
CHOICE_SLOW = 2
CHOICE_SAMPLED = 4
CHOICE_FULL = 8
CHOICE_STALLED = 16
CHOICE_PARENT = 32
CHOICE_NAMES = {
    1: "choice_failed",
    2: "choice_slow",
    4: "choice_sampled",
    8: "choice_full",
    16: "choice_stalled",
    32: "choice_parent",
}

# enum metric
METRIC_CALL_DURATION = 1
METRIC_LAUNCH_GAP = 2
METRIC_OFF_CPU = 3
METRIC_RUN_QUEUE = 4
METRIC_COPY_SIZE = 5
METRIC_FORK = 6
METRIC_NAMES = {
    1: "metric_call_duration",
    2: "metric_launch_gap",
    3: "metric_off_cpu",
    4: "metric_run_queue",
    5: "metric_copy_size",
    6: "metric_fork",
}

# enum switch_type
SWITCH_VOLUNTARY = 1
SWITCH_INVOLUNTARY = 2
SWITCH_TYPE_NAMES = {
    1: "switch_voluntary",
    2: "switch_involuntary",
}

# enum thread_state
STATE_ON_CPU = 0
STATE_RUN_QUEUE = 1
STATE_BLOCKED = 2
THREAD_STATE_NAMES = {
    0: "state_on_cpu",
    1: "state_run_queue",
    2: "state_blocked",
}

# enum call_context
CONTEXT_GAP = 0
CONTEXT_SYNCHRONIZE = 1
CONTEXT_CALL = 2
CONTEXT_OTHER = 3
CALL_CONTEXT_NAMES = {
    0: "context_gap",
    1: "context_synchronize",
    2: "context_call",
    3: "context_other",
}

# enum stall_flag
STALL_GIL = 1
STALL_FAULT = 2
STALL_IDLE_CPU = 4
STALL_THROTTLED = 8
STALL_AGENT = 16
STALL_FLAG_NAMES = {
    1: "stall_gil",
    2: "stall_fault",
    4: "stall_idle_cpu",
    8: "stall_throttled",
    16: "stall_agent",
}

# enum library_flag
LIBRARY_NOT_CUDA = 1
LIBRARY_FLAG_NAMES = {
    1: "library_not_cuda",
}

# enum exit_flag
EXIT_NOT_SEEN = 1
EXIT_FLAG_NAMES = {
    1: "exit_not_seen",
}

# enum process_flag
PROCESS_FULL = 1
PROCESS_STOP_ON_LOAD = 2
PROCESS_NO_SPANS = 4
PROCESS_HAS_CUDA = 8
PROCESS_FLAG_NAMES = {
    1: "process_full",
    2: "process_stop_on_load",
    4: "process_no_spans",
    8: "process_has_cuda",
}

# struct record_header: 32 bytes
RECORD_HEADER = struct.Struct("<HHIQQII")
RECORD_HEADER_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
)

# struct cuda_call_record: 184 bytes
CUDA_CALL_RECORD = struct.Struct("<HHIQQIIQQQQQQQQQQiiIIII3I3IHHBBB1x16s")
CUDA_CALL_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_ktime_ns",
    "parent_start_ktime_ns",
    "root_start_ktime_ns",
    "blocked_ns",
    "run_queue_ns",
    "size_bytes",
    "address",
    "stream",
    "function",
    "user_stack",
    "status",
    "device",
    "weight",
    "voluntary_switches",
    "involuntary_switches",
    "cpu",
    "grid_0",
    "grid_1",
    "grid_2",
    "block_0",
    "block_1",
    "block_2",
    "api",
    "variant",
    "copy_kind",
    "choices",
    "depth",
    "comm",
)

# struct stall_record: 168 bytes
STALL_RECORD = struct.Struct("<HHIQQIIQQQQQIIIIIHBBiiQI4x16s16s16s")
STALL_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_ktime_ns",
    "runnable_ktime_ns",
    "call_start_ktime_ns",
    "root_start_ktime_ns",
    "user_stack",
    "culprit_pid",
    "culprit_tid",
    "waker_pid",
    "waker_tid",
    "cpu",
    "call_api",
    "call_depth",
    "switch_type",
    "kernel_stack",
    "system_call",
    "argument",
    "flags",
    "comm",
    "culprit_comm",
    "waker_comm",
)

# enum python_status
PYTHON_NONE = 0
PYTHON_NO_THREAD = 1
PYTHON_COMPLETE = 2
PYTHON_CUT = 3
PYTHON_BROKEN = 4
PYTHON_STATUS_NAMES = {
    0: "python_none",
    1: "python_no_thread",
    2: "python_complete",
    3: "python_cut",
    4: "python_broken",
}

# enum python_frame_flag
PYTHON_FRAME_ENTRY = 1
PYTHON_FRAME_SHIM = 2
PYTHON_FRAME_FLAG_NAMES = {
    1: "python_frame_entry",
    2: "python_frame_shim",
}

# struct python_frame: 16 bytes
PYTHON_FRAME = struct.Struct("<QII")
PYTHON_FRAME_FIELDS = (
    "code",
    "offset",
    "flags",
)

# struct saved_return: 16 bytes
SAVED_RETURN = struct.Struct("<QQ")
SAVED_RETURN_FIELDS = (
    "stack_address",
    "return_address",
)

# struct sample_record: 2256 bytes
SAMPLE_RECORD = struct.Struct("<HHIQQIIQQQQIIII2048s128s")
SAMPLE_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "instruction_pointer",
    "stack_pointer",
    "frame_pointer",
    "link_register",
    "return_count",
    "python_count",
    "python_status",
    "stack_bytes",
    "python_frames",
    "returns",
)

# struct code_text: 520 bytes
CODE_TEXT = struct.Struct("<II512s")
CODE_TEXT_FIELDS = (
    "length",
    "character_bytes",
    "data",
)

# struct code_record: 17488 bytes
CODE_RECORD = struct.Struct("<HHIQQIIQQiIIIII512sII512s16384s")
CODE_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "code",
    "address",
    "first_line",
    "version",
    "line_table_bytes",
    "line_table_length",
    "file.length",
    "file.character_bytes",
    "file.data",
    "qualified_name.length",
    "qualified_name.character_bytes",
    "qualified_name.data",
    "line_table",
)

# struct gap_record: 96 bytes
GAP_RECORD = struct.Struct("<HHIQQIIQQQiIIHHI4x16s")
GAP_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_ktime_ns",
    "blocked_ns",
    "run_queue_ns",
    "device",
    "voluntary_switches",
    "involuntary_switches",
    "previous_api",
    "next_api",
    "choices",
    "comm",
)

# struct times_key: 24 bytes
TIMES_KEY = struct.Struct("<QIiiBBB1x")
TIMES_KEY_FIELDS = (
    "image_ktime_ns",
    "pid",
    "kernel_stack",
    "system_call",
    "state",
    "context",
    "flags",
)

# struct times: 16 bytes
TIMES = struct.Struct("<QQ")
TIMES_FIELDS = (
    "time_ns",
    "count",
)

# struct times_record: 40 bytes
TIMES_RECORD = struct.Struct("<HHIQQIII4x")
TIMES_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "count",
)

# struct fork_record: 88 bytes
FORK_RECORD = struct.Struct("<HHIQQIIQQQQI4x16s")
FORK_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_ktime_ns",
    "child_image_ktime_ns",
    "call_start_ktime_ns",
    "root_start_ktime_ns",
    "child_pid",
    "comm",
)

# struct exec_record: 328 bytes
EXEC_RECORD = struct.Struct("<HHIQQIIQQII16s256s")
EXEC_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "old_image_ktime_ns",
    "inode",
    "device",
    "stopped",
    "comm",
    "path",
)

# struct exit_record: 64 bytes
EXIT_RECORD = struct.Struct("<HHIQQIIQI4x16s")
EXIT_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_boot_ns",
    "exit_code",
    "comm",
)

# struct library_record: 296 bytes
LIBRARY_RECORD = struct.Struct("<HHIQQIII4x256s")
LIBRARY_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "stopped",
    "path",
)

# struct device_record: 120 bytes
DEVICE_RECORD = struct.Struct("<HHIQQIIiI16s64s")
DEVICE_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "device",
    "has_name",
    "uuid",
    "name",
)

# struct clock_record: 40 bytes
CLOCK_RECORD = struct.Struct("<HHIQQIIQ")
CLOCK_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "unix_ns",
)

# struct counters_record: 248 bytes
COUNTERS_RECORD = struct.Struct("<HHIQQII27Q")
COUNTERS_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "values_0",
    "values_1",
    "values_2",
    "values_3",
    "values_4",
    "values_5",
    "values_6",
    "values_7",
    "values_8",
    "values_9",
    "values_10",
    "values_11",
    "values_12",
    "values_13",
    "values_14",
    "values_15",
    "values_16",
    "values_17",
    "values_18",
    "values_19",
    "values_20",
    "values_21",
    "values_22",
    "values_23",
    "values_24",
    "values_25",
    "values_26",
)

# struct open_call_record: 96 bytes
OPEN_CALL_RECORD = struct.Struct("<HHIQQIIQQQQQiHB1x16s")
OPEN_CALL_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "start_ktime_ns",
    "root_start_ktime_ns",
    "blocked_ns",
    "run_queue_ns",
    "user_stack",
    "device",
    "api",
    "depth",
    "comm",
)

# struct aggregate_key: 32 bytes
AGGREGATE_KEY = struct.Struct("<QIiiHHBB6x")
AGGREGATE_KEY_FIELDS = (
    "image_ktime_ns",
    "pid",
    "status",
    "device",
    "metric",
    "api",
    "copy_kind",
    "nested",
)

# struct aggregate: 1568 bytes
AGGREGATE = struct.Struct("<QQQQ192Q")
AGGREGATE_FIELDS = (
    "sum",
    "min_complement",
    "max",
    "size_bytes",
    "buckets_0",
    "buckets_1",
    "buckets_2",
    "buckets_3",
    "buckets_4",
    "buckets_5",
    "buckets_6",
    "buckets_7",
    "buckets_8",
    "buckets_9",
    "buckets_10",
    "buckets_11",
    "buckets_12",
    "buckets_13",
    "buckets_14",
    "buckets_15",
    "buckets_16",
    "buckets_17",
    "buckets_18",
    "buckets_19",
    "buckets_20",
    "buckets_21",
    "buckets_22",
    "buckets_23",
    "buckets_24",
    "buckets_25",
    "buckets_26",
    "buckets_27",
    "buckets_28",
    "buckets_29",
    "buckets_30",
    "buckets_31",
    "buckets_32",
    "buckets_33",
    "buckets_34",
    "buckets_35",
    "buckets_36",
    "buckets_37",
    "buckets_38",
    "buckets_39",
    "buckets_40",
    "buckets_41",
    "buckets_42",
    "buckets_43",
    "buckets_44",
    "buckets_45",
    "buckets_46",
    "buckets_47",
    "buckets_48",
    "buckets_49",
    "buckets_50",
    "buckets_51",
    "buckets_52",
    "buckets_53",
    "buckets_54",
    "buckets_55",
    "buckets_56",
    "buckets_57",
    "buckets_58",
    "buckets_59",
    "buckets_60",
    "buckets_61",
    "buckets_62",
    "buckets_63",
    "buckets_64",
    "buckets_65",
    "buckets_66",
    "buckets_67",
    "buckets_68",
    "buckets_69",
    "buckets_70",
    "buckets_71",
    "buckets_72",
    "buckets_73",
    "buckets_74",
    "buckets_75",
    "buckets_76",
    "buckets_77",
    "buckets_78",
    "buckets_79",
    "buckets_80",
    "buckets_81",
    "buckets_82",
    "buckets_83",
    "buckets_84",
    "buckets_85",
    "buckets_86",
    "buckets_87",
    "buckets_88",
    "buckets_89",
    "buckets_90",
    "buckets_91",
    "buckets_92",
    "buckets_93",
    "buckets_94",
    "buckets_95",
    "buckets_96",
    "buckets_97",
    "buckets_98",
    "buckets_99",
    "buckets_100",
    "buckets_101",
    "buckets_102",
    "buckets_103",
    "buckets_104",
    "buckets_105",
    "buckets_106",
    "buckets_107",
    "buckets_108",
    "buckets_109",
    "buckets_110",
    "buckets_111",
    "buckets_112",
    "buckets_113",
    "buckets_114",
    "buckets_115",
    "buckets_116",
    "buckets_117",
    "buckets_118",
    "buckets_119",
    "buckets_120",
    "buckets_121",
    "buckets_122",
    "buckets_123",
    "buckets_124",
    "buckets_125",
    "buckets_126",
    "buckets_127",
    "buckets_128",
    "buckets_129",
    "buckets_130",
    "buckets_131",
    "buckets_132",
    "buckets_133",
    "buckets_134",
    "buckets_135",
    "buckets_136",
    "buckets_137",
    "buckets_138",
    "buckets_139",
    "buckets_140",
    "buckets_141",
    "buckets_142",
    "buckets_143",
    "buckets_144",
    "buckets_145",
    "buckets_146",
    "buckets_147",
    "buckets_148",
    "buckets_149",
    "buckets_150",
    "buckets_151",
    "buckets_152",
    "buckets_153",
    "buckets_154",
    "buckets_155",
    "buckets_156",
    "buckets_157",
    "buckets_158",
    "buckets_159",
    "buckets_160",
    "buckets_161",
    "buckets_162",
    "buckets_163",
    "buckets_164",
    "buckets_165",
    "buckets_166",
    "buckets_167",
    "buckets_168",
    "buckets_169",
    "buckets_170",
    "buckets_171",
    "buckets_172",
    "buckets_173",
    "buckets_174",
    "buckets_175",
    "buckets_176",
    "buckets_177",
    "buckets_178",
    "buckets_179",
    "buckets_180",
    "buckets_181",
    "buckets_182",
    "buckets_183",
    "buckets_184",
    "buckets_185",
    "buckets_186",
    "buckets_187",
    "buckets_188",
    "buckets_189",
    "buckets_190",
    "buckets_191",
)

# struct aggregates_record: 40 bytes
AGGREGATES_RECORD = struct.Struct("<HHIQQIII4x")
AGGREGATES_RECORD_FIELDS = (
    "kind",
    "flags",
    "size",
    "ktime_ns",
    "image_ktime_ns",
    "pid",
    "tid",
    "count",
)

# struct api_descriptor: 16 bytes
API_DESCRIPTOR = struct.Struct("<BBBBBBBBBBBBBBBB")
API_DESCRIPTOR_FIELDS = (
    "family",
    "layer",
    "size_slot",
    "height_slot",
    "stream_slot",
    "address_slot",
    "address_is_output",
    "copy_kind_slot",
    "fixed_copy_kind",
    "launch_shape",
    "function_slot",
    "device_slot",
    "size_shift",
    "stream_capture",
    "properties_slot",
    "physical",
)

# struct settings: 6240 bytes
SETTINGS = struct.Struct("<192Q192QQQQQQQQQIIIIIIII3072s")
SETTINGS_FIELDS = (
    "duration_bounds_ns_0",
    "duration_bounds_ns_1",
    "duration_bounds_ns_2",
    "duration_bounds_ns_3",
    "duration_bounds_ns_4",
    "duration_bounds_ns_5",
    "duration_bounds_ns_6",
    "duration_bounds_ns_7",
    "duration_bounds_ns_8",
    "duration_bounds_ns_9",
    "duration_bounds_ns_10",
    "duration_bounds_ns_11",
    "duration_bounds_ns_12",
    "duration_bounds_ns_13",
    "duration_bounds_ns_14",
    "duration_bounds_ns_15",
    "duration_bounds_ns_16",
    "duration_bounds_ns_17",
    "duration_bounds_ns_18",
    "duration_bounds_ns_19",
    "duration_bounds_ns_20",
    "duration_bounds_ns_21",
    "duration_bounds_ns_22",
    "duration_bounds_ns_23",
    "duration_bounds_ns_24",
    "duration_bounds_ns_25",
    "duration_bounds_ns_26",
    "duration_bounds_ns_27",
    "duration_bounds_ns_28",
    "duration_bounds_ns_29",
    "duration_bounds_ns_30",
    "duration_bounds_ns_31",
    "duration_bounds_ns_32",
    "duration_bounds_ns_33",
    "duration_bounds_ns_34",
    "duration_bounds_ns_35",
    "duration_bounds_ns_36",
    "duration_bounds_ns_37",
    "duration_bounds_ns_38",
    "duration_bounds_ns_39",
    "duration_bounds_ns_40",
    "duration_bounds_ns_41",
    "duration_bounds_ns_42",
    "duration_bounds_ns_43",
    "duration_bounds_ns_44",
    "duration_bounds_ns_45",
    "duration_bounds_ns_46",
    "duration_bounds_ns_47",
    "duration_bounds_ns_48",
    "duration_bounds_ns_49",
    "duration_bounds_ns_50",
    "duration_bounds_ns_51",
    "duration_bounds_ns_52",
    "duration_bounds_ns_53",
    "duration_bounds_ns_54",
    "duration_bounds_ns_55",
    "duration_bounds_ns_56",
    "duration_bounds_ns_57",
    "duration_bounds_ns_58",
    "duration_bounds_ns_59",
    "duration_bounds_ns_60",
    "duration_bounds_ns_61",
    "duration_bounds_ns_62",
    "duration_bounds_ns_63",
    "duration_bounds_ns_64",
    "duration_bounds_ns_65",
    "duration_bounds_ns_66",
    "duration_bounds_ns_67",
    "duration_bounds_ns_68",
    "duration_bounds_ns_69",
    "duration_bounds_ns_70",
    "duration_bounds_ns_71",
    "duration_bounds_ns_72",
    "duration_bounds_ns_73",
    "duration_bounds_ns_74",
    "duration_bounds_ns_75",
    "duration_bounds_ns_76",
    "duration_bounds_ns_77",
    "duration_bounds_ns_78",
    "duration_bounds_ns_79",
    "duration_bounds_ns_80",
    "duration_bounds_ns_81",
    "duration_bounds_ns_82",
    "duration_bounds_ns_83",
    "duration_bounds_ns_84",
    "duration_bounds_ns_85",
    "duration_bounds_ns_86",
    "duration_bounds_ns_87",
    "duration_bounds_ns_88",
    "duration_bounds_ns_89",
    "duration_bounds_ns_90",
    "duration_bounds_ns_91",
    "duration_bounds_ns_92",
    "duration_bounds_ns_93",
    "duration_bounds_ns_94",
    "duration_bounds_ns_95",
    "duration_bounds_ns_96",
    "duration_bounds_ns_97",
    "duration_bounds_ns_98",
    "duration_bounds_ns_99",
    "duration_bounds_ns_100",
    "duration_bounds_ns_101",
    "duration_bounds_ns_102",
    "duration_bounds_ns_103",
    "duration_bounds_ns_104",
    "duration_bounds_ns_105",
    "duration_bounds_ns_106",
    "duration_bounds_ns_107",
    "duration_bounds_ns_108",
    "duration_bounds_ns_109",
    "duration_bounds_ns_110",
    "duration_bounds_ns_111",
    "duration_bounds_ns_112",
    "duration_bounds_ns_113",
    "duration_bounds_ns_114",
    "duration_bounds_ns_115",
    "duration_bounds_ns_116",
    "duration_bounds_ns_117",
    "duration_bounds_ns_118",
    "duration_bounds_ns_119",
    "duration_bounds_ns_120",
    "duration_bounds_ns_121",
    "duration_bounds_ns_122",
    "duration_bounds_ns_123",
    "duration_bounds_ns_124",
    "duration_bounds_ns_125",
    "duration_bounds_ns_126",
    "duration_bounds_ns_127",
    "duration_bounds_ns_128",
    "duration_bounds_ns_129",
    "duration_bounds_ns_130",
    "duration_bounds_ns_131",
    "duration_bounds_ns_132",
    "duration_bounds_ns_133",
    "duration_bounds_ns_134",
    "duration_bounds_ns_135",
    "duration_bounds_ns_136",
    "duration_bounds_ns_137",
    "duration_bounds_ns_138",
    "duration_bounds_ns_139",
    "duration_bounds_ns_140",
    "duration_bounds_ns_141",
    "duration_bounds_ns_142",
    "duration_bounds_ns_143",
    "duration_bounds_ns_144",
    "duration_bounds_ns_145",
    "duration_bounds_ns_146",
    "duration_bounds_ns_147",
    "duration_bounds_ns_148",
    "duration_bounds_ns_149",
    "duration_bounds_ns_150",
    "duration_bounds_ns_151",
    "duration_bounds_ns_152",
    "duration_bounds_ns_153",
    "duration_bounds_ns_154",
    "duration_bounds_ns_155",
    "duration_bounds_ns_156",
    "duration_bounds_ns_157",
    "duration_bounds_ns_158",
    "duration_bounds_ns_159",
    "duration_bounds_ns_160",
    "duration_bounds_ns_161",
    "duration_bounds_ns_162",
    "duration_bounds_ns_163",
    "duration_bounds_ns_164",
    "duration_bounds_ns_165",
    "duration_bounds_ns_166",
    "duration_bounds_ns_167",
    "duration_bounds_ns_168",
    "duration_bounds_ns_169",
    "duration_bounds_ns_170",
    "duration_bounds_ns_171",
    "duration_bounds_ns_172",
    "duration_bounds_ns_173",
    "duration_bounds_ns_174",
    "duration_bounds_ns_175",
    "duration_bounds_ns_176",
    "duration_bounds_ns_177",
    "duration_bounds_ns_178",
    "duration_bounds_ns_179",
    "duration_bounds_ns_180",
    "duration_bounds_ns_181",
    "duration_bounds_ns_182",
    "duration_bounds_ns_183",
    "duration_bounds_ns_184",
    "duration_bounds_ns_185",
    "duration_bounds_ns_186",
    "duration_bounds_ns_187",
    "duration_bounds_ns_188",
    "duration_bounds_ns_189",
    "duration_bounds_ns_190",
    "duration_bounds_ns_191",
    "size_bounds_bytes_0",
    "size_bounds_bytes_1",
    "size_bounds_bytes_2",
    "size_bounds_bytes_3",
    "size_bounds_bytes_4",
    "size_bounds_bytes_5",
    "size_bounds_bytes_6",
    "size_bounds_bytes_7",
    "size_bounds_bytes_8",
    "size_bounds_bytes_9",
    "size_bounds_bytes_10",
    "size_bounds_bytes_11",
    "size_bounds_bytes_12",
    "size_bounds_bytes_13",
    "size_bounds_bytes_14",
    "size_bounds_bytes_15",
    "size_bounds_bytes_16",
    "size_bounds_bytes_17",
    "size_bounds_bytes_18",
    "size_bounds_bytes_19",
    "size_bounds_bytes_20",
    "size_bounds_bytes_21",
    "size_bounds_bytes_22",
    "size_bounds_bytes_23",
    "size_bounds_bytes_24",
    "size_bounds_bytes_25",
    "size_bounds_bytes_26",
    "size_bounds_bytes_27",
    "size_bounds_bytes_28",
    "size_bounds_bytes_29",
    "size_bounds_bytes_30",
    "size_bounds_bytes_31",
    "size_bounds_bytes_32",
    "size_bounds_bytes_33",
    "size_bounds_bytes_34",
    "size_bounds_bytes_35",
    "size_bounds_bytes_36",
    "size_bounds_bytes_37",
    "size_bounds_bytes_38",
    "size_bounds_bytes_39",
    "size_bounds_bytes_40",
    "size_bounds_bytes_41",
    "size_bounds_bytes_42",
    "size_bounds_bytes_43",
    "size_bounds_bytes_44",
    "size_bounds_bytes_45",
    "size_bounds_bytes_46",
    "size_bounds_bytes_47",
    "size_bounds_bytes_48",
    "size_bounds_bytes_49",
    "size_bounds_bytes_50",
    "size_bounds_bytes_51",
    "size_bounds_bytes_52",
    "size_bounds_bytes_53",
    "size_bounds_bytes_54",
    "size_bounds_bytes_55",
    "size_bounds_bytes_56",
    "size_bounds_bytes_57",
    "size_bounds_bytes_58",
    "size_bounds_bytes_59",
    "size_bounds_bytes_60",
    "size_bounds_bytes_61",
    "size_bounds_bytes_62",
    "size_bounds_bytes_63",
    "size_bounds_bytes_64",
    "size_bounds_bytes_65",
    "size_bounds_bytes_66",
    "size_bounds_bytes_67",
    "size_bounds_bytes_68",
    "size_bounds_bytes_69",
    "size_bounds_bytes_70",
    "size_bounds_bytes_71",
    "size_bounds_bytes_72",
    "size_bounds_bytes_73",
    "size_bounds_bytes_74",
    "size_bounds_bytes_75",
    "size_bounds_bytes_76",
    "size_bounds_bytes_77",
    "size_bounds_bytes_78",
    "size_bounds_bytes_79",
    "size_bounds_bytes_80",
    "size_bounds_bytes_81",
    "size_bounds_bytes_82",
    "size_bounds_bytes_83",
    "size_bounds_bytes_84",
    "size_bounds_bytes_85",
    "size_bounds_bytes_86",
    "size_bounds_bytes_87",
    "size_bounds_bytes_88",
    "size_bounds_bytes_89",
    "size_bounds_bytes_90",
    "size_bounds_bytes_91",
    "size_bounds_bytes_92",
    "size_bounds_bytes_93",
    "size_bounds_bytes_94",
    "size_bounds_bytes_95",
    "size_bounds_bytes_96",
    "size_bounds_bytes_97",
    "size_bounds_bytes_98",
    "size_bounds_bytes_99",
    "size_bounds_bytes_100",
    "size_bounds_bytes_101",
    "size_bounds_bytes_102",
    "size_bounds_bytes_103",
    "size_bounds_bytes_104",
    "size_bounds_bytes_105",
    "size_bounds_bytes_106",
    "size_bounds_bytes_107",
    "size_bounds_bytes_108",
    "size_bounds_bytes_109",
    "size_bounds_bytes_110",
    "size_bounds_bytes_111",
    "size_bounds_bytes_112",
    "size_bounds_bytes_113",
    "size_bounds_bytes_114",
    "size_bounds_bytes_115",
    "size_bounds_bytes_116",
    "size_bounds_bytes_117",
    "size_bounds_bytes_118",
    "size_bounds_bytes_119",
    "size_bounds_bytes_120",
    "size_bounds_bytes_121",
    "size_bounds_bytes_122",
    "size_bounds_bytes_123",
    "size_bounds_bytes_124",
    "size_bounds_bytes_125",
    "size_bounds_bytes_126",
    "size_bounds_bytes_127",
    "size_bounds_bytes_128",
    "size_bounds_bytes_129",
    "size_bounds_bytes_130",
    "size_bounds_bytes_131",
    "size_bounds_bytes_132",
    "size_bounds_bytes_133",
    "size_bounds_bytes_134",
    "size_bounds_bytes_135",
    "size_bounds_bytes_136",
    "size_bounds_bytes_137",
    "size_bounds_bytes_138",
    "size_bounds_bytes_139",
    "size_bounds_bytes_140",
    "size_bounds_bytes_141",
    "size_bounds_bytes_142",
    "size_bounds_bytes_143",
    "size_bounds_bytes_144",
    "size_bounds_bytes_145",
    "size_bounds_bytes_146",
    "size_bounds_bytes_147",
    "size_bounds_bytes_148",
    "size_bounds_bytes_149",
    "size_bounds_bytes_150",
    "size_bounds_bytes_151",
    "size_bounds_bytes_152",
    "size_bounds_bytes_153",
    "size_bounds_bytes_154",
    "size_bounds_bytes_155",
    "size_bounds_bytes_156",
    "size_bounds_bytes_157",
    "size_bounds_bytes_158",
    "size_bounds_bytes_159",
    "size_bounds_bytes_160",
    "size_bounds_bytes_161",
    "size_bounds_bytes_162",
    "size_bounds_bytes_163",
    "size_bounds_bytes_164",
    "size_bounds_bytes_165",
    "size_bounds_bytes_166",
    "size_bounds_bytes_167",
    "size_bounds_bytes_168",
    "size_bounds_bytes_169",
    "size_bounds_bytes_170",
    "size_bounds_bytes_171",
    "size_bounds_bytes_172",
    "size_bounds_bytes_173",
    "size_bounds_bytes_174",
    "size_bounds_bytes_175",
    "size_bounds_bytes_176",
    "size_bounds_bytes_177",
    "size_bounds_bytes_178",
    "size_bounds_bytes_179",
    "size_bounds_bytes_180",
    "size_bounds_bytes_181",
    "size_bounds_bytes_182",
    "size_bounds_bytes_183",
    "size_bounds_bytes_184",
    "size_bounds_bytes_185",
    "size_bounds_bytes_186",
    "size_bounds_bytes_187",
    "size_bounds_bytes_188",
    "size_bounds_bytes_189",
    "size_bounds_bytes_190",
    "size_bounds_bytes_191",
    "slow_floor_ns",
    "stall_floor_ns",
    "call_stall_floor_ns",
    "span_interval_ns",
    "span_burst_ns",
    "wakeup_bytes",
    "sample_limit_bytes",
    "stall_samples_interval_ns",
    "duration_bound_count",
    "size_bound_count",
    "sample_one_in",
    "watch_all",
    "default_process_flags",
    "agent_pid",
    "pid_namespace_inode",
    "sample_moments",
    "apis",
)

# struct process: 24 bytes
PROCESS = struct.Struct("<QQI4x")
PROCESS_FIELDS = (
    "image_ktime_ns",
    "span_arrival_ktime_ns",
    "flags",
)

# struct interpreter: 128 bytes
INTERPRETER = struct.Struct("<QQQIIIIIIIIIIIIIIIIIIIIIIIIII")
INTERPRETER_FIELDS = (
    "image_ktime_ns",
    "start",
    "end",
    "version",
    "runtime_interpreters",
    "interpreter_next",
    "interpreter_threads",
    "thread_next",
    "thread_id",
    "thread_frame",
    "c_frame_frame",
    "frame_code",
    "frame_previous",
    "frame_instruction",
    "frame_owner",
    "frame_bytes",
    "shim_owner",
    "code_first_line",
    "code_file",
    "code_name",
    "code_line_table",
    "code_instructions",
    "code_bytes",
    "text_length",
    "text_state",
    "text_ascii",
    "text_compact",
    "bytes_length",
    "bytes_data",
)

# struct threshold_key: 16 bytes
THRESHOLD_KEY = struct.Struct("<QIHB1x")
THRESHOLD_KEY_FIELDS = (
    "image_ktime_ns",
    "pid",
    "api",
    "copy_kind",
)

# struct file_key: 16 bytes
FILE_KEY = struct.Struct("<QI4x")
FILE_KEY_FIELDS = (
    "inode",
    "device",
)

# struct open_call: 112 bytes
OPEN_CALL = struct.Struct("<QQQQQQQQII3I3IiHHBBB5x")
OPEN_CALL_FIELDS = (
    "start_ktime_ns",
    "stack_pointer",
    "size_bytes",
    "address",
    "stream",
    "function",
    "blocked_ns",
    "run_queue_ns",
    "voluntary_switches",
    "involuntary_switches",
    "grid_0",
    "grid_1",
    "grid_2",
    "block_0",
    "block_1",
    "block_2",
    "device",
    "api",
    "variant",
    "copy_kind",
    "choices",
    "is_on_host",
)

# struct interval: 120 bytes
INTERVAL = struct.Struct("<QQQQQQIIIIIiiIHBB4x16s16s")
INTERVAL_FIELDS = (
    "start_ktime_ns",
    "runnable_ktime_ns",
    "end_ktime_ns",
    "call_start_ktime_ns",
    "user_stack",
    "argument",
    "culprit_pid",
    "culprit_tid",
    "waker_pid",
    "waker_tid",
    "cpu",
    "kernel_stack",
    "system_call",
    "flags",
    "call_api",
    "call_depth",
    "switch_type",
    "culprit_comm",
    "waker_comm",
)

# struct thread: 1624 bytes
THREAD = struct.Struct("<QQQQQQQQQQQ3QQQIIIIIIIIiIIIiiIIIIII4xHBB16s16s480s896s")
THREAD_FIELDS = (
    "image_ktime_ns",
    "off_ktime_ns",
    "runnable_ktime_ns",
    "blocked_ns",
    "run_queue_ns",
    "last_return_ktime_ns",
    "clone_ktime_ns",
    "gap_blocked_ns",
    "gap_run_queue_ns",
    "argument",
    "runtime_ns",
    "on_cpu_ns_0",
    "on_cpu_ns_1",
    "on_cpu_ns_2",
    "user_stack",
    "stall_samples_arrival_ktime_ns",
    "pid",
    "tid",
    "voluntary_switches",
    "involuntary_switches",
    "culprit_pid",
    "culprit_tid",
    "waker_pid",
    "waker_tid",
    "device",
    "depth",
    "gap_voluntary_switches",
    "gap_involuntary_switches",
    "kernel_stack",
    "system_call",
    "stall_flags",
    "process_flags",
    "until_sample",
    "entries",
    "returns",
    "woken_cpu",
    "last_api",
    "switch_type",
    "sampled",
    "culprit_comm",
    "waker_comm",
    "intervals",
    "calls",
)

# struct allocation_key: 24 bytes
ALLOCATION_KEY = struct.Struct("<QQII")
ALLOCATION_KEY_FIELDS = (
    "image_ktime_ns",
    "address",
    "pid",
    "layer",
)

# struct stream_key: 24 bytes
STREAM_KEY = struct.Struct("<QQI4x")
STREAM_KEY_FIELDS = (
    "image_ktime_ns",
    "stream",
    "pid",
)

# struct allocation: 24 bytes
ALLOCATION = struct.Struct("<QQiI")
ALLOCATION_FIELDS = (
    "size_bytes",
    "physical",
    "device",
    "references",
)

# struct kernel_stack: 192 bytes
KERNEL_STACK = struct.Struct("<24Q")
KERNEL_STACK_FIELDS = (
    "addresses_0",
    "addresses_1",
    "addresses_2",
    "addresses_3",
    "addresses_4",
    "addresses_5",
    "addresses_6",
    "addresses_7",
    "addresses_8",
    "addresses_9",
    "addresses_10",
    "addresses_11",
    "addresses_12",
    "addresses_13",
    "addresses_14",
    "addresses_15",
    "addresses_16",
    "addresses_17",
    "addresses_18",
    "addresses_19",
    "addresses_20",
    "addresses_21",
    "addresses_22",
    "addresses_23",
)
