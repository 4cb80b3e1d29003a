/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * THE wire format: everything that crosses between the kernel side and Python.
 *
 * Python's copy (otel_gpu/wire/__init__.py) is generated from the BTF of these types, so
 * this file is the only place to change. Rules: explicit widths, no holes, units
 * and clocks in the names, numbers of enumerators never reused.
 *
 * ktime is CLOCK_MONOTONIC in nanoseconds. pid is the process (the kernel's
 * tgid), tid the thread (the kernel's pid), both in the agent's pid namespace.
 * A program is identified by pid and program_ktime_ns together: the ktime
 * at which it began (fork, exec, or the time from which it was watched).
 */
#ifndef OTEL_GPU_BPF_EVENTS_H
#define OTEL_GPU_BPF_EVENTS_H

#if defined(__bpf__)
#include "core/kernel_types.bpf.h"
#else
#include <linux/types.h>
#endif

#define WIRE_VERSION 2 /* 1: shorter entries of the time account, which are still read */

#define COMM_BYTES   16
#define PATH_BYTES   256
#define MAX_APIS     256 /* rows of the probe table */
/* The status of a call in which a signal ended its process is this and the signal's number. */
#define STATUS_KILLED	       1073741824 /* 1 << 30 */
#define MAX_DEPTH	       8	  /* open CUDA calls of one thread; deeper ones are lost */
#define MAX_INTERVALS	       4	  /* kept of a call or gap: its longest */
#define MAX_PLACES	       8  /* of a thread on a CPU, counted before they are in the account */
#define MAX_LINKS	       8  /* of a thread: what it last waited for */
#define CALL_BUCKETS	       16 /* of a thread, each of the APIs with one number modulo this */
#define MAX_KEPT	       2  /* kinds of waits of a thread: blocked, and in a run queue */
#define MAX_STACK_FRAMES       24
#define MAX_BOUNDS	       191 /* histogram bounds; one bucket more than bounds */
#define MAX_BUCKETS	       192
#define UUID_BYTES	       16
#define DEVICE_NAME_BYTES      64
#define MAX_PYTHON_FRAMES      128   /* of one stack: the innermost */
#define MAX_RETURNS	       8     /* return addresses that uprobes have replaced */
#define TEXT_BYTES	       512   /* of a file name or qualified name */
#define LINE_TABLE_BYTES       16384 /* of one code object */
#define STACK_COPY_BYTES       32768 /* of the stack at a call */
#define STALL_COPY_BYTES       8192  /* of the stack of a thread that leaves the CPU */
#define THREAD_DUMP_COPY_BYTES 24576 /* of the stack of a thread that is looked at */
#define STATE_NONE	       255   /* in place of an enum thread_state: not known */
#define FUNCTION_BYTES	       1024  /* of the name of a kernel */
#define FILE_SYSTEM_BYTES      16    /* of the name of a type of file system */
#define ADDRESS_BYTES	       16    /* of IPv6; of IPv4 the first four */
#define STEP_NAME_BYTES	       32
#define MAX_STEP_DETECTORS     64    /* threads whose steps are looked for at one time */
#define DETECTOR_AREAS	       8     /* of them, those whose calls are kept */
#define DETECTOR_CALLS	       32768 /* kept of each of those */
#define FOLDED_BY_NAME	       2     /* numbers of names are in place of pids; made in user space */
#define DETECTOR_HISTORY       4 /* calls by which the beginning or the end of a step is known */
#define DETECTOR_PATTERNS      4 /* of calls, by which steps begin, or end */
#define RANGE_NAME_BYTES       64
#define USER_SHARE	       3 /* times what is free: what the programs of one user can hold */
#define USER_SPANS	       8 /* times the rate of spans of a process: that of all of a user */
#define RINGS		       2 /* lifecycle, events */
#define ALL_USERS	       4294967295 /* no uid */
#define UNKNOWN_USER	       4294967294 /* of a process that is gone; no uid either */
#define PRELOAD_VIEW_WORDS     30 /* of a preload_slot: open calls, and what is before them */

enum record_kind {
	RECORD_CUDA_CALL = 1,
	RECORD_STALL = 2,
	RECORD_FORK = 3,
	RECORD_EXEC = 4,
	RECORD_EXIT = 5,
	RECORD_LIBRARY = 6,
	RECORD_DEVICE = 7,
	RECORD_GAP = 8,
	/* Resolved by the agent as they arrive: never in a recording. */
	RECORD_SAMPLE = 9,	 /* struct sample_record */
	RECORD_CODE = 10,	 /* struct code_record */
	RECORD_THREAD_DUMP = 12, /* struct thread_dump_record; a sample_record follows it at once */
	RECORD_HANDLE = 15,	 /* struct handle_record */
	RECORD_THREAD_CONTEXT = 16, /* struct thread_context_record */
	RECORD_ITERATION = 19,	    /* struct iteration_record */
	RECORD_PRELOAD = 21,	    /* struct preload_record */
	/* Of threads on a CPU: in a recording, as calls are. */
	RECORD_CPU_SAMPLE = 11, /* struct cpu_sample_record */
	/* Of a framework's allocator: in a recording too. */
	RECORD_BLOCK_STACK = 13,   /* struct block_stack_record */
	RECORD_OUT_OF_MEMORY = 14, /* struct out_of_memory_record */
	/* Of the program's own work: in a recording too. Found ones are made by the agent. */
	RECORD_STEP = 17,  /* struct step_record */
	RECORD_RANGE = 20, /* struct range_record */
	/* 18 is in older recordings, and stays free. */
	/* Made by the agent, so that a recording holds all that a replay needs. */
	RECORD_CAPTURE = 256,	 /* JSON: host, settings, histogram layout */
	RECORD_CLOCK = 257,	 /* struct clock_record */
	RECORD_PROCESS = 258,	 /* JSON: facts about a program, from /proc */
	RECORD_AGGREGATES = 259, /* struct aggregates_record, then its series */
	RECORD_COUNTERS = 260,	 /* struct counters_record */
	RECORD_OPEN_CALL = 261,	 /* struct open_call_record */
	RECORD_PROBES = 262,	 /* JSON: symbols attached in one library */
	RECORD_STATUS = 263,	 /* JSON: the agent's own counters and CPU time */
	RECORD_STACK = 264,	 /* JSON: the functions of one kernel stack */
	RECORD_TIMES = 265,	 /* struct times_record, then its entries */
	RECORD_PRESSURE = 266,	 /* JSON: PSI, load, swap, cgroup cpu.stat */
	RECORD_USER_STACK = 267, /* JSON: the merged frames of one user stack */
	RECORD_RESOURCE = 268,	 /* JSON: a file, device or socket that a system call was about */
	RECORD_CULPRIT = 269,	 /* JSON: facts about an unwatched process */
	RECORD_MEMORY = 270,	 /* struct memory_record, then its totals */
	RECORD_HOLDERS = 271,	 /* struct memory_record, then its holders */
	RECORD_MEMORY_MAP = 272, /* JSON: segments and blocks of a device when a request failed */
	RECORD_FUNCTION = 273,	 /* JSON: the name of a kernel that was launched */
	RECORD_DEVICES = 274,	 /* JSON: metrics of the host's GPUs */
	RECORD_COMMUNICATORS = 275, /* struct memory_record, then its communicators */
	RECORD_DEVICE_FAULT = 276,  /* JSON: an error that the driver logged about a device */
	RECORD_FABRIC = 277,	    /* JSON: counters of network adapters that do RDMA */
};

/* Counters kept per CPU. The first group are losses, each with its reason. */
enum counter {
	COUNTER_LOST_RING_FULL = 0,	      /* a span's record: the ring was full */
	COUNTER_LOST_SERIES_FULL = 1,	      /* a call: the map of aggregates was full */
	COUNTER_LOST_THREADS_FULL = 2,	      /* a thread could not be tracked */
	COUNTER_LOST_PROCESSES_FULL = 3,      /* a process could not be watched */
	COUNTER_LOST_NO_ENTRY = 4,	      /* a return whose entry was not seen */
	COUNTER_LOST_NO_RETURN = 5,	      /* an entry whose frame was unwound */
	COUNTER_LOST_DEPTH_EXCEEDED = 6,      /* a call nested deeper than MAX_DEPTH */
	COUNTER_LOST_READ_FAULT = 7,	      /* an argument that could not be read */
	COUNTER_LOST_LIFECYCLE_RING_FULL = 8, /* a fork, exec, exit, library or device */
	COUNTER_LOST_EXIT_INSIDE_CALL = 9,    /* a thread died inside a call */
	/* Not losses. */
	COUNTER_SPANS_RATE_LIMITED = 10, /* eligible, but over the process's rate */
	COUNTER_PROBE_ENTRIES = 11,
	COUNTER_PROBE_RETURNS = 12,
	COUNTER_SCHEDULER_SWITCHES = 13,     /* of watched threads */
	COUNTER_SPANS_CHOSEN = 14,	     /* calls submitted */
	COUNTER_STALLS_CHOSEN = 15,	     /* stalls submitted */
	COUNTER_LOST_STACK = 16,	     /* a kernel stack: the map was full */
	COUNTER_LOST_TIMES_FULL = 17,	     /* time: the maps of times were full */
	COUNTER_GAPS_CHOSEN = 18,	     /* gaps submitted */
	COUNTER_SWITCHES_REPAIRED = 19,	     /* a thread ran again without an event */
	COUNTER_SAMPLES = 20,		     /* user stacks taken */
	COUNTER_SAMPLES_RATE_LIMITED = 21,   /* not taken: over the thread's rate */
	COUNTER_LOST_SAMPLE = 22,	     /* a user stack or code object: ring full */
	COUNTER_LOST_PYTHON = 23,	     /* Python frames that were not what was expected */
	COUNTER_LOST_INTERPRETERS_FULL = 24, /* the GIL and frames of a process are not known */
	COUNTER_LOST_ALLOCATIONS_FULL = 25,  /* how much a later free gives back is not known */
	COUNTER_LOST_UNKNOWN_FREE = 26,	     /* a free of what was not seen to be allocated */
	COUNTER_TIMES_FOLDED = 27,  /* time without details in the account, which was full */
	COUNTER_LOST_RESOURCE = 28, /* the resource of a wait: the map was full */
	COUNTER_CPU_SAMPLES = 29,   /* sent */
	COUNTER_CPU_SAMPLES_RATE_LIMITED = 30, /* ticks of watched threads that were not sampled */
	COUNTER_LOST_CPU_SAMPLE = 31,	       /* a sample: the ring was full */
	COUNTER_LOST_BLOCKS_FULL = 32,	       /* a block: map full; its free is unknown */
	COUNTER_LOST_HOLDERS_FULL = 33,	       /* bytes of a stack: the map was full */
	COUNTER_BLOCK_STACKS = 34,	       /* of blocks, sent */
	COUNTER_BLOCK_STACKS_RATE_LIMITED =
		35, /* of blocks, over the rate: their stack is not known */
	COUNTER_OUT_OF_MEMORY_RATE_LIMITED = 36, /* failed requests, over the rate */
	COUNTER_LOST_SIZE = 37,			 /* a copy or allocation of unknown size */
	COUNTER_LOST_ELAPSED_TIME = 38, /* negative, too long for a duration, or not a number */
	COUNTER_LOST_COMMUNICATORS_FULL = 39, /* of NCCL: one that is not counted */
	COUNTER_LOST_STEP = 40, /* reported by a program: over its rate, or impossible */
	/* 41 is in older recordings, and stays free. */
	COUNTER_STEP_THREADS_RATE_LIMITED = 42, /* a thread whose steps are not looked for */
	COUNTER_STEPS_RATE_LIMITED =
		43,		 /* over the rate of their thread: steps that are not known */
	COUNTER_LOST_RANGE = 44, /* of NVTX: too many, or too long to be true */
	COUNTER_RANGES_RATE_LIMITED = 45, /* NVTX ranges that the library left out, over its rate */
	COUNTER_LOST_NOT_WATCHED_FROM_START = 46, /* a process whose first calls may be missing */
	COUNTER_LOST_MEMORY_READ = 47,		  /* of a process that could block its reader */
	COUNTER_COUNT = 48,
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
	FAMILY_GET_DEVICE = 12, /* no call that is counted; see cuda/device.bpf.c */
	FAMILY_DEVICE_UUID = 13,
	FAMILY_DEVICE_PROPERTIES = 14,
	FAMILY_HOST_ALLOCATE = 15,
	FAMILY_HOST_FREE = 16,
	FAMILY_UNMAP = 17, /* frees memory that has no handle any more */
	FAMILY_MEMORY_INFO = 18,
	FAMILY_KERNEL = 20,	  /* gives out the handle of a kernel, by its name */
	FAMILY_KERNEL_ALIAS = 21, /* the same by another handle, or by an address of the host */
	FAMILY_QUERY = 22,	  /* asks whether work is done; "not yet" is not a failure */
	FAMILY_ELAPSED_TIME = 23, /* returns the device time between two events */
	FAMILY_COLLECTIVE = 24,	  /* has all ranks do something together, or two of them */
	FAMILY_COMMUNICATOR = 25, /* makes, ends or asks about what does collectives */
	FAMILY_REGISTER = 26,	  /* lets a network adapter use memory */
	FAMILY_DEREGISTER = 27,	  /* ends that */
	FAMILY_ASYNC_EVENT = 28,  /* waits for events of an adapter; see nccl/verbs.bpf.c */
	FAMILY_ASYNC_ACK = 29,	  /* acknowledges it */
	FAMILY_CONTEXT = 30,	  /* makes a context current; device unknown */
	FAMILY_PREPARE = 31,	  /* loads code, or makes a context to run it in */
};

enum api_layer {
	LAYER_RUNTIME = 1,
	LAYER_DRIVER = 2,
	/* Those below have no memory; see memory_key. */
	LAYER_NCCL = 8,
	LAYER_VERBS = 9,
};

/* What the address in an allocation_key is, where it is none of a layer's addresses. */
enum memory_key {
	MEMORY_HANDLE = 3,   /* of physical memory; there can be several, and one several times */
	MEMORY_MAPPING = 4,  /* where physical memory is mapped */
	MEMORY_PHYSICAL = 5, /* when it was made: lives while it has handles or mappings */
};

/* How a launch passes its dimensions. */
enum launch_shape {
	LAUNCH_NONE = 0,
	LAUNCH_DIM3 = 1,    /* two dim3 by value in slots 2-3 and 4-5 */
	LAUNCH_SCALARS = 2, /* six integers in slots 2-7 */
	LAUNCH_CONFIG = 3,  /* a pointer to a launch configuration in slot 1 */
};

/* What a call does to the capture of its stream into a graph. */
enum stream_capture {
	CAPTURE_NONE = 0,
	CAPTURE_BEGINS = 1,
	CAPTURE_ENDS = 2,
};

/* How arguments state a size. Memory that they point to is read at the entry. */
enum size_form {
	SIZE_OF_SLOTS = 0,	 /* the number in the slot, times that in the height slot */
	SIZE_OF_EXTENT = 1,	 /* a cudaExtent, which is passed by value */
	SIZE_OF_ARRAY = 2,	 /* a format in the slot before; width and height in slots */
	SIZE_OF_ARRAY_3D = 3,	 /* a format in the slot before, and a cudaExtent */
	SIZE_OF_COPY_3D = 4,	 /* a pointer to cudaMemcpy3DParms */
	SIZE_OF_LIST = 5,	 /* a pointer to sizes, and in the next slot how many there are */
	SIZE_OF_CU_COPY_2D = 6,	 /* a pointer to CUDA_MEMCPY2D */
	SIZE_OF_CU_COPY_3D = 7,	 /* a pointer to CUDA_MEMCPY3D */
	SIZE_OF_CU_ARRAY = 8,	 /* a pointer to CUDA_ARRAY_DESCRIPTOR */
	SIZE_OF_CU_ARRAY_3D = 9, /* a pointer to CUDA_ARRAY3D_DESCRIPTOR */
};

/* What a call does to physical memory, which is apart from where it is mapped. */
enum physical_memory {
	PHYSICAL_NONE = 0,
	PHYSICAL_CREATE = 1,
	PHYSICAL_IMPORT = 2, /* of another process, which has allocated it */
	PHYSICAL_RETAIN = 3,
	PHYSICAL_RELEASE = 4,
	PHYSICAL_MAP = 5,
	PHYSICAL_UNMAP = 6,
};

/* What a call of NCCL does. */
enum nccl_call {
	NCCL_OTHER = 0,
	NCCL_COLLECTIVE = 1, /* or a send or receive */
	NCCL_END_GROUP = 2,
	NCCL_GET_ID = 3,
	NCCL_INIT_RANK = 4, /* the id by value: on arm64 its address */
	NCCL_INIT_RANK_SCALABLE = 5,
	NCCL_INIT_ALL = 6,
	NCCL_SPLIT = 7,
	NCCL_SHRINK = 8,
	NCCL_GROW = 9,
	NCCL_DESTROY = 10,
	NCCL_ABORT = 11,
	NCCL_ASYNC_ERROR = 12,
	NCCL_COUNT = 13,
	NCCL_USER_RANK = 14,
	NCCL_DEVICE = 15,
};

/* What a call shows about work on a stream or event. The event is in the function slot. */
enum stream_work {
	WORK_NONE = 0,
	WORK_RECORDED = 1,    /* the event is over when the stream has come so far */
	WORK_AWAITED = 2,     /* the stream goes on when the event is over */
	WORK_EVENT_OVER = 3,  /* if it succeeds */
	WORK_STREAM_OVER = 4, /* if it succeeds */
	WORK_DEVICE_OVER = 5, /* if it succeeds */
	WORK_EVENT_GONE = 6,
	WORK_STREAM_GONE = 7,
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

/* When user stacks are taken. */
enum sample_moment {
	SAMPLE_CALLS = 1,  /* a chosen call returns */
	SAMPLE_STALLS = 2, /* a thread leaves the CPU to wait */
};

/* Why a call was sent as a span. */
enum choice {
	CHOICE_FAILED = 1,
	CHOICE_SLOW = 2,
	CHOICE_SAMPLED = 4,
	CHOICE_FULL = 8,
	CHOICE_STALLED = 16,
	CHOICE_PARENT = 32,    /* a call inside it was sent */
	CHOICE_FIRST_USE = 64, /* its kernel was found just now: the driver may load code in it */
};

enum metric {
	METRIC_CALL_DURATION = 1, /* ns */
	METRIC_LAUNCH_GAP = 2,	  /* ns */
	METRIC_OFF_CPU = 3,	  /* ns; api holds enum switch_type */
	METRIC_RUN_QUEUE = 4,	  /* ns; api holds enum switch_type */
	METRIC_COPY_SIZE = 5,	  /* bytes */
	METRIC_FORK = 6,	  /* count of forks in buckets[0] */
	METRIC_ELAPSED_TIME = 7,  /* ns on the device, between two events of the program */
	METRIC_ASYNC_EVENT = 8,	  /* count in buckets[0]; copy_kind holds enum ibv_event_type */
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
	STALL_GIL = 1,	      /* the futex is in the interpreter's runtime state */
	STALL_FAULT = 2,      /* not in a system call: a page fault, or stopped */
	STALL_IDLE_CPU = 4,   /* the CPU that it got was idle until then, or it left it idle */
	STALL_THROTTLED = 8,  /* its cgroup's CPU quota took the CPU from it; since Linux 6.18 */
	STALL_AGENT = 16,     /* the agent woke it: as it does those that it stopped */
	STALL_PREEMPTED = 32, /* it was at work, and its CPU was taken from it */
	STALL_STOPPED = 64,   /* by a signal or a debugger */
	STALL_FROZEN = 128,   /* a freezer of cgroup v2 stops it, if its stack confirms that */
};

enum library_flag {
	LIBRARY_NOT_CUDA = 1, /* in header.flags: only libraries of others are new */
};

enum exit_flag {
	EXIT_NOT_SEEN = 1, /* in header.flags: made by the agent, of what it found gone */
};

enum process_flag {
	PROCESS_FULL = 1,	  /* every call becomes a span */
	PROCESS_STOP_ON_LOAD = 2, /* stop it while probes are placed */
	PROCESS_NO_SPANS = 4,	  /* aggregates only */
	PROCESS_HAS_CUDA = 8,	  /* a library of it was seen, in this program or one before */
	PROCESS_FORKED = 16,	  /* and not executed since: it inherits pointers, and no memory */
	PROCESS_HAS_COMMUNICATORS =
		32, /* a communicator of it was seen, in this program or a parent */
};

struct record_header {
	__u16 kind;
	__u16 flags;
	__u32 size;	/* of the whole record, in bytes */
	__u64 ktime_ns; /* the end of a call or stall, the moment of anything else */
	__u64 program_ktime_ns;
	__u32 pid;
	__u32 tid;
};

/*
 * Of collectives: the address is the communicator's id, the function its handle, the grid holds
 * count (low, high) and datatype | reduction << 8 | operation << 16, the block root and number
 * (low, high; 0: it was captured, or has none).
 */
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
	__u64 user_stack;	     /* id of its merged stack, 0: none; see sample_record */
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
	__u64 root_start_ktime_ns;   /* outermost open call, or the gap; 0: in none */
	__u64 user_stack;	     /* id of its merged stack, 0: none; see sample_record */
	__u32 culprit_pid;	     /* who had the CPU that it waited for; 0: idle or unknown */
	__u32 culprit_tid;
	__u32 waker_pid; /* who woke it; 0: a timer, an interrupt on an idle CPU, or not known */
	__u32 waker_tid;
	__u32 cpu; /* where it ran again */
	__u16 call_api;
	__u8 call_depth;
	__u8 switch_type;
	__s32 kernel_stack; /* id in the stacks map; negative: none */
	__s32 system_call;  /* number; -1: in none */
	__u64 argument;	    /* first argument of the system call */
	__u32 flags;	    /* enum stall_flag */
	__u32 resource;	    /* id in the resources map; 0: not known */
	char comm[COMM_BYTES];
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
};

/* How threads on a CPU are sampled, set by the agent; 0: not set yet. */
struct cpu_sampling {
	__u32 one_in;	 /* ticks */
	__u32 period_ns; /* between two */
};

/*
 * A watched thread was on a CPU when that CPU's sampling clock ticked. weight_ns is the time on
 * CPUs that the sample stands for: the clock's period, for this tick and each before it that the
 * clock missed, times the ticks of watched threads for which one sample was taken.
 *
 * In the ring, a struct kernel_stack follows if the tick interrupted the kernel: ticks may come
 * at any instruction, so there are too many of them for the stacks map. The agent names them by
 * their functions.
 */
struct cpu_sample_record {
	struct record_header header; /* ktime_ns is the tick */
	__u64 user_stack;	     /* id of its merged stack, 0: none; see sample_record */
	__u64 weight_ns;
	__u64 root_start_ktime_ns; /* outermost open call; 0: in none */
	__s32 kernel_stack;	   /* id of its functions; negative: it was in user space */
	__u32 cpu;
	__u16 api;    /* of the outermost open call, or of the call before the gap; 0: none */
	__u8 context; /* enum call_context */
	__u8 padding[5];
	char comm[COMM_BYTES];
};

/* How the walk of a thread's Python frames ended. */
enum python_status {
	PYTHON_NONE = 0,      /* no interpreter in the process, or none that we know */
	PYTHON_NO_THREAD = 1, /* the interpreter does not know this thread */
	PYTHON_COMPLETE = 2,
	PYTHON_CUT = 3,	   /* deeper than MAX_PYTHON_FRAMES */
	PYTHON_BROKEN = 4, /* memory that could not be read, or was not what it should be */
};

enum python_frame_flag {
	PYTHON_FRAME_ENTRY = 1, /* called from C: the outermost of its evaluation loop */
	PYTHON_FRAME_SHIM = 2,	/* no Python, but the C code that called the one before it */
};

/* A frame of the interpreter, innermost first. */
struct python_frame {
	__u64 code;   /* names a code object that a code_record describes; of a shim: its address */
	__u32 offset; /* of the current instruction in its code, in bytes */
	__u32 flags;  /* enum python_frame_flag */
};

/* A return address that a uretprobe replaced by its trampoline, and where it was. */
struct saved_return {
	__u64 stack_address;
	__u64 return_address;
};

/*
 * A user stack as it was when a chosen call returned, or when a thread left the CPU: the
 * agent makes a merged stack of it. The record that it belongs to follows it in the ring
 * and has the sample's token as its user_stack, until the agent puts the id there.
 *
 * It is without gaps: python_count frames, behind them return_count returns, behind them
 * stack_bytes of the stack, from stack_pointer on. The arrays are as long as they can get. What may be behind a large stack
 * is whatever the memory held before.
 */
struct sample_record {
	struct record_header header; /* ktime_ns is the token: unique within the thread */
	__u64 instruction_pointer;   /* where the thread goes on in user space */
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 link_register; /* arm64; else 0 */
	__u32 return_count;
	__u32 python_count;
	__u32 python_status; /* enum python_status */
	__u32 stack_bytes;
	struct python_frame python_frames[MAX_PYTHON_FRAMES];
	struct saved_return returns[MAX_RETURNS];
};

enum thread_dump_flag {
	THREAD_DUMP_LATE =
		1, /* it was on a CPU: registers are of when it last entered the kernel */
	THREAD_DUMP_FOLLOWED = 2, /* the calls that it has entered since then are known */
	THREAD_DUMP_NO_USER = 4,  /* its registers are not of user space: the sample is empty */
};

/*
 * A thread that was looked at by another one, while it did whatever it does. The sample is behind
 * it; its token is the same ktime_ns.
 */
struct thread_dump_record {
	struct record_header header; /* size is that of both together */
	__u64 since_clock_ns;  /* when its state began, by the scheduler's clock; 0: unknown */
	__u64 clock_behind_ns; /* that clock is at least so far behind ktime, modulo 2^64 */
	__u64 stack_pointers[MAX_DEPTH]; /* of its open calls, the outermost first */
	__u32 open_calls;
	__u32 flags;	    /* enum thread_dump_flag */
	__s32 kernel_stack; /* id in the stacks map; negative: none, or it was on a CPU */
	__s32 system_call;  /* number; -1: in none */
	__u32 task_state;   /* as the kernel has it: what it waits for can interrupt it, ... */
	__u32 state;	    /* enum thread_state */
	char comm[COMM_BYTES];
};

/* Text of the interpreter: ASCII or Latin-1 if character_bytes is 1, else UCS-2 or UCS-4. */
struct code_text {
	__u32 length; /* in characters, of the whole text */
	__u32 character_bytes;
	__u8 data[TEXT_BYTES];
};

/*
 * A code object, sent before the first record whose sample has a frame of it, and again
 * only if it was forgotten. header.size includes only the used part of the line table.
 */
struct code_record {
	struct record_header header;
	__u64 code; /* its name in python_frame */
	__u64 address;
	__s32 first_line;
	__u32 version;		/* of the interpreter: major << 8 | minor */
	__u32 line_table_bytes; /* copied */
	__u32 line_table_length;
	struct code_text file;
	struct code_text qualified_name; /* before 3.11 only the name */
	__u8 line_table[LINE_TABLE_BYTES];
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

/*
 * Time of threads by what they did, where, and who kept them from going on: monotonic.
 *
 * While a wait lasts, who will end it is not known: its time is in an entry without.
 */
struct times_key {
	__u64 program_ktime_ns;
	__u32 pid;
	__s32 kernel_stack; /* blocked only; else -1 */
	__s32 system_call;  /* blocked only; else -1 */
	__u8 state;	    /* enum thread_state */
	__u8 context;	    /* enum call_context */
	__u8 flags;	    /* enum stall_flag */
	__u8 end_state;	    /* enum thread_state of the last one during the wait */
	__u32 who_pid;	    /* run queue: who had the CPU; blocked: who ended it; 0: not known */
	__u32 who_tid;	    /* 0: not one thread, or not watched */
	__u32 end_pid;	    /* the last one of those that waited for each other; 0: not known */
	__u32 end_tid;	    /* may be who itself */
	__s32 end_kernel_stack; /* where that one was blocked, if it was */
	__s32 end_system_call;
	__u32 resource; /* what the system call was about: an id; 0: not known */
	__u16 api;	/* outermost open call; in a gap the one before it; 0: none */
	__u8 end_flags; /* enum stall_flag, of the last one */
	__u8 is_folded; /* 1: without details, map full; FOLDED_BY_NAME: the processes have ended */
};

struct times {
	__u64 time_ns; /* booked while it passes */
	__u64 count;
	__u64 ended_ns; /* of waits that ended, and on a CPU: the whole of each when it ended */
	char who_comm[COMM_BYTES];
	char end_comm[COMM_BYTES];
};

struct times_record {
	struct record_header header;
	__u32 count; /* entries that follow: key, then times */
	__u32 padding;
};

struct fork_record {
	struct record_header header; /* of the parent; ktime_ns is the end */
	__u64 start_ktime_ns;	     /* equal to the end where entry is not seen */
	__u64 child_program_ktime_ns;
	__u64 call_start_ktime_ns; /* innermost open CUDA call of the thread, or 0 */
	__u64 root_start_ktime_ns; /* its outermost one, or 0 */
	__u32 child_pid;
	__u32 padding;
	char comm[COMM_BYTES];
};

struct exec_record {
	struct record_header header; /* program_ktime_ns is the new program's */
	__u64 old_program_ktime_ns;
	__u64 inode;   /* of the new executable */
	__u32 device;  /* of the new executable: major << 20 | minor */
	__u32 stopped; /* 1: the process waits for SIGCONT */
	char comm[COMM_BYTES];
	char path[PATH_BYTES]; /* of the new executable; its end, if it is longer */
};

/* The last thread of the process is gone. */
struct exit_record {
	struct record_header header; /* flags: enum exit_flag */
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

/* Of the program_ktime_ns of a process whose counts the agent cannot read. */
#define PRELOAD_REFUSED_BIT 63
#define PRELOAD_REFUSED	    (1ULL << PRELOAD_REFUSED_BIT)

/* A process counts its frequent calls itself from now on, or reports that it cannot. */
struct preload_record {
	struct record_header header;
	__u64 memory;  /* where it counts them: its address; 0: nowhere */
	__u32 stopped; /* 1: the process waits for SIGCONT */
	__u32 padding;
};

struct device_record {
	struct record_header header;
	__s32 device; /* index as the process sees it */
	__u32 has_name;
	__u8 uuid[UUID_BYTES];
	char name[DEVICE_NAME_BYTES];
};

/* A handle of a kernel was given out. */
struct handle_record {
	struct record_header header;
	__u64 handle;
	__u64 same_as; /* another handle of it, or its address on the host; 0: it has the name */
	char name[FUNCTION_BYTES]; /* mangled; the beginning of a long one */
};

/*
 * Blocks that a framework's allocator hands out and takes back. It reports each of them with its
 * own totals: the sum of what was seen since the first report, and the totals, check each other.
 */
enum block_mode {
	BLOCKS_OFF = 0,
	BLOCKS_TOTALS = 1, /* what is allocated and reserved */
	BLOCKS_LARGE = 2,  /* and stacks: of large ones, and of small ones in proportion to bytes */
	BLOCKS_ALL = 3,	   /* and stacks of all blocks */
};

struct device_key {
	__u64 program_ktime_ns;
	__u32 pid;
	__s32 device; /* as the process sees it */
};

/* Of one device and framework: monotonic, except the allocator's own latest figures. */
struct memory_totals {
	__u64 last_ktime_ns; /* of the first report in the last tick, or of a later block that has a stack */
	__u64 allocated_bytes; /* in the latest report */
	__u64 reserved_bytes;  /* in the latest report */
	__u64 peak_allocated_bytes;
	__u64 peak_reserved_bytes;
	__s64 before_bytes;	  /* allocated before the first report, or missed since then */
	__u64 before_freed_bytes; /* of blocks that were not seen to be allocated; not in totals */
	__u64 allocations;
	__u64 frees;
	__u64 handed_out_bytes;	  /* by all allocations that were seen */
	__u64 taken_back_bytes;	  /* by all frees that were seen */
	__u64 unequal;		  /* reports whose total is not before + handed out - taken back */
	__u64 unsampled_bytes;	  /* handed out by allocations that were not chosen for a stack */
	__u64 rate_limited_bytes; /* handed out by chosen ones whose stack was over the rate */
};

struct holder_key {
	__u64 program_ktime_ns;
	__u64 stack; /* the key of a block_stack_record; 0: stacks that are not known */
	__u32 pid;
	__s32 device;
};

/* What blocks of one stack hold; sampled ones count as what they stand for. */
struct holder {
	__s64 live_bytes;
	__s64 live_blocks;
	__u64 allocated_bytes;
	__u64 allocated_blocks;
	__u64 large_live_bytes; /* exact: of large blocks, or of all in BLOCKS_ALL */
};

struct memory_record {
	struct record_header header;
	__u32 count; /* entries that follow: key, then value */
	__u32 padding;
};

/* Where blocks were allocated that have this key; sent before a holder of it is read. */
struct block_stack_record {
	struct record_header header;
	__u64 stack;	  /* names it, in this program */
	__u64 user_stack; /* id of its merged stack, 0: none; see sample_record */
	__s32 device;
	__u32 padding;
};

/* What reported that memory ran out. */
enum out_of_memory_source {
	OUT_OF_MEMORY_FRAMEWORK = 1,
	OUT_OF_MEMORY_CALL = 2, /* a call that allocates returned the error */
};

struct out_of_memory_record {
	struct record_header header;
	__u64 asked_bytes;
	__u64 allocated_bytes; /* by the allocator; of a call: 0 */
	__u64 reserved_bytes;
	__u64 device_free_bytes;   /* latest result of cudaMemGetInfo in the thread */
	__u64 device_total_bytes;  /* 0: it did not ask */
	__u64 device_ktime_ns;	   /* when */
	__u64 root_start_ktime_ns; /* outermost open call; 0: in none */
	__u64 user_stack;	   /* id of its merged stack, 0: none; see sample_record */
	__s32 device;
	__u16 source; /* enum out_of_memory_source */
	__u16 api;    /* of a call; else 0 */
	char comm[COMM_BYTES];
};

/*
 * In which span of its application a thread was, at the start of an outermost call, of a gap, of a
 * fork, or of a wait outside calls; sent before what it is of. See core/thread_context.bpf.h.
 */
struct thread_context_record {
	struct record_header header;
	__u64 start_ktime_ns; /* of what it is of */
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 trace_flags;
	__u8 padding[7];
};

/* Where a step comes from. */
enum step_source {
	STEP_REPORTED = 1, /* the program */
	STEP_FOUND = 2,	   /* the agent: its calls repeat themselves */
};

enum step_kind {
	STEP_UNKNOWN = 0,
	STEP_TRAINING = 1,
	STEP_EVALUATION = 2,
	STEP_PREFILL = 3,
	STEP_DECODE = 4,
};

/* One iteration of a thread's repeated work; the header has its tid, and the end as ktime. */
struct step_record {
	struct record_header header;
	__u64 start_ktime_ns;
	__u64 number;	      /* as the program counts; of a found one: from 1, of its thread */
	__u64 loader_wait_ns; /* of it, for the data loader, if the program reports it */
	__u8 trace_id[16];    /* of the program's own span of it; zeros: it has none */
	__u8 span_id[8];
	__u8 trace_flags;
	__u8 source;		 /* enum step_source */
	__u8 confidence_percent; /* 100 if the program reported it */
	__u8 step_kind;		 /* enum step_kind */
	__u8 padding[4];
	char name[STEP_NAME_BYTES]; /* may be empty */
	char comm[COMM_BYTES];
};

/*
 * Steps of programs that do not report them. The agent searches a thread's kept calls for a
 * period, and sets the calls by which a step begins and ends. From then on each
 * round is reported, which the agent makes a step.
 */
struct iteration_record {
	struct record_header header; /* ktime_ns is the return of its last call */
	__u64 start_ktime_ns;	     /* the return of the last call before it */
	__u32 detector;		     /* whose it is: the index */
	__u32 padding;
	char comm[COMM_BYTES];
};

struct detector_call {
	__u64 start_ktime_ns;
	__u32 gap_ns; /* since the return of the call before; the most that fits */
	__u16 symbol; /* one number per kind of call */
	__u8 api;
	__u8 copy_kind;
};

/* Both sides have it mapped, or at hand; each writes what is its own. */
struct step_detector {
	/* The agent's. A history has 16 bits of each call, of the latest the lowest. */
	__u64 starts[DETECTOR_PATTERNS]; /* histories by which steps begin; 0: none */
	__u64 ends[DETECTOR_PATTERNS];
	__u64 start_mask; /* of start_calls; 0: iterations are not reported */
	__u64 end_mask;
	__u32 start_calls;
	__u32 area;  /* where calls are kept, from 1; 0: they are not */
	__u32 folds; /* the same call again at once is not another call */
	/* The kernel side's. */
	__u32 tid; /* 0: free; the agent frees it */
	__u32 pid;
	__u32 kept; /* calls in the area; the agent begins anew */
	__u64 program_ktime_ns;
	__u64 made; /* calls */
	__u64 history;
	__u64 returns_ktime_ns[DETECTOR_HISTORY]; /* before each of the latest calls */
	__u64 start_ktime_ns;			  /* of the round; 0: it is in none */
	__u64 arrival_ktime_ns;			  /* rate limit: theoretical arrival time */
	__u64 last_return_ktime_ns;		  /* when the thread has ended */
	__u32 distinct;				  /* calls in the history since it began */
	__u16 before;				  /* symbol of the last call */
	__u8 is_over;				  /* the last call was the last one of a round */
	__u8 has_ended;				  /* the thread has */
};

/* What a program passes to otel_gpu_step() of preload/libotel_gpu_marks.c; any values. */
struct reported_step {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
	__u64 now_ktime_ns; /* a moment before the call; its clock may not be ours */
	__u64 number;
	__u64 loader_wait_ns;
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 trace_flags;
	__u8 step_kind;
	__u8 padding[6];
	char name[STEP_NAME_BYTES];
};

enum range_kind {
	RANGE_PUSHED = 0,
	RANGE_STARTED = 1, /* it may end in another thread than it began in */
	RANGE_MARKED = 2,  /* a moment */
};

/* A range that the program marked with NVTX; its tid is the thread in which it ended. */
struct range_record {
	struct record_header header; /* ktime_ns is its end */
	__u64 start_ktime_ns;
	__u8 trace_id[16];
	__u8 span_id[8];
	__u8 parent_span_id[8]; /* zeros: none */
	__u32 start_tid;
	__u8 trace_flags;
	__u8 range_kind;
	__u8 padding[2];
	char name[RANGE_NAME_BYTES];
	char domain[RANGE_NAME_BYTES]; /* empty: the default one */
	char comm[COMM_BYTES];
};

/* What preload/libotel_gpu_nvtx.c passes to otel_gpu_nvtx_range(); any values. */
struct reported_range {
	__u64 start_ns; /* by the program's clock, which may not be ours */
	__u64 end_ns;
	__u64 now_ns;
	__u8 trace_id[16];
	__u64 span_id; /* big-endian */
	__u64 parent_span_id;
	__u64 left_out;		 /* of this thread since the last one, for their number */
	__u64 published_address; /* of the thread's struct published_range */
	__u32 start_tid;
	__u8 trace_flags;
	__u8 range_kind;
	__u8 padding[2];
	char name[RANGE_NAME_BYTES];
	char domain[RANGE_NAME_BYTES];
};

/*
 * Collectives. Calls queue work on a stream, which the device does later together with the other
 * ranks; the order of calls on a communicator is what has to agree on all of them. So each rank
 * counts them: its n-th call is part of the n-th collective. Calls that are captured into a graph
 * are apart, as replays of it are not seen. Sends and receives have no number that ranks share.
 */
#define RECENT_COLLECTIVES	  16 /* of a communicator, by number: n is at n % RECENT_COLLECTIVES */
#define MAX_COLLECTIVE_OPERATIONS 16

enum collective_operation {
	COLLECTIVE_NONE = 0,
	COLLECTIVE_ALL_REDUCE = 1,
	COLLECTIVE_BROADCAST = 2,
	COLLECTIVE_REDUCE = 3,
	COLLECTIVE_ALL_GATHER = 4,
	COLLECTIVE_REDUCE_SCATTER = 5,
	COLLECTIVE_ALL_TO_ALL = 6,
	COLLECTIVE_GATHER = 7,
	COLLECTIVE_SCATTER = 8,
	COLLECTIVE_SEND = 9,
	COLLECTIVE_RECEIVE = 10,
};

enum communicator_flag {
	COMMUNICATOR_LATE = 1, /* made before it was watched: numbers are not those of others */
	COMMUNICATOR_ABORTED = 2,
	COMMUNICATOR_DESTROYED = 4,
};

struct communicator_key {
	__u64 program_ktime_ns;
	__u64 handle; /* ncclComm_t */
	__u32 pid;
	__u32 generation; /* of this handle in this program: an address is used again */
};

/* Fields of a collective that are the same on all ranks. */
struct collective {
	__u64 number;	       /* from 1 */
	__u64 count;	       /* elements, as the call has them */
	__u64 called_ktime_ns; /* return of the call that queued it */
	__s32 root;	       /* -1: none */
	__u8 operation;	       /* enum collective_operation */
	__u8 datatype;	       /* ncclDataType_t */
	__u8 reduction;	       /* ncclRedOp_t; 255: none */
	__u8 padding;
};

/* One rank of a communicator, in one process: cumulative. */
struct communicator {
	__u64 id;	 /* the same on all ranks; 0: not known */
	__u64 called;	 /* collectives: the number of the last one */
	__u64 completed; /* the number up to which the program learned that they are done */
	__u64 completed_ktime_ns; /* when it learned that; 0: it never asked */
	__u64 completions;	  /* collectives that waited_ns is of */
	__u64 waited_ns;	  /* from the call to when the program learned that it is done */
	__u64 captured;		  /* calls, into graphs */
	__u64 failed;		  /* calls; ncclInProgress is not a failure */
	__u64 made_ktime_ns;
	__s32 rank;
	__s32 rank_count;  /* 0: not known */
	__s32 device;	   /* as the process sees it; -1: not known */
	__s32 async_error; /* latest ncclResult_t that the program got; 0: none */
	__u32 flags;	   /* enum communicator_flag */
	__u32 padding;
	__u64 calls[MAX_COLLECTIVE_OPERATIONS]; /* by enum collective_operation */
	__u64 bytes
		[MAX_COLLECTIVE_OPERATIONS]; /* count * size of the datatype, as the call has it */
	struct collective recent[RECENT_COLLECTIVES];
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
	__u64 start_ktime_ns; /* before program_ktime_ns: at the latest, as its entry was not seen */
	__u64 root_start_ktime_ns;
	__u64 blocked_ns;
	__u64 run_queue_ns;
	__u64 user_stack; /* where it left the CPU in it, or was looked at: id of its merged stack, 0: none */
	__s32 device;
	__u16 api;
	__u8 depth;
	__u8 padding;
	char comm[COMM_BYTES];
};

struct aggregate_key {
	__u64 program_ktime_ns;
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
	__u8 fixed_copy_kind; /* if no slot has it */
	__u8 launch_shape;
	__u8 function_slot;
	__u8 device_slot;     /* an index, or a pointer to one when family is GET_DEVICE */
	__u8 size_shift;      /* elements to bytes */
	__u8 stream_capture;  /* enum stream_capture */
	__u8 properties_slot; /* a CUmemAllocationProp, with the memory's location */
	__u8 physical;	      /* enum physical_memory */
	__u8 size_form;	      /* enum size_form */
	__u8 stream_work;     /* enum stream_work */
	__u8 nccl;	      /* enum nccl_call, if the layer is NCCL */
	__u8 operation;	      /* enum collective_operation */
	__u8 communicator_slot;
	__u8 datatype_slot;
	__u8 reduction_slot;
	__u8 root_slot;	      /* or peer */
	__u8 returns_pointer; /* and not a status; none: it failed */
	__u8 preload;	      /* 1: the preload library counts it, in a process that has one */
};

/* Statuses of verbs: a number of errno(3), -1 if only errno has the reason, or beyond these. */
enum verbs_status {
	VERBS_EVENT_STATUS = 1000, /* plus the enum ibv_event_type of an asynchronous event */
};

/* Tunables and tables: read-only data, fixed before the programs load. */
/* What all programs fill, and have shares of: see core/shares.bpf.h. */
enum share_kind {
	SHARE_SERIES = 0,
	SHARE_TIMES = 1,
	SHARE_FOLDED_TIMES = 2,
	SHARE_PROCESSES = 3, /* of users alone */
	SHARE_THREADS = 4,
	SHARE_STACKS = 5,	/* of users alone */
	SHARE_LIFECYCLE = 6,	/* bytes of the ring; see core/rings.bpf.h */
	SHARE_EVENTS = 7,	/* the same */
	SHARE_SPANS = 8,	/* of the rate of a user; see admit() */
	SHARE_BLOCK_STACKS = 9, /* of the rate of new stacks of blocks; see admit_stack() */
	SHARE_COUNT = 10,
};

struct shares {
	__s32 held[SHARE_COUNT];
	__u32 refused[SHARE_COUNT];
	__u64 record_arrival_ktime_ns[RINGS]; /* rate limits, while a ring is nearly full */
	__u64 span_arrival_ktime_ns;	      /* rate limits of a user */
	__u64 block_stack_arrival_ktime_ns;
};

/* What the agent has added, less what it has freed. */
struct share_corrections {
	__s32 held[SHARE_COUNT];
};

struct program_key {
	__u64 program_ktime_ns;
	__u32 pid;
	__u32 padding;
};

struct ended_shares {
	struct shares shares;
	__u32 uid;
	char comm[COMM_BYTES];
	__u32 padding;
};

struct settings {
	__u64 duration_bounds_ns[MAX_BOUNDS + 1];
	__u64 size_bounds_bytes[MAX_BOUNDS + 1];
	__u64 slow_floor_ns;	   /* slow until a series has a threshold of its own */
	__u64 stall_floor_ns;	   /* outside calls */
	__u64 call_stall_floor_ns; /* inside calls */
	__u64 span_interval_ns;	   /* 1 s / rate of each process */
	__u64 span_burst_ns;	   /* how far ahead of its rate a process may run */
	__u64 wakeup_bytes;	   /* pending ring-buffer bytes that wake the agent */
	__u64 sample_limit_bytes;  /* pending ring-buffer bytes from which no stack is taken */
	__u64 stall_samples_interval_ns; /* 1 s / rate of each thread, in waits sampled */
	__u64 tick_period_ns;		 /* of each CPU's sampling clock */
	__u64 cpu_sample_interval_ns;	 /* 1 s / rate of the host, in samples of those ticks */
	__u64 large_bytes;		 /* of a block, from which on it is large */
	__u64 sample_bytes;		 /* of small blocks, per sample */
	__u64 block_stack_interval_ns;	 /* 1 s / rate of the host, in new stacks of blocks */
	__u64 started_boot_ns;		 /* when the agent was */
	__u32 sample_one_in;		 /* 0: no baseline sample */
	__u32 watch_all;
	__u32 default_process_flags; /* of a process that watch_all finds */
	__u32 agent_pid;
	__u32 pid_namespace_inode; /* 0: the initial namespace */
	__u32 sample_moments;	   /* enum sample_moment; 0: no user stacks */
	__u32 block_mode;	   /* enum block_mode */
	__u32 finds_steps;
	__u32 share_bounds[SHARE_COUNT]; /* most entries of all programs together */
	struct api_descriptor apis[MAX_APIS];
};

struct process {
	__u64 program_ktime_ns;
	__u64 span_arrival_ktime_ns; /* rate limit: theoretical arrival time */
	__u32 flags;
	__u32 resources;	      /* that were first met in its waits */
	__u32 gil_tid;		      /* the last thread that waited for the GIL and got it */
	__u32 communicators;	      /* that were made in it */
	__u64 step_arrival_ktime_ns;  /* rate limit of the steps that it reports */
	__u64 event_arrival_ktime_ns; /* rate limit of failures of its adapters */
	__u64 stopped_ktime_ns;	      /* its last stop for probes: the time in that record */
	struct shares shares;
	__u32 uid;	   /* the real one, in the initial user namespace */
	__u32 stopped_tid; /* the thread that stopped last */
};

/*
 * Where an interpreter keeps its runtime state, which its GIL is a part of, and how its
 * frames lie in memory. Offsets are in bytes, from the beginning of what they are named for.
 */
struct interpreter {
	__u64 program_ktime_ns;
	__u64 start; /* of _PyRuntime */
	__u64 end;
	__u32 version;		    /* major << 8 | minor; 0: frames are not walked */
	__u32 runtime_interpreters; /* first PyInterpreterState */
	__u32 interpreter_next;
	__u32 interpreter_threads; /* first PyThreadState */
	__u32 thread_next;
	__u32 thread_id;     /* pthread_self() of the thread */
	__u32 thread_frame;  /* innermost frame; of 3.11 and 3.12: the _PyCFrame with it */
	__u32 c_frame_frame; /* innermost frame in the _PyCFrame */
	__u32 frame_code;
	__u32 frame_previous;
	__u32 frame_instruction; /* current instruction: pointer; of 3.10: its number */
	__u32 frame_owner;	 /* of 3.11: is_entry */
	__u32 frame_bytes;	 /* enough to hold the four above */
	__u32 shim_owner;	 /* frames with this owner, or a higher one, stand for C code */
	__u32 code_first_line;
	__u32 code_file;
	__u32 code_name; /* its qualified name, from 3.11 on */
	__u32 code_line_table;
	__u32 code_instructions; /* where they begin; of 3.10: unused */
	__u32 code_bytes;	 /* enough to hold the ones above, at most 512 */
	__u32 text_length;
	__u32 text_state;
	__u32 text_ascii;   /* characters of a compact ASCII text */
	__u32 text_compact; /* characters of another compact text */
	__u32 bytes_length;
	__u32 bytes_data;
};

/* Where the threads of a process keep the pointer to their context. */
struct thread_context_place {
	__u64 program_ktime_ns;
	__s64 offset; /* from the thread pointer, or from where the module's storage begins */
	__u64 module; /* number of the module whose storage it is in; 0: the static one */
};

struct threshold_key {
	__u64 program_ktime_ns;
	__u32 pid;
	__u16 api;
	__u8 copy_kind;
	__u8 padding;
};

/* Who is looked at. */
struct thread_dump_key {
	__u32 pid;
	__u32 tid; /* 0: all threads */
};

struct file_key {
	__u64 inode;
	__u32 device;
	__u32 padding;
};

enum published {
	PUBLISHED = 1,		  /* by the preload library of its process, which ends it */
	PUBLISHED_AND_PROBED = 2, /* a probe at the function itself saw it begin */
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
	__u8 is_on_host;   /* an allocation that takes no memory of a device */
	__u8 has_no_size;  /* its arguments have one that cannot be read from them */
	__s32 status;	   /* as it returned */
	__u8 is_published; /* enum published; 0: only probes know of it */
	__u8 padding[7];
};

/* What OTEP 4947 has in its record, and may leave out. */
struct published_context {
	__u8 trace_id[16];
	__u64 span_id; /* big-endian */
	__u8 valid;
	__u8 trace_flags;
	__u16 attributes_bytes;
	__u32 padding; /* not of the record, which has 28 bytes */
};

/* The innermost range of a thread that is a span, as preload/libotel_gpu_nvtx.c publishes it. */
struct published_range {
	__u8 trace_id[16];
	__u64 span_id; /* big-endian */
	__u8 valid;
	__u8 trace_flags;
	__u16 attributes_bytes;
	__u32 padding;
	__u64 within_span_id; /* of the application, where it was pushed; 0: none */
};

/* One time off the CPU, kept until the call or gap around it is chosen or not. */
struct interval {
	__u64 start_ktime_ns; /* 0: free */
	__u64 runnable_ktime_ns;
	__u64 end_ktime_ns;
	__u64 call_start_ktime_ns;
	__u64 user_stack; /* token of its sample, which was sent; 0: none */
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
	__u32 resource;
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
	struct published_context context; /* of a wait outside calls */
};

/* Time of a thread on a CPU, by context and API. */
struct cpu_time {
	__u64 time_ns;
	__u64 booked_ns; /* of it, in the account */
	__u32 place;	 /* enum call_context << 16 | api */
	__u32 padding;
};

/* Waits of a thread of one kind, which follow each other; and those that are in the account. */
struct kept_waits {
	struct times_key key;
	__u64 time_ns;
	__u64 count;
	__u64 booked_ns;
	__u64 booked_count;
	__u32 changes; /* of the key; odd while it is written */
	__u32 misses;  /* waits of other kinds, since the last one of this kind */
};

/*
 * What kept a thread from running for a while, and the state of the last thread in a chain of
 * waits. Waits of one kind that follow each other closely are one link.
 */
struct wait_link {
	__u64 start_ktime_ns;	 /* 0: none */
	__u64 last_ktime_ns;	 /* when the last one of its waits began */
	__u64 runnable_ktime_ns; /* when that one could run again */
	__u64 end_ktime_ns;
	__u64 blocked_ns; /* in between; what is missing, it was on a CPU */
	__u64 run_queue_ns;
	__u32 end_pid;
	__u32 end_tid;
	__s32 kernel_stack; /* where that one was blocked, if it was; else -1 */
	__s32 system_call;
	__u8 state; /* enum thread_state */
	__u8 flags; /* enum stall_flag */
	__u8 padding[6];
};

/* A wait that is being divided. */
struct division {
	__u64 from_ktime_ns;
	__u64 to_ktime_ns;
	__u64 unbooked_ns;
	__u64 left_ns;	    /* of what has not been looked at */
	__u64 small_ns;	    /* of what was too short for a part */
	__u64 run_queue_ns; /* of the waker's, which becomes one part in the end */
	__u64 floor_ns;	    /* of a part */
	__u64 ended;	    /* 1 until a part is booked: it is one wait */
};

/* A call that was refused device memory; the allocator around it may try again. */
struct failed_request {
	__u64 ktime_ns; /* 0: none, or it is known what came of it */
	__u64 asked_bytes;
	__u64 root_start_ktime_ns;
	__u64 user_stack; /* token of its sample, 0: none */
	__s32 device;
	__u32 api;
};

struct thread {
	__u64 program_ktime_ns;
	/* Up to when its time is in the account, and OFF_CPU if it is off a CPU since; 0: it was not
	 * seen yet. */
	__u64 booked;
	__u64 links_ktime_ns; /* since when the links below have all of its waits */
	/* Slices of one wait for the GIL, which was not released yet. */
	__u64 slices_start_ktime_ns;
	__u64 slices_end_ktime_ns;
	__u64 slices_ns;    /* blocked in them; 0: there are none */
	__u64 off_ktime_ns; /* 0: on a CPU */
	__u64 runnable_ktime_ns;
	__u64 blocked_ns;	    /* total since the thread was watched */
	__u64 run_queue_ns;	    /* total since the thread was watched */
	__u64 last_return_ktime_ns; /* of its outermost CUDA call; 0: none yet */
	__u64 clone_ktime_ns;	    /* entry of the fork that it is in */
	__u64 context_ktime_ns;	    /* start of the outermost call whose context was sent */
	__u64 noted_ktime_ns;	    /* start of the outermost call that the context below is of */
	__u64 gap_span_id;	    /* of the application, where the gap began; 0: none */
	__u64 step_return_ktime_ns; /* of its last call that counts in its period */
	__u64 ranges_address;	    /* of what it publishes of ranges of NVTX; 0: nothing */
	__u64 gap_blocked_ns;	    /* the totals above at the start of the gap */
	__u64 gap_run_queue_ns;
	__u64 argument;	  /* of the system call that it left the CPU in */
	__u64 runtime_ns; /* on CPUs, by the scheduler, when it left the CPU */
	__u64 user_stack; /* token of the sample of this wait, in stall_samples; 0: none */
	__u64 stall_samples_arrival_ktime_ns; /* rate limit: theoretical arrival time */
	__u64 last_file;		      /* the last one that was looked at: its address */
	__u64 last_inode;
	__u64 last_inode_number;
	struct failed_request failed;
	__u64 device_free_bytes; /* latest result of cudaMemGetInfo */
	__u64 device_total_bytes;
	__u64 device_ktime_ns; /* when; 0: it did not ask */
	__u64 device_answer;   /* where it will find which device it works on */
	__u64 prepared_ktime_ns; /* when code that it had not run before was found or loaded; 0: never */
	__u64 preload_slot;	 /* where it counts its own calls: its address; 0: it does not */
	__u64 preload_view
		[PRELOAD_VIEW_WORDS]; /* the beginning of it, when it was last looked at */
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
	__u32 next_link;
	__u32 woken_cpu;       /* where it had run before it was woken */
	__s32 descriptor;      /* of the system call that it waits in; -1: none */
	__u32 resource;	       /* what that is; 0: not known */
	__u32 shared_resource; /* what it is in the time account */
	__s32 last_descriptor; /* of that one; -1: it may be another file now */
	__u32 last_resource;   /* what it was */
	__u32 last_shared_resource;
	__u32 slices_place; /* as in struct cpu_time */
	__s32 slices_kernel_stack;
	__s32 slices_system_call;
	__u32 waits_for_io;	 /* for a device, by the kernel's flag */
	__u32 collectives_epoch; /* of the host, when the following was looked up */
	__u32 has_communicators;
	__u32 detector;	       /* index, from 1; 0: none, NO_DETECTOR: all are in use */
	__u32 until_detector;  /* calls before it asks for one again */
	__u32 counts_in_step;  /* the outermost open call counts in its period */
	__u32 may_be_reported; /* the last outermost call is over, and still published */
	__u16 last_api;	       /* of its last outermost call */
	__u8 switch_type;
	__u8 sampled;			 /* the outermost open call is on the baseline sample */
	__u8 call_buckets[CALL_BUCKETS]; /* of the durations of its last calls, by API; 0: none */
	__u8 off_cpu_bucket;		 /* of its last time off a CPU */
	__u8 run_queue_bucket;		 /* of the part of that in a run queue */
	__u8 padding[6];
	char culprit_comm[COMM_BYTES];
	char waker_comm[COMM_BYTES];
	char comm[COMM_BYTES];		  /* when it last left a CPU */
	struct published_context context; /* then; its span is 0 in none */
	struct kept_waits kept[MAX_KEPT];
	struct cpu_time on_cpu[MAX_PLACES];
	struct wait_link links[MAX_LINKS];
	/* Too large for the BPF stack, as is the part of a wait that is being made. */
	struct division division;
	struct wait_link part;
	struct interval intervals[MAX_INTERVALS]; /* the longest of this call or gap */
	struct open_call calls[MAX_DEPTH];
};

struct allocation_key {
	__u64 program_ktime_ns;
	__u64 address;
	__u32 pid;
	__u32 layer; /* runtime and driver see the same address; or enum memory_key */
};

struct stream_key {
	__u64 program_ktime_ns;
	__u64 stream;
	__u32 pid;
	__u32 padding;
};

/* A stream that is being captured into a graph. */
struct capture {
	__u64 origin;	/* the stream whose capture it is part of; its own handle: it began there */
	__u64 ktime_ns; /* when that began */
};

/* A communicator, and what only the kernel side needs of it. */
struct kept_communicator {
	struct communicator communicator;
	__u64 magic; /* as NCCL names the connections of its ranks; it makes the ids of larger ones */
	__u32 children; /* that were split off */
	__u32 padding;
};

/* The collectives of a communicator that are done when a stream or event is, up to a number. */
struct collective_work {
	__u64 handle; /* 0: none */
	__u64 number;
	__u64 ktime_ns; /* when it came to be there */
	__u32 generation;
	__u32 padding;
};

#define MAX_STREAM_WORK 4 /* communicators that are used on one stream */

struct stream_works {
	struct capture capture; /* of an event: that of its stream; origin 0: none */
	struct collective_work works[MAX_STREAM_WORK];
};

/* Communicators that a thread has asked for, and that are not there until later. */
#define MAX_UNBORN 8

struct unborn {
	__u64 where; /* the handle will be; 0: none */
	__u64 id;
	__s32 rank;
	__s32 rank_count;
};

struct unborn_list {
	struct unborn unborn[MAX_UNBORN];
};

#define MAX_DEVICE_COMMUNICATORS 16 /* of a process, that a wait for a device is about */

struct communicator_list {
	struct communicator_key keys[MAX_DEVICE_COMMUNICATORS];
};

struct allocation {
	__u64 size_bytes;
	__u64 physical; /* of a handle or mapping: the address in the key of its memory; 0: unknown */
	__s32 device;
	__u32 references; /* to a handle; to physical memory: handles and mappings */
	__u64 ktime_ns;	  /* of device memory at an address: since when; else 0 */
};

/* What the kernel side keeps of one device of a program. */
struct device_memory {
	struct memory_totals totals; /* last_ktime_ns is 0: without a report of its own */
	__s64 until_sample_bytes;    /* of small blocks, before the next one that is sampled */
	__u64 failed_ktime_ns;	     /* a request failed, and the agent has not read the map yet */
	__u64 is_inherited;	     /* what it frees is its parent's */
	__u64 tick;		     /* in which the time of a report was last read */
};

enum memory_kind {
	MEMORY_BLOCK = 0,
	MEMORY_SEGMENT = 1,
};

struct block_key {
	__u64 program_ktime_ns;
	__u64 address;
	__u32 pid;
	__u32 kind; /* enum memory_kind */
};

struct block {
	__u64 size_bytes;
	__u64 weight_bytes; /* that it stands for, if it was sampled; else its size */
	__u64 stack;	    /* as in struct holder_key */
	__u64 ktime_ns;	    /* when it was handed out */
	__s32 device;
	__u32 weight_blocks;
};

/* A holder, and whether its stack was sent. */
struct held {
	struct holder holder;
	__u64 is_sent;
};

struct chain_key {
	__u64 program_ktime_ns;
	__u64 stack; /* as in struct holder_key */
	__u32 pid;
	__u32 padding;
};

/* In the key of a stack: it belongs to one block, as nothing distinguishes it from others. */
#define STACK_OF_ONE_BIT 63
#define STACK_OF_ONE	 (1ULL << STACK_OF_ONE_BIT)

/* Return addresses in the kernel, innermost first; zeros at the end. */
struct kernel_stack {
	__u64 addresses[MAX_STACK_FRAMES];
};

/* Identifies what is behind a file descriptor. */
struct resource_identity {
	__u64 inode;	  /* 0: a connection to elsewhere, which is known by its peer */
	__u64 operations; /* of the file: eventfds, for one, share an inode with others */
	__u32 device;	  /* of the file system: major << 20 | minor */
	__u16 family;	  /* of a socket: AF_INET, AF_INET6, AF_UNIX, ... */
	__u16 socket_type;
	__u16 local_port; /* of a socket that listens */
	__u16 remote_port;
	__u8 is_listening;
	__u8 is_remote; /* connected to another host, or network namespace */
	__u8 padding[2];
	__u8 remote_address[ADDRESS_BYTES]; /* in network byte order */
};

/* What a thread waited for, in a system call about a file descriptor. */
struct resource {
	struct resource_identity identity;
	__u32 shared; /* id of what stands for it in the time account; its own, or one of many */
	__u32 pid;
	__u64 program_ktime_ns; /* of whose thread was the first to wait for it */
	__u64 inode;
	__u64 peer_inode;     /* of the other end of a local socket; 0: not known */
	__u64 retransmits;    /* of segments to this peer, since it was met */
	__u32 special_device; /* that a device file is for: major << 20 | minor */
	__u16 mode;	      /* file type and permissions */
	__u16 local_port;
	__u8 local_address[ADDRESS_BYTES];
	char file_system[FILE_SYSTEM_BYTES];
	char subtype[FILE_SYSTEM_BYTES]; /* of a FUSE file system: what it is */
	char path[PATH_BYTES]; /* or the address of a local socket; the end of a long one */
};

#endif
