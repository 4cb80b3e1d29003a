/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * THE layout of the memory that the preload library (calls.c) shares with the agent.
 *
 * A CUDA program preloads it. It counts the program's calls in memory of its own, a memfd named
 * PRELOAD_NAME that is mapped whole:
 *
 *     0                         struct preload_header    written by the program
 *     PRELOAD_CONTROL_OFFSET    struct preload_control   written by the agent, in place
 *     PRELOAD_COMMON_OFFSET     struct preload_common    series that did not fit in a slot
 *     PRELOAD_SLOTS_OFFSET      struct preload_slot[PRELOAD_SLOTS]
 *     PRELOAD_DETECTORS_OFFSET    struct preload_detector[PRELOAD_DETECTORS]
 *
 * Nothing here is ever taken back: a slot that its thread has left keeps its counts, and the next
 * thread goes on counting on top of them. So the sum over all slots and the common part is
 * monotonic, and what the last reading sees is all. A series belongs to the process, not to a
 * thread. What was never written is a hole, and reads as zeros.
 *
 * Offsets and counts are of the version, and none is read from the memory: to the agent all of it
 * is untrusted input. The descriptor is closed once it is mapped: it is opened by way of
 * /proc/PID/map_files. The file is sealed in size, but not against the agent's writes.
 *
 * No call is counted twice. The preload library publishes every call of CUDA that it sees, and
 * counts those that the probe table lists. When a probe at such a function is hit and the innermost
 * published call is of the same API, the library has counted the call. Otherwise the call bypassed
 * the library, and the probe counts it. The library's own file exports the same names, and must not
 * get probes at them.
 *
 * Of Python's copy, names and clocks see bpf/events.h, whose types are used here.
 */
#ifndef OTEL_GPU_PRELOAD_LAYOUT_H
#define OTEL_GPU_PRELOAD_LAYOUT_H

#include "../bpf/events.h"

#define PRELOAD_NAME		 "otel_gpu_preload"
#define PRELOAD_MAGIC		 8317141777382731879 /* "gpucalls" in memory */
#define PRELOAD_VERSION		 4		     /* of all that is in this file */
#define PRELOAD_SLOTS		 1024 /* threads at one time; others use the common part */
#define PRELOAD_SLOT_SERIES	 64   /* of a slot */
#define PRELOAD_COMMON_SERIES	 1024
#define PRELOAD_DETECTORS	 16   /* threads whose steps are looked for at one time */
#define PRELOAD_ITERATIONS	 1024 /* the latest of a thread */
#define PRELOAD_CONTROL_OFFSET	 4096
#define PRELOAD_COMMON_OFFSET	 8192
#define PRELOAD_SLOTS_OFFSET	 1646592
#define PRELOAD_SLOT_BYTES	 110592
#define PRELOAD_DETECTORS_OFFSET 114892800
#define PRELOAD_DETECTOR_BYTES	 544768
#define PRELOAD_BYTES		 123609088

/* What the preload library could not count or publish, in preload_header.lost. */
enum preload_loss {
	PRELOAD_LOST_SERIES_FULL = 0, /* calls whose series did not fit in the common part either */
	PRELOAD_LOST_DEPTH_EXCEEDED =
		1,		    /* calls nested deeper than MAX_DEPTH: counted, not published */
	PRELOAD_LOST_NO_RETURN = 2, /* calls that were left by longjmp or an exception */
	PRELOAD_LOST_SLOTS_FULL = 3,  /* threads without a slot: counted, not published */
	PRELOAD_LOST_COPIES_FULL = 4, /* functions of one more copy of a library: not wrapped */
	PRELOAD_LOST_BOUND_PAST =
		5, /* no calls, but loads of what probes have to count from then on */
	PRELOAD_LOST_DETECTORS_FULL = 6, /* no calls, but threads whose steps are not looked for */
	PRELOAD_LOSSES = 8,
};

