/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which calls are in the period of a thread, and when an iteration of it is over: see struct step_detector.
 *
 * The kernel side does this with calls that have probes, and preload/step_detection.h with those that come
 * in the preload library. otel_gpu/capture/steps/period.py does the same with calls that were kept.
 */
#ifndef OTEL_GPU_BPF_STEP_DETECTION_H
#define OTEL_GPU_BPF_STEP_DETECTION_H

#include "events.h"

#define DETECTOR_AGAIN_CALLS 4096 /* before a thread without a detector asks for one again */
#define SYMBOL_BITS	     16
#define IN_DETECTOR                                                                                \
	(1U << FAMILY_LAUNCH | 1U << FAMILY_GRAPH_LAUNCH | 1U << FAMILY_COPY |                     \
	 1U << FAMILY_MEMSET | 1U << FAMILY_SYNCHRONIZE | 1U << FAMILY_COLLECTIVE)

/* What programs do as often as they like, such as asking, is in no period. */
static inline __attribute__((always_inline)) _Bool counts_in_steps(__u8 family)
{
	return family < 32 && IN_DETECTOR >> family & 1;
}

/* Never 0. Launches are distinguished by their kernel, copies by their direction and rough size. */
static inline __attribute__((always_inline)) __u16 symbol_of(__u8 family, __u8 api, __u8 copy_kind,
							     __u64 function, __u64 size_bytes)
{
	__u64 what = 0;
	__u16 symbol;

	if (family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH)
		what = function;
	else if (family == FAMILY_COPY || family == FAMILY_MEMSET)
		what = (size_bytes > 1 << 4) + (size_bytes > 1 << 8) + (size_bytes > 1 << 12) +
		       (size_bytes > 1 << 16) + (size_bytes > 1 << 20) + (size_bytes > 1 << 24);
	what = what << 16 | (__u64)copy_kind << 8 | api;
	symbol = (what * 0x9e3779b97f4a7c15ULL) >> 48;
	return symbol ? symbol : 1;
}

static inline __attribute__((always_inline)) void
describe_call(struct detector_call *kept, __u8 api, __u8 copy_kind, __u16 symbol, __u64 gap_ns)
{
	kept->gap_ns = gap_ns > 0xffffffff ? 0xffffffff : gap_ns;
	kept->symbol = symbol;
	kept->api = api;
	kept->copy_kind = copy_kind;
}

static inline __attribute__((always_inline)) _Bool is_among(const __u64 *patterns, __u64 history)
{
	return history == patterns[0] || history == patterns[1] || history == patterns[2] ||
	       history == patterns[3];
}

/* Whether this is the same call as the one before. Until it is another one, an iteration is not over. */
static inline __attribute__((always_inline)) _Bool
is_same_again(const struct step_detector *detector, __u32 symbol)
{
	return detector->folds && detector->before == symbol;
}

/* The next call, after the result of is_over was reported: the call before returned then. */
static inline __attribute__((always_inline)) void
advance_detector(struct step_detector *detector, __u32 symbol, __u64 returned_ktime_ns)
{
	__u32 calls = detector->start_calls;
	__u64 history;

	detector->before = symbol;
	if (detector->is_over)
		detector->start_ktime_ns = 0;
	history = detector->history << SYMBOL_BITS | symbol;
	detector->history = history;
	detector->returns_ktime_ns[detector->distinct % DETECTOR_HISTORY] = returned_ktime_ns;
	detector->distinct++;
	if (is_among(detector->starts, history & detector->start_mask))
		detector->start_ktime_ns =
			detector->returns_ktime_ns[(detector->distinct - calls) % DETECTOR_HISTORY];
	detector->is_over =
		detector->start_ktime_ns && is_among(detector->ends, history & detector->end_mask);
}

#endif
