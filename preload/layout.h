/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * THE layout of the memory that the door (calls.c) shares with the agent.
 *
 * The door is a library that a CUDA program preloads. It counts the program's calls in memory of
 * its own, a memfd named DOOR_NAME that is mapped whole and in one piece:
 *
 *     0                          struct door_header    written by the program
 *     DOOR_CONTROL_OFFSET        struct door_control   written by the agent, in place
 *     DOOR_COMMON_OFFSET         struct door_common    what found no room in a slot
 *     DOOR_SLOTS_OFFSET          struct door_slot[DOOR_SLOTS]
 *     DOOR_RHYTHMS_OFFSET        struct door_rhythm[DOOR_RHYTHMS]
 *
 * Nothing here is ever taken back: a slot that its thread has left keeps its counts, and the next
 * thread goes on counting on top of them. So the sum over all slots and the common part is
 * monotonic, and what the last reading sees is all. A series belongs to the process, not to a
 * thread. What was never written is a hole, and reads as zeros.
 *
 * Offsets and counts are of the version, and none is read from the memory: to the agent all of it
 * is a stranger's. The descriptor is closed once it is mapped: it is opened by way of
 * /proc/PID/map_files. The file is sealed in size, but not against the agent's writes.
 *
 * Never twice: the door publishes every call of CUDA that comes through it, and counts those that
 * the probe table says. A call that it counts was counted by it if the innermost published call
 * when a probe at the function is hit is of the same API; if not, it came another way, and the probe
 * counts it. The door's own file exports the same names, and must not get probes at them.
 *
 * Of Python's copy, names and clocks see bpf/events.h, whose types are used here.
 */
#ifndef OTEL_GPU_PRELOAD_LAYOUT_H
#define OTEL_GPU_PRELOAD_LAYOUT_H

#include "../bpf/events.h"

#define DOOR_NAME	    "otel_gpu_door"
#define DOOR_MAGIC	    8245931919627612263 /* "gpu_door" in memory */
#define DOOR_VERSION	    4			/* of all that is in this file */
#define DOOR_SLOTS	    1024 /* threads at one time; others use the common part */
#define DOOR_SLOT_SERIES    64	 /* of a slot */
#define DOOR_COMMON_SERIES  1024
#define DOOR_RHYTHMS	    16	 /* threads whose steps are looked for at one time */
#define DOOR_ROUNDS	    1024 /* the latest of a thread */
#define DOOR_CONTROL_OFFSET 4096
#define DOOR_COMMON_OFFSET  8192
#define DOOR_SLOTS_OFFSET   1646592
#define DOOR_SLOT_BYTES	    110592
#define DOOR_RHYTHMS_OFFSET 114892800
#define DOOR_RHYTHM_BYTES   544768
#define DOOR_BYTES	    123609088

/* What the door could not count or publish, in door_header.lost. */
enum door_loss {
	DOOR_LOST_SERIES_FULL = 0, /* calls that found no room in the common part either */
	DOOR_LOST_DEPTH_EXCEEDED =
		1,		   /* calls nested deeper than MAX_DEPTH: counted, not published */
	DOOR_LOST_NO_RETURN = 2,   /* calls that were left by longjmp or an exception */
	DOOR_LOST_SLOTS_FULL = 3,  /* threads without a slot: counted, not published */
	DOOR_LOST_COPIES_FULL = 4, /* functions of one more copy of a library: not wrapped */
	DOOR_LOST_BOUND_PAST =
		5, /* no calls, but loads of what probes have to count from then on */
	DOOR_LOST_RHYTHMS_FULL = 6, /* no calls, but threads whose steps are not looked for */
	DOOR_LOSSES = 8,
};

/* A function of the library that is there for the agent's probe, which has this as its cookie. */
enum door_probe {
	DOOR_PROBE_THREAD =
		0,	     /* otel_gpu_door_thread(): a thread, its slot and the memory, if any */
	DOOR_PROBE_CALL = 1, /* otel_gpu_door_call() */
	DOOR_PROBE_GAP = 2,  /* otel_gpu_door_gap() */
};

/* How the door tells the time, which is ktime whatever it is. */
enum door_clock {
	DOOR_CLOCK_SYSTEM = 0, /* clock_gettime(CLOCK_MONOTONIC) */
	DOOR_CLOCK_CYCLES = 1, /* the processor's counter, by the system's clock */
};

struct door_header {
	__u64 magic; /* last: all else is valid once it is there */
	__u64 size_bytes;
	__u64 start_ktime_ns; /* of this memory: of the process image, or after its fork */
	__u32 version;	      /* of the layout */
	__u32 pid;	      /* in the process's own pid namespace */
	__u32 slots_begun;    /* slots from this one on were never used */
	__u32 common_begun;   /* series of the common part from this one on were never used */
	__u32 clock;	      /* enum door_clock */
	__u32 padding;
	__u64 lost[DOOR_LOSSES]; /* by enum door_loss, monotonic */
};

