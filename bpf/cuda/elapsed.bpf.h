/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Device time that the program measures itself: from one of its events to another one. The call
 * stores milliseconds as a float, and BPF has no such numbers.
 */
#ifndef OTEL_GPU_BPF_CUDA_ELAPSED_H
#define OTEL_GPU_BPF_CUDA_ELAPSED_H

#include "core/aggregate.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

#define NS_PER_MS	    1000000ull
#define FLOAT_FRACTION_BITS 23
#define FLOAT_EXPONENT	    0xffu
#define FLOAT_SIGN	    (1u << 31)
/* Of a float whose fraction, with the bit that is not stored, is a whole number. */
#define FLOAT_WHOLE_EXPONENT 150
#define MAX_EXPONENT	     166 /* 36 years */
#define MAX_ELAPSED_SUM_NS   (1ull << 62)

/* Rounded to the nearest nanosecond; false if it is not a duration. */
static __always_inline bool read_milliseconds(__u32 bits, __u64 *time_ns)
{
	__u32 exponent = (bits >> FLOAT_FRACTION_BITS) & FLOAT_EXPONENT;
	__u64 fraction = (bits & ((1u << FLOAT_FRACTION_BITS) - 1)) | (1u << FLOAT_FRACTION_BITS);
	__u32 shift = FLOAT_WHOLE_EXPONENT - exponent;

	*time_ns = 0;
	if (!(bits & ~FLOAT_SIGN))
		return true;
	if (bits & FLOAT_SIGN || exponent > MAX_EXPONENT)
		return false;
	if (exponent >= FLOAT_WHOLE_EXPONENT)
		*time_ns = (fraction * NS_PER_MS) << ((exponent - FLOAT_WHOLE_EXPONENT) & 31);
	else if (shift < 64)
		*time_ns = (((fraction * NS_PER_MS) >> ((shift - 1) & 63)) + 1) >> 1;
	return true;
}

/* At the return of a call that succeeded; the address is where it put the time. */
static __noinline int note_elapsed_time(struct thread *thread, struct open_call *call)
{
	struct aggregate_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		.device = call->device,
		.metric = METRIC_ELAPSED_TIME,
		.copy_kind = COPY_NONE,
	};
	__u64 address = call->address, time_ns;
	struct aggregate *aggregate;
	__u32 bits = 0;

	call->address = 0; /* is of memory */
	/* The runtime asks the driver: that is one time, and not two. */
	if (thread->depth != 1)
		return 0;
	if (bpf_probe_read_user(&bits, sizeof(bits), (void *)address)) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	aggregate = find_aggregate(&key);
	if (!aggregate)
		return 0;
	/* A program can pass any value: the sum stays a number. */
	if (read_milliseconds(bits, &time_ns) && aggregate->sum < MAX_ELAPSED_SUM_NS)
		add_duration(&key, time_ns, 0);
	else
		count(COUNTER_LOST_ELAPSED_TIME);
	return 0;
}

#endif
