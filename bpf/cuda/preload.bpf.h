/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The calls of a thread that counts them itself, as the scheduler's probes need them.
 *
 * No probe reports when such a call begins or ends. What is open is published in the thread's own
 * memory, so it is read whenever it matters: when the thread leaves the CPU, before a call that
 * has probes, and when a call or gap is reported. A call that was not seen before has had no time off
 * the CPU yet. So the totals of the thread are those of its entry. An outermost call is over once it
 * is the thread's last return, and stays published until all of it was reported.
 *
 * What is published is anything that the process likes. It changes the figures of that process.
 */
#ifndef OTEL_GPU_BPF_CUDA_PRELOAD_H
#define OTEL_GPU_BPF_CUDA_PRELOAD_H

#include "../preload/layout.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/preload_view.bpf.h"
#include "events.h"
#include "sched/intervals.bpf.h"

/* This and what comes below are global functions, so that the verifier walks loops once. */
__weak __noinline int take_over(struct thread *thread, struct open_call *call,
				const struct preload_open_call *published)
{
	if (!thread || !call || !published)
		return 0;
	__builtin_memset(call, 0, sizeof(*call));
	call->start_ktime_ns = published->start_ktime_ns;
	call->stack_pointer = published->stack_pointer;
	call->api = published->api % MAX_APIS;
	call->variant = published->variant;
	call->device = published->device;
	call->copy_kind = COPY_NONE;
	call->blocked_ns = thread->blocked_ns;
	call->run_queue_ns = thread->run_queue_ns;
	call->voluntary_switches = thread->voluntary_switches;
	call->involuntary_switches = thread->involuntary_switches;
	call->is_published = PUBLISHED;
	return 0;
}

/*
 * Bring what is open in a thread up to date. Calls that only probes see may be around those that
 * are published, and inside of them.
 */
__weak __noinline int sync_preload(struct thread *thread)
{
	struct preload_slot *view = view_of(thread);
	__u32 published, outer = 0;
	struct open_call *call;
	bool is_over;

	if (!thread || !read_preload_view(thread))
		return 0;
	published = view->depth < MAX_DEPTH ? view->depth : MAX_DEPTH;
	is_over = published == 1 && view->last_return_ktime_ns > view->calls[0].start_ktime_ns;
	thread->device = view->device;
	if (thread->may_be_reported) {
		if (is_over && thread->calls[0].start_ktime_ns == view->calls[0].start_ktime_ns)
			return 0;
		thread->may_be_reported = 0;
		forget_intervals_before(thread, thread->last_return_ktime_ns);
	}
	for (__u32 i = 0; i < MAX_DEPTH && i < thread->depth; i++) {
		call = &thread->calls[i];
		if (call->is_published ||
		    (published && call->start_ktime_ns >= view->calls[0].start_ktime_ns))
			break;
		outer++;
	}
	is_over = is_over && !outer;
	if (!outer && !is_over && view->last_return_ktime_ns > thread->last_return_ktime_ns) {
		begin_gap(thread, view->last_api % MAX_APIS, view->last_return_ktime_ns);
		thread->gap_span_id = 0;
	}
	/* The preload library decides for all that happens in a call that it publishes. */
	if (published && !outer)
		thread->sampled =
			settings.sample_one_in && view->until_sample == settings.sample_one_in - 1;
	/* By way of a map the verifier forgets which rounds led here: one state goes on. */
	view->depth = outer;
	outer = *(volatile __u32 *)&view->depth;
	if (outer > MAX_DEPTH)
		return 0;
	for (__u32 i = 0; i < MAX_DEPTH && i < published && outer + i < MAX_DEPTH; i++) {
		__u32 at = outer + i;

		barrier_var(at); /* or the check is on another register than the one that is used */
		call = &thread->calls[at % MAX_DEPTH];
		if (at < thread->depth && call->is_published &&
		    call->start_ktime_ns == view->calls[i].start_ktime_ns)
			continue;
		if (!at)
			forget_intervals(thread);
		take_over(thread, call, &view->calls[i]);
		thread->depth = at + 1;
	}
	outer += published;
	barrier_var(outer);
	if (thread->depth > outer && thread->calls[outer % MAX_DEPTH].is_published)
		thread->depth = outer;
	if (is_over) {
		end_outermost(thread, view->last_api % MAX_APIS, view->last_return_ktime_ns);
		thread->gap_span_id = 0;
		thread->may_be_reported = 1;
		thread->depth = 0;
	}
	return 0;
}

#endif
