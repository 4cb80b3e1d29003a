/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Steps of programs that do not tell them: see struct rhythm. */
#ifndef OTEL_GPU_BPF_CUDA_STEP_DETECTION_H
#define OTEL_GPU_BPF_CUDA_STEP_DETECTION_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "cuda/iterations.bpf.h"
#include "events.h"
#include "step_detection.h"

#define NO_RHYTHM 0xffffffff

/* Returns whether the rhythm of that number was nobody's, and is the thread's now. */
__weak __noinline int take_rhythm(struct thread *thread, __u32 index)
{
	struct rhythm *rhythm = bpf_map_lookup_elem(&rhythms, &index);

	if (!thread || !rhythm || rhythm->tid ||
	    __sync_val_compare_and_swap(&rhythm->tid, 0, thread->tid))
		return false;
	rhythm->pid = thread->pid;
	rhythm->program_ktime_ns = thread->program_ktime_ns;
	return true;
}

static __noinline int claim_rhythm(struct thread *thread)
{
	if (thread->until_rhythm) {
		thread->until_rhythm--;
		return 0;
	}
	thread->until_rhythm = RHYTHM_AGAIN_CALLS;
	for (__u32 i = 0; i < MAX_RHYTHMS; i++) {
		if (!take_rhythm(thread, i))
			continue;
		thread->rhythm = i + 1;
		return 0;
	}
	if (!thread->rhythm)
		count(COUNTER_RHYTHMS_WITHHELD);
	thread->rhythm = NO_RHYTHM;
	return 0;
}

/* The next call of a thread whose rounds are reported. */
static __noinline int follow_rhythm(struct rhythm *rhythm, __u32 index, __u32 symbol,
				    __u64 returned_ktime_ns)
{
	if (is_same_again(rhythm, symbol))
		return 0;
	if (rhythm->is_over)
		send_round(rhythm, index, returned_ktime_ns);
	take_turn(rhythm, symbol, returned_ktime_ns);
	return 0;
}

static __always_inline void keep(struct rhythm *rhythm, const struct open_call *call, __u16 symbol,
				 __u64 gap_ns)
{
	__u32 at = (rhythm->area - 1) * RHYTHM_CALLS + rhythm->kept;
	struct rhythm_call *kept;

	if (!rhythm->area || rhythm->kept >= RHYTHM_CALLS)
		return;
	kept = bpf_map_lookup_elem(&rhythm_calls, &at);
	if (!kept)
		return;
	kept->start_ktime_ns = call->start_ktime_ns;
	describe_call(kept, call->api, call->copy_kind, symbol, gap_ns);
	/* Last: whoever sees that it is kept sees what. */
	*(volatile __u32 *)&rhythm->kept = rhythm->kept + 1;
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
	symbol = symbol_of(family, api, call->copy_kind, call->function, call->size_bytes);
	rhythm->made++;
	keep(rhythm, call, symbol, call->start_ktime_ns - returned_ktime_ns);
	if (rhythm->start_mask)
		follow_rhythm(rhythm, thread->rhythm - 1, symbol, returned_ktime_ns);
	return 0;
}

#endif
