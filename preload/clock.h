/* SPDX-License-Identifier: Apache-2.0 */
/* What time it is: ktime, at half the price. */
#ifndef OTEL_GPU_PRELOAD_CLOCK_H
#define OTEL_GPU_PRELOAD_CLOCK_H

#include "compiler.h"
#include "layout.h"

#define RATE_SHIFT 32

struct anchor {
	__u64 cycles;
	__u64 ktime_ns;
};

/* Of the process. */
struct rate {
	__u64 ns_per_cycle; /* << RATE_SHIFT; 0: not known */
	__u64 base_ns;	    /* over which it was seen */
	__u32 is_usable;    /* the counter is what the system's clock is made of */
	__u32 is_changing;
	struct anchor base;
};

/* Of a thread. */
struct own_clock {
	struct anchor anchor;
	__u64 span_cycles; /* that many after the anchor the system is asked again */
	__u64 ns_per_cycle;
	__u64 last_ktime_ns;
};

extern HIDDEN struct rate preload_rate;

static inline __u64 cycles_now(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
	__u64 cycles;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(cycles));
	return cycles;
#else
	return 0;
#endif
}

/* Of the process: before the first call is counted. */
HIDDEN void preload_begin_clock(void);
/* Asks the system, and goes on from there. */
HIDDEN __u64 preload_anchor_clock(struct own_clock *own);

/* Never before what it last was. */
static inline __u64 ktime_ns(struct own_clock *own)
{
	volatile struct anchor *anchor = &own->anchor;
	__u64 from_cycles, past, now_ktime_ns;

	/* Again, if a signal's handler has asked in between. */
	do {
		from_cycles = anchor->cycles;
		past = cycles_now() - from_cycles;
		if (unlikely(past >= own->span_cycles))
			now_ktime_ns = preload_anchor_clock(own);
		else
			now_ktime_ns =
				anchor->ktime_ns +
				(__u64)((unsigned __int128)past * own->ns_per_cycle >> RATE_SHIFT);
	} while (unlikely(past < own->span_cycles && anchor->cycles != from_cycles));
	if (now_ktime_ns < own->last_ktime_ns)
		now_ktime_ns = own->last_ktime_ns;
	own->last_ktime_ns = now_ktime_ns;
	return now_ktime_ns;
}

#endif
