/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * CUDA calls: entry, return, and what a call was.
 *
 * One program serves the entry of every API, one the return. The attach cookie contains
 * the API (its row in the probe table) and the exported spelling; the row contains
 * where the arguments are. Runtime calls make driver calls inside, so a thread has a
 * stack of open calls.
 *
 * A call is identified by the stack pointer at its entry. Returns therefore find
 * their entry even when calls in between never return (longjmp, a C++ exception), were
 * nested too deep to be kept, or began before the probes stood. The stack grows down: an
 * open call whose stack pointer is below the one of a new entry is gone.
 */
#ifndef OTEL_GPU_BPF_CUDA_CALL_PROBES_H
#define OTEL_GPU_BPF_CUDA_CALL_PROBES_H

#include "../preload/layout.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/preload_view.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "cuda/arguments.bpf.h"
#include "cuda/gaps.bpf.h"
#include "cuda/open_calls.bpf.h"
#include "cuda/outcomes.bpf.h"
#include "cuda/preload.bpf.h"
#include "cuda/recorded_calls.bpf.h"
#include "cuda/sizes.bpf.h"
#include "cuda/step_detection.bpf.h"
#include "cuda/stream_captures.bpf.h"
#include "events.h"
#include "memory/out_of_memory.bpf.h"
#include "nccl/calls.bpf.h"
#include "nccl/communicator_calls.bpf.h"
#include "nccl/completions.bpf.h"
#include "sched/intervals.bpf.h"
#include "sched/stalls.bpf.h"
#include "sched/time_accounting.bpf.h"

/*
 * The cookie of the probe whose program runs. In place, where one link attaches many uprobes: three
 * loads find it, and the call of a helper takes longer than they do. The task is cast to what is
 * not trusted, as the verifier looks for types of trusted pointers by name, which takes it long.
 */
static __always_inline __u64 cookie_of(void *ctx, struct task_struct *task, bool in_place)
{
#if !defined(OTEL_GPU_NO_BTF)
	struct bpf_uprobe_multi_run_ctx *run;

	if (in_place) {
		task = TYPED(task, struct task_struct);
		run = TYPED(task->bpf_ctx, struct bpf_uprobe_multi_run_ctx);
		return run->uprobe->cookie;
	}
#endif
	return bpf_get_attach_cookie(ctx);
}

static __always_inline __u32 cookie_api(__u64 cookie)
{
	return (__u16)cookie;
}

static __always_inline __u16 cookie_variant(__u64 cookie)
{
	return (__u16)(cookie >> 16);
}

/*
 * Forget open calls whose frames are gone. Equal stack pointers are a tail call from
 * one API to another, unless it is the same API again: that one was unwound. Those that a preload library
 * publishes, it forgets itself.
 */
static __always_inline void drop_unwound(struct thread *thread, struct task_struct *task,
					 __u64 stack_pointer, __u32 api)
{
	struct xol_area *area = thread->depth ? trampoline_of(task) : NULL;

	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		struct open_call *call = innermost(thread);
		bool is_outer = call->stack_pointer > stack_pointer ||
				(call->stack_pointer == stack_pointer && call->api != api);

		if (call->is_published || (is_outer && is_frame_alive(area, call->stack_pointer)))
			break;
		count(COUNTER_LOST_NO_RETURN);
		thread->depth--;
	}
}

__weak __noinline int is_counted_by_preload(struct thread *thread, __u32 api)
{
	const struct preload_slot *view;
	const __u64 *program_ktime_ns;
	__u32 pid, depth;

	if (!thread)
		return false;
	view = view_of(thread);
	pid = thread->pid;
	if (api >= MAX_APIS || !settings.apis[api].preload)
		return false;
	program_ktime_ns = bpf_map_lookup_elem(&preloaded, &pid);
	if (!program_ktime_ns || *program_ktime_ns != thread->program_ktime_ns)
		return false;
	if (!read_preload_view(thread))
		return true;
	depth = view->depth;
	/* Deeper ones are counted, and not published. */
	if (depth >= MAX_DEPTH)
		return true;
	return depth && view->calls[(depth - 1) % MAX_DEPTH].api == api;
}