/* A function of the library that is there for the agent's probe, which has this as its cookie. */
enum preload_probe {
	PRELOAD_PROBE_THREAD =
		0, /* otel_gpu_preload_thread(): a thread, its slot and the memory, if any */
	PRELOAD_PROBE_CALL = 1, /* otel_gpu_preload_call() */
	PRELOAD_PROBE_GAP = 2,	/* otel_gpu_preload_gap() */
};

/* The clock of the preload library; times are ktime in any case. */
enum preload_clock {
	PRELOAD_CLOCK_SYSTEM = 0, /* clock_gettime(CLOCK_MONOTONIC) */
	PRELOAD_CLOCK_CYCLES = 1, /* the processor's counter, by the system's clock */
};

struct preload_header {
	__u64 magic; /* last: all else is valid once it is there */
	__u64 size_bytes;
	__u64 start_ktime_ns; /* of this memory: of the program, or after its fork */
	__u32 version;	      /* of the layout */
	__u32 pid;	      /* in the process's own pid namespace */
	__u32 slots_begun;    /* slots from this one on were never used */
	__u32 common_begun;   /* series of the common part from this one on were never used */
	__u32 clock;	      /* enum preload_clock */
	__u32 padding;
	__u64 lost[PRELOAD_LOSSES]; /* by enum preload_loss, monotonic */
};

enum preload_control_flag {
	PRELOAD_FULL = 1,     /* report every call */
	PRELOAD_NO_CALLS = 2, /* report none: counts only */
	PRELOAD_STREAM_WORK =
		4, /* report calls that show that work on a stream is done, also with NO_CALLS */
	PRELOAD_STEPS = 8, /* threads keep calls and follow periods: see struct preload_detector */
};

/*
 * Settings: which calls to report to the agent. It writes all fields, then the generation, once its
 * probes are attached: another number for each agent. Without an agent the generation is 0, and no
 * call is reported. A thread calls otel_gpu_preload_thread() at its first call, and again when its
 * slot has another generation, so that a new agent gets to know it.
 */
struct preload_control {
	__u32 generation;
	__u32 flags;		 /* enum preload_control_flag */
	__u64 gap_floor_ns;	 /* report gaps from this on; 0: none */
	__u64 call_floor_ns;	 /* report any call from this on: it may have stalled; 0: none */
	__u32 sample_one_in;	 /* outermost calls; 0: none */
	__u32 version;		 /* of the layout that the agent knows */
	__u64 slow_ns[MAX_APIS]; /* a call of the API is slow from this on; 0: call_floor_ns */
};

/* The key of a series: struct aggregate_key without what is the same in all of a process. */
struct preload_key {
	__s32 status;
	__s32 device;
	__u16 metric; /* METRIC_CALL_DURATION, METRIC_LAUNCH_GAP, METRIC_COPY_SIZE; 0: no series */
	__u16 api;
	__u8 copy_kind;
	__u8 nested;
	__u8 padding[2];
};

/* The metric is written last when a series begins, and the key never changes after that. */
struct preload_series {
	struct preload_key key;
	struct aggregate aggregate;
	__u8 padding[16];
};

struct preload_common {
	struct preload_series series[PRELOAD_COMMON_SERIES]; /* of several threads: atomic */
};

/* Published for the scheduler's probes: valid while depth is above its index. */
struct preload_open_call {
	__u64 start_ktime_ns;
	__u64 stack_pointer; /* of the caller: larger than those of calls inside */
	__u16 api;
	__u16 variant;
	__s32 device;
};

/*
 * Where the time of a thread went, by the clock: in outermost calls of an API, and in the gaps after
 * them. With what is not over yet, it is all of the thread's time since its first call.
 */
struct preload_place {
	__u64 call_ns;
	__u64 gap_ns; /* between the return of such a call and the next outermost one */
};

