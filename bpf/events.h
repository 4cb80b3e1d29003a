/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * THE wire format: everything that crosses between the kernel side and Python.
 *
 * Python's copy (otel_gpu/wire.py) is generated from the BTF of these types, so
 * this file is the only place to change. Rules: explicit widths, no holes, units
 * and clocks in the names, numbers of enumerators never reused.
 *
 * ktime is CLOCK_MONOTONIC in nanoseconds. pid is the process (the kernel's
 * tgid), tid the thread (the kernel's pid), both in the agent's pid namespace.
 * A process image is identified by pid and image_ktime_ns together: the ktime
 * at which the image (fork, exec, or the moment it was first watched) began.
 */
#ifndef OTEL_GPU_EVENTS_H
#define OTEL_GPU_EVENTS_H

#ifndef OTEL_GPU_BPF
#include <linux/types.h>
#endif

#define WIRE_VERSION	  1

#define COMM_BYTES	  16
#define PATH_BYTES	  256
#define MAX_APIS	  192 /* rows of the probe table */
#define MAX_DEPTH	  8   /* open CUDA calls of one thread; deeper ones are lost */
#define MAX_INTERVALS	  4   /* kept of a call or gap: its longest */
#define MAX_STACK_FRAMES  24
#define MAX_BOUNDS	  191 /* histogram bounds; one bucket more than bounds */
#define MAX_BUCKETS	  192
#define UUID_BYTES	  16
#define DEVICE_NAME_BYTES 64

enum record_kind {
	RECORD_CUDA_CALL = 1,
	RECORD_STALL = 2,
	RECORD_FORK = 3,
	RECORD_EXEC = 4,
	RECORD_EXIT = 5,
	RECORD_LIBRARY = 6,
	RECORD_DEVICE = 7,
	RECORD_GAP = 8,
	/* Made by the agent, so that a recording holds all that a replay needs. */
	RECORD_CAPTURE = 256,	 /* JSON: host, settings, histogram layout */
	RECORD_CLOCK = 257,	 /* struct clock_record */
	RECORD_PROCESS = 258,	 /* JSON: what /proc said about one process image */
	RECORD_AGGREGATES = 259, /* struct aggregates_record, then its series */
	RECORD_COUNTERS = 260,	 /* struct counters_record */
	RECORD_OPEN_CALL = 261,	 /* struct open_call_record */
	RECORD_PROBES = 262,	 /* JSON: symbols attached in one library */
	RECORD_STATUS = 263,	 /* JSON: the agent's own counters and CPU time */
	RECORD_STACK = 264,	 /* JSON: the functions of one kernel stack */
	RECORD_TIMES = 265,	 /* struct times_record, then its entries */
	RECORD_PRESSURE = 266,	 /* JSON: PSI, load, swap, cgroup cpu.stat */
};

/* Counters kept per CPU. The first group are losses, each with its reason. */
enum counter {
	COUNTER_LOST_RING_FULL = 0,	      /* a span's record found no room */
	COUNTER_LOST_SERIES_FULL = 1,	      /* a call found no room in the aggregates */
	COUNTER_LOST_THREADS_FULL = 2,	      /* a thread could not be tracked */
	COUNTER_LOST_PROCESSES_FULL = 3,      /* a process could not be watched */
	COUNTER_LOST_NO_ENTRY = 4,	      /* a return whose entry was not seen */
	COUNTER_LOST_NO_RETURN = 5,	      /* an entry whose frame was unwound */
	COUNTER_LOST_DEPTH_EXCEEDED = 6,      /* a call nested deeper than MAX_DEPTH */
	COUNTER_LOST_READ_FAULT = 7,	      /* an argument that could not be read */
	COUNTER_LOST_LIFECYCLE_RING_FULL = 8, /* a fork, exec, exit, library or device */
	COUNTER_LOST_EXIT_INSIDE_CALL = 9,    /* a thread died inside a call */
	/* Not losses. */
	COUNTER_SPANS_WITHHELD_RATE = 10, /* eligible, but over the process's rate */
	COUNTER_PROBE_ENTRIES = 11,
	COUNTER_PROBE_RETURNS = 12,
	COUNTER_SCHEDULER_SWITCHES = 13, /* of watched threads */
	COUNTER_SPANS_CHOSEN = 14,	 /* calls submitted */
	COUNTER_STALLS_CHOSEN = 15,	 /* stalls submitted */
	COUNTER_LOST_STACK = 16,	 /* a kernel stack that found no room */
	COUNTER_LOST_TIMES_FULL = 17,	 /* time that found no room in the account */
	COUNTER_GAPS_CHOSEN = 18,	 /* gaps submitted */
	COUNTER_SWITCHES_REPAIRED = 19,	 /* the kernel did not tell that a thread ran again */
	COUNTER_COUNT = 20,
};

enum api_family {
	FAMILY_OTHER = 0,
	FAMILY_LAUNCH = 1,
	FAMILY_GRAPH_LAUNCH = 2,
	FAMILY_SYNCHRONIZE = 3,
	FAMILY_ALLOCATE = 4,
	FAMILY_FREE = 5,
	FAMILY_COPY = 6,
	FAMILY_MEMSET = 7,
	FAMILY_STREAM = 8,
	FAMILY_EVENT = 9,
	FAMILY_GRAPH = 10,
	FAMILY_SET_DEVICE = 11,
	FAMILY_GET_DEVICE = 12,
	FAMILY_DEVICE_UUID = 13,
	FAMILY_DEVICE_PROPERTIES = 14,
	FAMILY_HOST_ALLOCATE = 15,
	FAMILY_HOST_FREE = 16,
};

enum api_layer {
	LAYER_RUNTIME = 1,
	LAYER_DRIVER = 2,
};

/* How a launch passes its dimensions. */
enum launch_shape {
	LAUNCH_NONE = 0,
	LAUNCH_DIM3 = 1,    /* two dim3 by value in slots 2-3 and 4-5 */
	LAUNCH_SCALARS = 2, /* six integers in slots 2-7 */
	LAUNCH_CONFIG = 3,  /* a pointer to a launch configuration in slot 1 */
};

/* cudaMemcpyKind, plus "not a copy" and the pairs that driver calls name. */
enum copy_kind {
	COPY_HOST_TO_HOST = 0,
	COPY_HOST_TO_DEVICE = 1,
	COPY_DEVICE_TO_HOST = 2,
	COPY_DEVICE_TO_DEVICE = 3,
	COPY_DEFAULT = 4,
	COPY_NONE = 255,
};

/* Why a call was sent as a span. */
enum choice {
	CHOICE_FAILED = 1,
	CHOICE_SLOW = 2,
	CHOICE_SAMPLED = 4,
	CHOICE_FULL = 8,
	CHOICE_STALLED = 16,
	CHOICE_PARENT = 32, /* a call inside it was sent */
};

enum metric {
	METRIC_CALL_DURATION = 1, /* ns */
	METRIC_LAUNCH_GAP = 2,	  /* ns */
	METRIC_OFF_CPU = 3,	  /* ns; api holds enum switch_type */
	METRIC_RUN_QUEUE = 4,	  /* ns; api holds enum switch_type */
	METRIC_COPY_SIZE = 5,	  /* bytes */
	METRIC_FORK = 6,	  /* count of forks in buckets[0] */
};

enum switch_type {
	SWITCH_VOLUNTARY = 1,
	SWITCH_INVOLUNTARY = 2,
};

/* What a thread was doing with its time. */
enum thread_state {
	STATE_ON_CPU = 0,
	STATE_RUN_QUEUE = 1,
	STATE_BLOCKED = 2,
};

/* What a moment of a thread belongs to. */
enum call_context {
	CONTEXT_GAP = 0,	 /* between calls of a thread that makes CUDA calls */
	CONTEXT_SYNCHRONIZE = 1, /* inside a call that waits for the device */
	CONTEXT_CALL = 2,	 /* inside another call */
	CONTEXT_OTHER = 3,	 /* of a thread that made no CUDA call yet */
};

enum stall_flag {
	STALL_GIL = 1,	    /* the futex is in the interpreter's runtime state */
	STALL_FAULT = 2,    /* not in a system call: a page fault, or stopped */
	STALL_IDLE_CPU = 4, /* the CPU that it got was idle until then, or it left it idle */
};

enum process_flag {
	PROCESS_FULL = 1,	  /* every call becomes a span */
	PROCESS_STOP_ON_LOAD = 2, /* stop it while probes are placed */
	PROCESS_NO_SPANS = 4,	  /* aggregates only */
};

struct record_header {
	__u16 kind;
	__u16 flags;
	__u32 size;	/* of the whole record, in bytes */
	__u64 ktime_ns; /* the end of a call or stall, the moment of anything else */
	__u64 image_ktime_ns;
	__u32 pid;
	__u32 tid;
};

struct cuda_call_record {
	struct record_header header; /* ktime_ns is the return of the call */
	__u64 start_ktime_ns;
	__u64 parent_start_ktime_ns; /* 0: not inside another CUDA call */
	__u64 root_start_ktime_ns;   /* the outermost call's; its own if it is that */
	__u64 blocked_ns;	     /* inside the call */
	__u64 run_queue_ns;	     /* inside the call */
	__u64 size_bytes;	     /* copies, allocations and frees */
	__u64 address;		     /* allocated, freed or copied to */
	__u64 stream;		     /* handle; 0 is the default stream */
	__u64 function;		     /* launches: host address or handle of the kernel */
	__s32 status;		     /* cudaError_t or CUresult */
	__s32 device;		     /* index as the process sees it; -1 unknown */
	__u32 weight;		     /* calls that a sampled one stands for; else 1 */
	__u32 voluntary_switches;
	__u32 involuntary_switches;
	__u32 cpu; /* of the return */
	__u32 grid[3];
	__u32 block[3];
	__u16 api;
	__u16 variant; /* which exported spelling; see the probe table */
	__u8 copy_kind;
	__u8 choices; /* enum choice */
	__u8 depth;
	__u8 padding;
	char comm[COMM_BYTES];
};

/* A watched thread was off the CPU from start to header.ktime_ns. */
struct stall_record {
	struct record_header header; /* ktime_ns is when it ran again */
	__u64 start_ktime_ns;	     /* when it left the CPU */
	__u64 runnable_ktime_ns;     /* when it could run again; start if preempted */
	__u64 call_start_ktime_ns;   /* innermost open call; 0: in none */
	__u64 root_start_ktime_ns;   /* outermost open call; 0: in none */
	__u32 culprit_pid;	     /* who had the CPU that it waited for; 0: idle or unknown */
	__u32 culprit_tid;
	__u32 waker_pid; /* who woke it; 0: nobody, or an interrupt on an idle CPU */
	__u32 waker_tid;
	__u32 cpu; /* where it ran again */
	__u16 call_api;
	__u8 call_depth;
	__u8 switch_type;
	__s32 kernel_stack; /* id in the stacks map; negative: none */
	__s32 system_call;  /* number; -1: in none */
	__u64 argument;	    /* first argument of the system call */
	__u32 flags;	    /* enum stall_flag */
	__u32 padding;
	char comm[COMM_BYTES];
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
};

/* Between the return of one outermost CUDA call of a thread and the entry of the next. */
struct gap_record {
	struct record_header header; /* ktime_ns is the entry of the next call */
	__u64 start_ktime_ns;	     /* the return of the call before */
	__u64 blocked_ns;
	__u64 run_queue_ns;
	__s32 device;
	__u32 voluntary_switches;
	__u32 involuntary_switches;
	__u16 previous_api;
	__u16 next_api;
	__u32 choices; /* enum choice */
	__u32 padding;
	char comm[COMM_BYTES];
};

/* Time of threads by what they did and, where blocked, where: monotonic. */
struct times_key {
	__u64 image_ktime_ns;
	__u32 pid;
	__s32 kernel_stack; /* blocked only; else -1 */
	__s32 system_call;  /* blocked only; else -1 */
	__u8 state;	    /* enum thread_state */
	__u8 context;	    /* enum call_context */
	__u8 flags;	    /* enum stall_flag */
	__u8 padding;
};

struct times {
	__u64 time_ns;
	__u64 count;
};

struct times_record {
	struct record_header header;
	__u32 count; /* entries that follow: key, then times */
	__u32 padding;
};

struct fork_record {
	struct record_header header; /* of the parent; ktime_ns is the end */
	__u64 start_ktime_ns;	     /* equal to the end where entry is not seen */
	__u64 child_image_ktime_ns;
	__u64 call_start_ktime_ns; /* innermost open CUDA call of the thread, or 0 */
	__u64 root_start_ktime_ns; /* its outermost one, or 0 */
	__u32 child_pid;
	__u32 padding;
	char comm[COMM_BYTES];
};

struct exec_record {
	struct record_header header; /* image_ktime_ns is the new image's */
	__u64 old_image_ktime_ns;
	__u64 inode;   /* of the new executable */
	__u32 device;  /* of the new executable: major << 20 | minor */
	__u32 stopped; /* 1: the process waits for SIGCONT */
	char comm[COMM_BYTES];
	char path[PATH_BYTES];
};

struct exit_record {
	struct record_header header; /* the last thread of the process is gone */
	__u64 start_boot_ns;	     /* task start time, CLOCK_BOOTTIME */
	__u32 exit_code;	     /* as wait(2) gives it */
	__u32 padding;
	char comm[COMM_BYTES];
};

/* The dynamic linker of a watched process mapped a CUDA library. */
struct library_record {
	struct record_header header;
	__u32 stopped; /* 1: the process waits for SIGCONT */
	__u32 padding;
	char path[PATH_BYTES];
};

struct device_record {
	struct record_header header;
	__s32 device; /* index as the process sees it */
	__u32 has_name;
	__u8 uuid[UUID_BYTES];
	char name[DEVICE_NAME_BYTES];
};

struct clock_record {
	struct record_header header;
	__u64 unix_ns; /* CLOCK_REALTIME at header.ktime_ns */
};

struct counters_record {
	struct record_header header;
	__u64 values[COUNTER_COUNT];
};

struct open_call_record {
	struct record_header header; /* ktime_ns is when it was looked at */
	__u64 start_ktime_ns;
	__u64 root_start_ktime_ns;
	__u64 blocked_ns;
	__u64 run_queue_ns;
	__s32 device;
	__u16 api;
	__u8 depth;
	__u8 padding;
	char comm[COMM_BYTES];
};

struct aggregate_key {
	__u64 image_ktime_ns;
	__u32 pid;
	__s32 status; /* 0, or the failing result */
	__s32 device;
	__u16 metric;
	__u16 api; /* or enum switch_type */
	__u8 copy_kind;
	__u8 nested; /* 1: inside another CUDA call */
	__u8 padding[6];
};

/* Bucket i counts bounds[i-1] < value <= bounds[i]. Monotonic, updated
 * atomically; the count of values is the sum of the buckets. */
struct aggregate {
	__u64 sum;
	__u64 min_complement; /* ~min, so that zeroed memory means "none yet" */
	__u64 max;
	__u64 size_bytes; /* bytes of the successful calls */
	__u64 buckets[MAX_BUCKETS];
};

struct aggregates_record {
	struct record_header header; /* ktime_ns is when the maps were read */
	__u32 count;		     /* series that follow: key, then aggregate */
	__u32 padding;
};

/* One row of the probe table. Slots are argument positions from 1; 0 is "none". */
struct api_descriptor {
	__u8 family;
	__u8 layer;
	__u8 size_slot;
	__u8 height_slot; /* 2D: size is multiplied by it */
	__u8 stream_slot;
	__u8 address_slot;
	__u8 address_is_output; /* the slot holds a pointer to the address */
	__u8 copy_kind_slot;
	__u8 fixed_copy_kind; /* where no slot says it */
	__u8 launch_shape;
	__u8 function_slot;
	__u8 device_slot; /* an index, or a pointer to one when family is GET_DEVICE */
	__u8 size_shift;  /* elements to bytes */
	__u8 padding[3];
};

/* Tunables and tables: read-only data, fixed before the programs load. */
struct settings {
	__u64 duration_bounds_ns[MAX_BOUNDS + 1];
	__u64 size_bounds_bytes[MAX_BOUNDS + 1];
	__u64 slow_floor_ns;	   /* slow until a series has a threshold of its own */
	__u64 stall_floor_ns;	   /* outside calls */
	__u64 call_stall_floor_ns; /* inside calls */
	__u64 span_interval_ns;	   /* 1 s / rate of each process */
	__u64 span_burst_ns;	   /* how far ahead of its rate a process may run */
	__u64 wakeup_bytes;	   /* pending ring-buffer bytes that wake the agent */
	__u32 duration_bound_count;
	__u32 size_bound_count;
	__u32 sample_one_in; /* 0: no baseline sample */
	__u32 watch_all;
	__u32 default_process_flags; /* of a process that watch_all finds */
	__u32 agent_pid;
	__u32 pid_namespace_inode; /* 0: the initial namespace */
	__u32 padding;
	struct api_descriptor apis[MAX_APIS];
};

struct process {
	__u64 image_ktime_ns;
	__u64 span_arrival_ktime_ns; /* rate limit: theoretical arrival time */
	__u32 flags;
	__u32 padding;
};

/* Where an interpreter keeps its runtime state, which its GIL is a part of. */
struct interpreter {
	__u64 image_ktime_ns;
	__u64 start;
	__u64 end;
};

struct threshold_key {
	__u64 image_ktime_ns;
	__u32 pid;
	__u16 api;
	__u8 copy_kind;
	__u8 padding;
};

struct file_key {
	__u64 inode;
	__u32 device;
	__u32 padding;
};

struct open_call {
	__u64 start_ktime_ns;
	__u64 stack_pointer;
	__u64 size_bytes;
	__u64 address; /* value, or where the call will put it */
	__u64 stream;
	__u64 function;
	__u64 blocked_ns; /* the thread's totals at entry */
	__u64 run_queue_ns;
	__u32 voluntary_switches;
	__u32 involuntary_switches;
	__u32 grid[3];
	__u32 block[3];
	__s32 device;
	__u16 api;
	__u16 variant;
	__u8 copy_kind;
	__u8 choices;
	__u8 padding[6];
};

/* One time off the CPU, kept until the call or gap around it is chosen or not. */
struct interval {
	__u64 start_ktime_ns; /* 0: free */
	__u64 runnable_ktime_ns;
	__u64 end_ktime_ns;
	__u64 call_start_ktime_ns;
	__u64 argument;
	__u32 culprit_pid;
	__u32 culprit_tid;
	__u32 waker_pid;
	__u32 waker_tid;
	__u32 cpu;
	__s32 kernel_stack;
	__s32 system_call;
	__u32 flags;
	__u16 call_api;
	__u8 call_depth;
	__u8 switch_type;
	__u32 padding;
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
};

struct thread {
	__u64 image_ktime_ns;
	__u64 off_ktime_ns; /* 0: on a CPU */
	__u64 runnable_ktime_ns;
	__u64 blocked_ns;	    /* total since the thread was watched */
	__u64 run_queue_ns;	    /* total since the thread was watched */
	__u64 last_return_ktime_ns; /* of its outermost CUDA call; 0: none yet */
	__u64 clone_ktime_ns;	    /* entry of the fork that it is in */
	__u64 gap_blocked_ns;	    /* the totals above at the start of the gap */
	__u64 gap_run_queue_ns;
	__u64 argument;	    /* of the system call that it left the CPU in */
	__u64 runtime_ns;   /* on CPUs, by the scheduler, when it left the CPU */
	__u64 on_cpu_ns[3]; /* by enum call_context, not yet in the account */
	__u32 pid;
	__u32 tid;
	__u32 voluntary_switches;
	__u32 involuntary_switches;
	__u32 culprit_pid;
	__u32 culprit_tid;
	__u32 waker_pid;
	__u32 waker_tid;
	__s32 device;
	__u32 depth; /* open calls */
	__u32 gap_voluntary_switches;
	__u32 gap_involuntary_switches;
	__s32 kernel_stack;
	__s32 system_call;
	__u32 stall_flags;
	__u32 process_flags;
	__u32 until_sample; /* outermost calls before the next one on the baseline sample */
	__u32 entries;	    /* probe hits not yet in the counters */
	__u32 returns;
	__u32 woken_cpu; /* where it had run before it was woken */
	__u32 padding;
	__u16 last_api; /* of its last outermost call */
	__u8 switch_type;
	__u8 sampled; /* the outermost open call is on the baseline sample */
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
	struct interval intervals[MAX_INTERVALS]; /* the longest of this call or gap */
	struct open_call calls[MAX_DEPTH];
};

struct allocation_key {
	__u64 image_ktime_ns;
	__u64 address;
	__u32 pid;
	__u32 layer; /* runtime and driver see the same address */
};

struct allocation {
	__u64 size_bytes;
	__s32 device;
	__u32 padding;
};

/* Return addresses in the kernel, innermost first; zeros at the end. */
struct kernel_stack {
	__u64 addresses[MAX_STACK_FRAMES];
};

#endif