/* Whether the program counts this call, which is about to begin or has just ended. */
static __always_inline bool counts_itself(struct thread *thread, __u32 api)
{
	return thread->preload_slot && is_counted_by_preload(thread, api);
}

static __always_inline int enter(struct pt_regs *ctx, bool in_place)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = tid_of(task);
	struct thread *thread = find_thread(tid);
	__u64 cookie = cookie_of(ctx, task, in_place);
	__u32 api = cookie_api(cookie);
	struct open_call *call;
	__u64 stack_pointer;
	bool is_published;

	/* A program that only uses the network is not watched for that. */
	if (!thread && (api < MAX_APIS && settings.apis[api].layer == LAYER_VERBS) &&
	    !find_process(pid_of(task)))
		return 0;
	if (!thread)
		thread = meet_thread(task, tid);
	barrier_var(api); /* or the check may be lost on what is used below */
	if (!thread || api >= MAX_APIS || counts_itself(thread, api))
		return 0;
	thread->entries++;
	if (thread->off_ktime_ns)
		notice_running(thread, task, bpf_ktime_get_ns());
	stack_pointer = stack_pointer_at_entry(ctx);
	if (thread->preload_slot)
		sync_preload(thread);
	drop_unwound(thread, task, stack_pointer, api);
	/* The preload library published it a moment ago. */
	is_published = thread->depth && innermost(thread)->is_published == PUBLISHED &&
		       innermost(thread)->api == api;
	if (!is_published && thread->depth >= MAX_DEPTH) {
		count(COUNTER_LOST_DEPTH_EXCEEDED);
		return 0;
	}
	call = is_published ? innermost(thread) : call_at(thread, thread->depth);
	call->variant = cookie_variant(cookie);
	call->stack_pointer = stack_pointer;
	call->device = thread->device;
	if (!is_published) {
		call->api = api;
		call->is_published = 0;
		call->choices = 0;
		call->blocked_ns = thread->blocked_ns;
		call->run_queue_ns = thread->run_queue_ns;
		call->voluntary_switches = thread->voluntary_switches;
		call->involuntary_switches = thread->involuntary_switches;
	} else {
		call->is_published = PUBLISHED_AND_PROBED;
	}
	read_arguments(ctx, &settings.apis[api], call);
	if (settings.apis[api].size_form)
		read_size(ctx, &settings.apis[api], call);
	if (settings.apis[api].layer == LAYER_NCCL)
		read_nccl_call(ctx, &settings.apis[api], call);
	if (settings.apis[api].family == FAMILY_DEREGISTER)
		change_registration(thread, call, true);
	if (is_published)
		return 0;
	/* Last, so that our own work does not count as the call's. */
	call->start_ktime_ns = bpf_ktime_get_ns();
	if (!thread->depth) {
		call->start_ktime_ns = pass_on_cpu_fast(thread, call->start_ktime_ns, 0);
		thread->sampled = is_sampled(thread);
		if (thread->failed.ktime_ns && goes_on_without_memory(api))
			send_failed_call(thread);
		finish_gap(thread, api, call->start_ktime_ns);
		forget_intervals(thread);
		/* The preload library follows what it counts. */
		if (settings.finds_steps && !thread->preload_slot)
			note_step_call(thread, call);
	}
	thread->depth++;
	return 0;
}

