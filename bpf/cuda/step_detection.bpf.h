/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Steps of programs that do not report them: see struct step_detector. */
#ifndef OTEL_GPU_BPF_CUDA_STEP_DETECTION_H
#define OTEL_GPU_BPF_CUDA_STEP_DETECTION_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "cuda/iterations.bpf.h"
#include "events.h"
#include "step_detection.h"

#define NO_DETECTOR 0xffffffff

/* Returns whether the detector of that number was free, and is the thread's now. */
__weak __noinline int take_detector(struct thread *thread, __u32 index)
{
	struct step_detector *detector = bpf_map_lookup_elem(&step_detectors, &index);

	if (!thread || !detector || detector->tid ||
	    __sync_val_compare_and_swap(&detector->tid, 0, thread->tid))
		return false;
	detector->pid = thread->pid;
	detector->program_ktime_ns = thread->program_ktime_ns;
	return true;
}

static __noinline int claim_detector(struct thread *thread)
{
	if (thread->until_detector) {
		thread->until_detector--;
		return 0;
	}
	thread->until_detector = DETECTOR_AGAIN_CALLS;
	for (__u32 i = 0; i < MAX_STEP_DETECTORS; i++) {
		if (!take_detector(thread, i))
			continue;
		thread->detector = i + 1;
		return 0;
	}
	if (!thread->detector)
		count(COUNTER_STEP_THREADS_RATE_LIMITED);
	thread->detector = NO_DETECTOR;
	return 0;
}

/* The next call of a thread whose rounds are reported. */
static __noinline int follow_detector(struct step_detector *detector, __u32 index, __u32 symbol,
				      __u64 returned_ktime_ns)
{
	if (is_same_again(detector, symbol))
		return 0;
	if (detector->is_over)
		send_iteration(detector, index, returned_ktime_ns);
	advance_detector(detector, symbol, returned_ktime_ns);
	return 0;
}

static __always_inline void keep(struct step_detector *detector, const struct open_call *call,
				 __u16 symbol, __u64 gap_ns)
{
	__u32 at = (detector->area - 1) * DETECTOR_CALLS + detector->kept;
	struct detector_call *kept;

	if (!detector->area || detector->kept >= DETECTOR_CALLS)
		return;
	kept = bpf_map_lookup_elem(&detector_calls, &at);
	if (!kept)
		return;
	kept->start_ktime_ns = call->start_ktime_ns;
	describe_call(kept, call->api, call->copy_kind, symbol, gap_ns);
	/* Last: a reader that sees the count also sees the call. */
	*(volatile __u32 *)&detector->kept = detector->kept + 1;
}

/* An outermost call begins. */
static __noinline int note_step_call(struct thread *thread, const struct open_call *call)
{
	__u32 api = call->api;
	__u8 family = settings.apis[api < MAX_APIS ? api : 0].family;
	__u64 returned_ktime_ns = thread->step_return_ktime_ns;
	struct step_detector *detector;
	__u16 symbol;

	if (!counts_in_steps(family))
		return 0;
	if (!thread->detector || thread->detector == NO_DETECTOR)
		claim_detector(thread);
	detector = detector_of(thread);
	if (!detector)
		return 0;
	thread->counts_in_step = 1;
	if (!returned_ktime_ns)
		returned_ktime_ns = call->start_ktime_ns;
	symbol = symbol_of(family, api, call->copy_kind, call->function, call->size_bytes);
	detector->made++;
	keep(detector, call, symbol, call->start_ktime_ns - returned_ktime_ns);
	if (detector->start_mask)
		follow_detector(detector, thread->detector - 1, symbol, returned_ktime_ns);
	return 0;
}

#endif
