/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Steps of programs that do not tell them: see struct rhythm.
 *
 * otel_gpu/capture/rhythm.py does the same with calls that were kept.
 */
#ifndef OTEL_GPU_RHYTHM_BPF_H
#define OTEL_GPU_RHYTHM_BPF_H

#include "rounds.bpf.h"

#define NO_RHYTHM	   0xffffffff
#define RHYTHM_AGAIN_CALLS 4096
#define SYMBOL_BITS	   16

/* What programs do as often as they like, such as asking, is in no rhythm. */
static __always_inline bool counts_in_rhythm(__u8 family)
{
	return family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH || family == FAMILY_COPY ||
	       family == FAMILY_MEMSET || family == FAMILY_SYNCHRONIZE ||
	       family == FAMILY_COLLECTIVE;
}

/* Never 0. Launches are told apart by their kernel, copies by their direction and rough size. */
static __always_inline __u16 symbol_of(const struct open_call *call, __u8 family)
{
	__u64 what = 0;
	__u16 symbol;

	if (family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH)
		what = call->function;
	else if (family == FAMILY_COPY || family == FAMILY_MEMSET)
		what = (call->size_bytes > 1 << 4) + (call->size_bytes > 1 << 8) +
		       (call->size_bytes > 1 << 12) + (call->size_bytes > 1 << 16) +
		       (call->size_bytes > 1 << 20) + (call->size_bytes > 1 << 24);
	what = what << 16 | (__u64)call->copy_kind << 8 | (__u8)call->api;
	symbol = (what * 0x9e3779b97f4a7c15ULL) >> 48;
	return symbol ? symbol : 1;
}

static __noinline int claim_rhythm(struct thread *thread)
{
	if (thread->until_rhythm) {
		thread->until_rhythm--;
		return 0;
	}
	thread->until_rhythm = RHYTHM_AGAIN_CALLS;
	for (__u32 i = 0; i < MAX_RHYTHMS; i++) {
		__u32 index = i;
		struct rhythm *rhythm = bpf_map_lookup_elem(&rhythms, &index);

		if (!rhythm || rhythm->tid ||
		    __sync_val_compare_and_swap(&rhythm->tid, 0, thread->tid))
			continue;
		rhythm->pid = thread->pid;
		rhythm->image_ktime_ns = thread->image_ktime_ns;
		thread->rhythm = i + 1;
		return 0;
	}
	if (!thread->rhythm)
		count(COUNTER_RHYTHMS_WITHHELD);
	thread->rhythm = NO_RHYTHM;
	return 0;
}

static __always_inline void keep_call(struct rhythm *rhythm, const struct open_call *call,
				      __u16 symbol, __u64 gap_ns)
{
	__u32 at = (rhythm->area - 1) * RHYTHM_CALLS + rhythm->kept;
	struct rhythm_call *kept;

	if (!rhythm->area || rhythm->kept >= RHYTHM_CALLS)
		return;
	kept = bpf_map_lookup_elem(&rhythm_calls, &at);
	if (!kept)
		return;
	kept->start_ktime_ns = call->start_ktime_ns;
	kept->gap_ns = gap_ns > 0xffffffff ? 0xffffffff : gap_ns;
	kept->symbol = symbol;
	kept->api = call->api;
	kept->copy_kind = call->copy_kind;
	/* Last: whoever sees that it is kept sees what. */
	*(volatile __u32 *)&rhythm->kept = rhythm->kept + 1;
}

static __always_inline __u32 longer_word(__u32 word, __u16 symbol)
{
	return (word ^ symbol) * 0x01000193;
}

static __always_inline bool is_among(const __u64 *patterns, __u64 history)
{
	return history == patterns[0] || history == patterns[1] || history == patterns[2] ||
	       history == patterns[3];
}

/* The next call of a thread whose rounds are reported. */
static __noinline int follow_rhythm(struct rhythm *rhythm, __u32 index, __u32 symbol,
				    __u64 returned_ktime_ns)
{
	__u32 calls = rhythm->start_calls;
	__u64 history;

	if (rhythm->folds && rhythm->before == symbol)
		return 0;
	rhythm->before = symbol;
	if (rhythm->is_over) {
		send_round(rhythm, index, returned_ktime_ns);
		rhythm->is_over = 0;
		rhythm->start_ktime_ns = 0;
	}
	history = rhythm->history << SYMBOL_BITS | symbol;
	rhythm->history = history;
	rhythm->returns_ktime_ns[rhythm->distinct % RHYTHM_HISTORY] = returned_ktime_ns;
	rhythm->distinct++;
	rhythm->word = longer_word(rhythm->word, symbol);
	if (is_among(rhythm->starts, history & rhythm->start_mask)) {
		rhythm->start_ktime_ns =
			rhythm->returns_ktime_ns[(rhythm->distinct - calls) % RHYTHM_HISTORY];
		rhythm->word = 0;
		for (int back = RHYTHM_HISTORY - 1; back >= 0; back--) {
			if ((__u32)back < calls)
				rhythm->word =
					longer_word(rhythm->word, history >> SYMBOL_BITS * back);
		}
	}
	rhythm->is_over =
		rhythm->start_ktime_ns && is_among(rhythm->ends, history & rhythm->end_mask);
	return 0;
}

/* An outermost call begins. */
static __noinline int note_rhythm(struct thread *thread, const struct open_call *call)
{
	__u32 api = call->api;
	__u8 family = settings.apis[api < MAX_APIS ? api : 0].family;
	__u64 returned_ktime_ns = thread->rhythm_return_ktime_ns;
	struct rhythm *rhythm;
	__u16 symbol;

	if (!counts_in_rhythm(family))
		return 0;
	if (!thread->rhythm || thread->rhythm == NO_RHYTHM)
		claim_rhythm(thread);
	rhythm = rhythm_of(thread);
	if (!rhythm)
		return 0;
	thread->in_rhythm = 1;
	if (!returned_ktime_ns)
		returned_ktime_ns = call->start_ktime_ns;
	symbol = symbol_of(call, family);
	rhythm->made++;
	keep_call(rhythm, call, symbol, call->start_ktime_ns - returned_ktime_ns);
	if (rhythm->start_mask)
		follow_rhythm(rhythm, thread->rhythm - 1, symbol, returned_ktime_ns);
	return 0;
}

#endif