static __always_inline int leave(struct pt_regs *ctx, bool in_place)
{
	/* First, so that our own work does not count as the call's. */
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = find_thread(tid_of(task));
	__u64 stack_pointer = stack_pointer_at_return(ctx);
	__u32 number = cookie_api(cookie_of(ctx, task, in_place));
	const volatile struct api_descriptor *api;
	struct open_call *call;
	__u64 duration_ns, size_bytes = 0;
	__s32 status;
	__u8 choices;

	if (!thread) /* not watched; or its map is full, which its entry has counted */
		return 0;
	if (counts_itself(thread, number % MAX_APIS))
		return 0;
	thread->returns++;
	notice_running(thread, task, now_ktime_ns);
	/* The account was read a moment later: the call lasts until then. */
	if (now_ktime_ns < (thread->booked & ~OFF_CPU))
		now_ktime_ns = thread->booked & ~OFF_CPU;
	if (!thread->depth) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	/* Frames below a returning one never returned themselves. */
	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		if (innermost(thread)->stack_pointer >= stack_pointer)
			break;
		if (!innermost(thread)->is_published)
			count(COUNTER_LOST_NO_RETURN);
		thread->depth--;
	}
	call = innermost(thread);
	if (!thread->depth || call->stack_pointer != stack_pointer || call->api != number) {
		/* A call nested too deep was counted when it began. */
		if (thread->depth < MAX_DEPTH)
			count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	api = &settings.apis[call->api < MAX_APIS ? call->api : 0];
	status = PT_REGS_RC(ctx);
	if (api->returns_pointer) {
		status = PT_REGS_RC(ctx) ? 0 : -1;
		call->address = PT_REGS_RC(ctx);
	}
	if (!status && api->stream_work && thread->depth == 1 && has_collectives(thread))
		after_stream_call(thread->tid, now_ktime_ns);
	if (status == NOT_READY && api->family == FAMILY_QUERY)
		status = 0; /* an answer */
	if (api->layer == LAYER_NCCL) {
		if (status == IN_PROGRESS)
			status = 0;
		after_nccl_call(thread->tid, status, now_ktime_ns);
	}
	if (api->stream_work)
		call->function = 0; /* is of launches */
	if (status && (api->address_is_output || api->family == FAMILY_ELAPSED_TIME))
		call->address = 0; /* where it would have been put */
	if (status && api->family == FAMILY_DEREGISTER)
		change_registration(thread, call, false);
	if (!status && (call->has_no_size || thread->depth > 1))
		settle_size(thread, api, call);
	if (api->stream_capture)
		note_capture(thread, call, api->stream_capture, status);
	if (!status) {
		size_bytes =
			teaches(api) ? learn_from_success(thread, api, call) : call->size_bytes;
		if (names_device(api))
			send_device(thread, api, call, now_ktime_ns);
	}
	if (api->family == FAMILY_KERNEL || api->family == FAMILY_KERNEL_ALIAS)
		note_handle(thread, call, api->family, status, now_ktime_ns);
	if (prepares(api))
		thread->prepared_ktime_ns = now_ktime_ns;
	if (status == OUT_OF_MEMORY && api->family == FAMILY_ALLOCATE && !is_nested(thread, api) &&
	    admit_failure(now_ktime_ns)) {
		/* Another token than the call's: the call's own sample goes with its span. */
		thread->failed.user_stack = sample_call(ctx, thread, now_ktime_ns - 1);
		send_context(thread, call_at(thread, 0)->start_ktime_ns, now_ktime_ns);
		note_failure(thread, call, now_ktime_ns);
	}
	duration_ns = since(call->start_ktime_ns, now_ktime_ns);
	count_call(thread, api, call, status, duration_ns, size_bytes);
	choices = choose(thread, call, status, duration_ns);
	if (choices) {
		call->choices = choices;
		call->status = status;
		if (may_send(thread, choices, now_ktime_ns))
			send_call(thread, call, sample_call(ctx, thread, now_ktime_ns),
				  call->start_ktime_ns + duration_ns);
		else
			count(COUNTER_SPANS_RATE_LIMITED);
	}
	if (thread->depth == 1) {
		now_ktime_ns = pass_on_cpu_fast(thread, now_ktime_ns, 0);
		/* A thread that only asks, as a watchdog does, or prepares transfers, launches nothing. */
		if (thread->last_return_ktime_ns || !only_asks(api))
			begin_gap(thread, call->api, now_ktime_ns);
		thread->gap_span_id = 0;
		if (is_in_span(thread))
			note_gap_context(thread);
		if (thread->counts_in_step)
			thread->step_return_ktime_ns = now_ktime_ns;
		thread->counts_in_step = 0;
	}
	thread->depth--;
	return 0;
}

#endif