/*
 * A thread's own. Only the thread writes it, so without atomic operations; each word is written at
 * once. A call is written before the depth that uncovers it. An outermost call is over once the last
 * return is later than its start; its depth shows that only when all of it was counted and reported.
 */
struct preload_slot {
	__u32 tid;	  /* in the process's own pid namespace; 0: no thread has it now */
	__u32 generation; /* of the agent that it was introduced to */
	__u32 depth;	  /* open calls that are published */
	__s32 device;	  /* current one; -1: not known */
	__u64 last_return_ktime_ns; /* of the thread's last outermost call; 0: none yet */
	__u64 begun_ktime_ns;	    /* of the thread's first call */
	__u32 series_begun;	    /* series from this one on were never used */
	__u32 until_sample;	    /* outermost calls before a sampled one; in that: one_in - 1 */
	__u32 last_api;		    /* of the last outermost call */
	__u32 threads;		    /* that have had it */
	struct preload_open_call calls[MAX_DEPTH];
	struct preload_place places[MAX_APIS]; /* by api; goes on from thread to thread */
	__u8 padding[3856];
	struct preload_series series[PRELOAD_SLOT_SERIES];
};

/* A step of a thread whose period is known; as struct iteration_record. */
struct preload_iteration {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
};

/*
 * Of a thread whose steps are looked for. The thread takes one, and the agent frees it, in the way
 * of struct step_detector, which has the writer of each field; here the pid and tid are as in the process's own pid
 * namespace, the area is 1 or 0, and the last return is always there. An iteration is written before it
 * is counted.
 */
struct preload_detector {
	struct step_detector detector;
	__u64 iterations_made;
	__u8 padding[3896];
	struct preload_iteration iterations[PRELOAD_ITERATIONS];
	struct detector_call calls[DETECTOR_CALLS];
};

/* A call that is reported, by its address, to a probe at otel_gpu_preload_call(). */
struct preload_call {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
	__u64 parent_start_ktime_ns; /* 0: outermost */
	__u64 root_start_ktime_ns;
	__u64 size_bytes;
	__u64 address;
	__u64 stream;
	__u64 function;
	__s32 status;
	__s32 device;
	__u32 weight; /* calls that a sampled one stands for; else 1 */
	__u32 grid[3];
	__u32 block[3];
	__u32 depth; /* calls around it */
	__u16 api;
	__u16 variant;
	__u8 copy_kind;
	__u8 choices; /* enum choice; CHOICE_SLOW also where it may only have stalled */
	__u8 padding[2];
};

/* A gap that is reported to a probe at otel_gpu_preload_gap(). */
struct preload_gap {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
	__s32 device;
	__u16 previous_api;
	__u16 next_api;
};

_Static_assert(sizeof(struct preload_header) <= PRELOAD_CONTROL_OFFSET, "a page of its own");
_Static_assert(sizeof(struct preload_control) <= PRELOAD_COMMON_OFFSET - PRELOAD_CONTROL_OFFSET,
	       "a page of its own");
_Static_assert(PRELOAD_COMMON_OFFSET + sizeof(struct preload_common) == PRELOAD_SLOTS_OFFSET,
	       "no gap");
_Static_assert(sizeof(struct preload_slot) == PRELOAD_SLOT_BYTES && !(PRELOAD_SLOT_BYTES % 4096),
	       "pages");
_Static_assert(PRELOAD_SLOTS_OFFSET + PRELOAD_SLOTS * PRELOAD_SLOT_BYTES ==
		       PRELOAD_DETECTORS_OFFSET,
	       "no gap");
_Static_assert(sizeof(struct preload_detector) == PRELOAD_DETECTOR_BYTES &&
		       !(PRELOAD_DETECTOR_BYTES % 4096),
	       "pages");
_Static_assert(PRELOAD_DETECTORS_OFFSET + PRELOAD_DETECTORS * PRELOAD_DETECTOR_BYTES ==
		       PRELOAD_BYTES,
	       "all");

#endif