enum door_control_flag {
	DOOR_FULL = 1,	      /* every call is shown */
	DOOR_NO_CALLS = 2,    /* none is: counts only */
	DOOR_STREAM_WORK = 4, /* calls that say that work on a stream is done, though NO_CALLS */
	DOOR_STEPS = 8,	      /* threads keep calls and follow rhythms: see struct door_rhythm */
};

/*
 * What the agent wants to be shown. It writes all that is here, then the generation: another number
 * for each agent, and once its probes are there. While no agent is there the generation is 0, and
 * nothing is shown. A thread calls otel_gpu_door_thread() at its first call, and again when its slot
 * has another generation, so that a new agent gets to know it.
 */
struct door_control {
	__u32 generation;
	__u32 flags;		 /* enum door_control_flag */
	__u64 gap_floor_ns;	 /* shown from this on; 0: none is */
	__u64 call_floor_ns;	 /* any call is shown from this on: it may have stalled; 0: none */
	__u32 sample_one_in;	 /* outermost calls; 0: none */
	__u32 version;		 /* of the layout that the agent knows */
	__u64 slow_ns[MAX_APIS]; /* a call of the API is slow from this on; 0: call_floor_ns */
};

/* The key of a series: struct aggregate_key without what is the same in all of a process. */
struct door_key {
	__s32 status;
	__s32 device;
	__u16 metric; /* METRIC_CALL_DURATION, METRIC_LAUNCH_GAP, METRIC_COPY_SIZE; 0: no series */
	__u16 api;
	__u8 copy_kind;
	__u8 nested;
	__u8 padding[2];
};

/* The metric is written last when a series begins, and the key never changes after that. */
struct door_series {
	struct door_key key;
	struct aggregate aggregate;
	__u8 padding[16];
};

struct door_common {
	struct door_series series[DOOR_COMMON_SERIES]; /* of several threads: atomic */
};

/* Published for the scheduler's probes: valid while depth is above its index. */
struct door_open_call {
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
struct door_place {
	__u64 call_ns;
	__u64 gap_ns; /* between the return of such a call and the next outermost one */
};

/*
 * A thread's own. Written by nobody else, so without atomic operations; each word is written at
 * once. A call is written before the depth that uncovers it. An outermost call is over once the last
 * return is later than its start; its depth says so only when all of it was counted and shown.
 */
struct door_slot {
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
	struct door_open_call calls[MAX_DEPTH];
	struct door_place places[MAX_APIS]; /* by api; goes on from thread to thread */
	__u8 padding[3856];
	struct door_series series[DOOR_SLOT_SERIES];
};

/* A step of a thread whose rhythm is known; as struct round_record. */
struct door_round {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
};

/*
 * Of a thread whose steps are looked for. The thread takes one, and the agent gives it back, in the way
 * of struct rhythm, which says who writes what; here the pid and tid are as in the process's own pid
 * namespace, the area is 1 or 0, and the last return is always there. A round is written before it
 * is counted.
 */
struct door_rhythm {
	struct rhythm rhythm;
	__u64 rounds_made;
	__u8 padding[3896];
	struct door_round rounds[DOOR_ROUNDS];
	struct rhythm_call calls[RHYTHM_CALLS];
};

/* A call that is shown, by its address, to a probe at otel_gpu_door_call(). */
struct door_call {
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

/* A gap that is shown to a probe at otel_gpu_door_gap(). */
struct door_gap {
	__u64 start_ktime_ns;
	__u64 end_ktime_ns;
	__s32 device;
	__u16 previous_api;
	__u16 next_api;
};

_Static_assert(sizeof(struct door_header) <= DOOR_CONTROL_OFFSET, "a page of its own");
_Static_assert(sizeof(struct door_control) <= DOOR_COMMON_OFFSET - DOOR_CONTROL_OFFSET,
	       "a page of its own");
_Static_assert(DOOR_COMMON_OFFSET + sizeof(struct door_common) == DOOR_SLOTS_OFFSET, "no gap");
_Static_assert(sizeof(struct door_slot) == DOOR_SLOT_BYTES && !(DOOR_SLOT_BYTES % 4096), "pages");
_Static_assert(DOOR_SLOTS_OFFSET + DOOR_SLOTS * DOOR_SLOT_BYTES == DOOR_RHYTHMS_OFFSET, "no gap");
_Static_assert(sizeof(struct door_rhythm) == DOOR_RHYTHM_BYTES && !(DOOR_RHYTHM_BYTES % 4096),
	       "pages");
_Static_assert(DOOR_RHYTHMS_OFFSET + DOOR_RHYTHMS * DOOR_RHYTHM_BYTES == DOOR_BYTES, "all");

#endif
