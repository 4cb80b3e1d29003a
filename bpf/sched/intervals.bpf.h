/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The longest times off the CPU of the outermost call, or of the gap, are kept in the thread
 * until it is known whether that becomes a span: then they go before it.
 */
#ifndef OTEL_GPU_BPF_SCHED_INTERVALS_H
#define OTEL_GPU_BPF_SCHED_INTERVALS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "events.h"
#include "sched/wait_chains.bpf.h"

static __always_inline void forget_intervals(struct thread *thread)
{
	for (int i = 0; i < MAX_INTERVALS; i++)
		thread->intervals[i].start_ktime_ns = 0;
}

/* Of a call that is over; what came after that is of the gap. */
static __always_inline void forget_intervals_before(struct thread *thread, __u64 ktime_ns)
{
	for (int i = 0; i < MAX_INTERVALS; i++) {
		if (thread->intervals[i].start_ktime_ns < ktime_ns)
			thread->intervals[i].start_ktime_ns = 0;
	}
}

/* A slice of a wait for the GIL: see keep_slice. */
static __always_inline bool goes_on(const struct interval *kept, const struct thread *thread)
{
	return kept->flags & thread->stall_flags & STALL_GIL &&
	       kept->argument == thread->argument &&
	       thread->off_ktime_ns - kept->end_ktime_ns < SLICE_GAP_NS;
}

/*
 * The thread that woke this one has released the GIL. This one may have to wait for it again at
 * once, which is not what took so long.
 */
static __always_inline bool is_named_already(const struct interval *kept,
					     const struct thread *thread, __u64 now_ktime_ns)
{
	return kept->waker_pid == thread->pid && thread->waker_pid != thread->pid &&
	       now_ktime_ns - thread->off_ktime_ns < kept->end_ktime_ns - kept->start_ktime_ns;
}

/* Keep an interval, in place of the shortest one if all slots are taken. */
static __always_inline void keep_interval(struct thread *thread, __u64 runnable_ktime_ns,
					  __u64 now_ktime_ns)
{
	struct interval *kept, *shortest = NULL;
	__u64 shortest_ns = now_ktime_ns - thread->off_ktime_ns;
	__u64 start_ktime_ns = thread->off_ktime_ns;
	__u32 slot = MAX_INTERVALS;
	bool is_named = false;

	for (__u32 i = 0; i < MAX_INTERVALS; i++) {
		kept = &thread->intervals[i];
		if (!kept->start_ktime_ns) {
			slot = i;
			break;
		}
		if (goes_on(kept, thread)) {
			start_ktime_ns = kept->start_ktime_ns;
			is_named = is_named_already(kept, thread, now_ktime_ns);
			slot = i;
			break;
		}
		if (kept->end_ktime_ns - kept->start_ktime_ns < shortest_ns) {
			shortest_ns = kept->end_ktime_ns - kept->start_ktime_ns;
			slot = i;
		}
	}
	if (slot >= MAX_INTERVALS)
		return;
	shortest = &thread->intervals[slot];
	shortest->user_stack = sample_of_interval(
		thread, shortest->start_ktime_ns == start_ktime_ns ? shortest->user_stack : 0,
		now_ktime_ns - start_ktime_ns);
	shortest->start_ktime_ns = start_ktime_ns;
	shortest->runnable_ktime_ns = runnable_ktime_ns;
	shortest->end_ktime_ns = now_ktime_ns;
	shortest->argument = thread->argument;
	shortest->culprit_pid = thread->culprit_pid;
	shortest->culprit_tid = thread->culprit_tid;
	if (!is_named) {
		shortest->waker_pid = thread->waker_pid;
		shortest->waker_tid = thread->waker_tid;
		__builtin_memcpy(shortest->waker_comm, thread->waker_comm, COMM_BYTES);
	}
	shortest->cpu = bpf_get_smp_processor_id();
	shortest->kernel_stack = thread->kernel_stack;
	shortest->system_call = thread->system_call;
	shortest->flags = thread->stall_flags;
	shortest->switch_type = thread->switch_type;
	shortest->call_start_ktime_ns = 0;
	shortest->call_api = 0;
	shortest->call_depth = 0;
	shortest->resource = thread->resource;
	if (shortest->start_ktime_ns == thread->off_ktime_ns)
		shortest->context = thread->context;
	if (thread->depth) {
		struct open_call *call = &thread->calls[(thread->depth - 1) % MAX_DEPTH];

		shortest->call_start_ktime_ns = call->start_ktime_ns;
		shortest->call_api = call->api;
		shortest->call_depth = thread->depth - 1;
		shortest->context.span_id = 0;
	}
	__builtin_memcpy(shortest->culprit_comm, thread->culprit_comm, COMM_BYTES);
}

static __always_inline void send_interval(const struct thread *thread, const struct interval *kept,
					  __u64 root_start_ktime_ns, const char *comm)
{
	struct stall_record *record = RESERVE_EVENT(thread->pid, record);

	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_STALL, sizeof(*record), kept->end_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = kept->start_ktime_ns;
	record->runnable_ktime_ns = kept->runnable_ktime_ns;
	record->call_start_ktime_ns = kept->call_start_ktime_ns;
	record->root_start_ktime_ns = root_start_ktime_ns;
	record->user_stack = kept->user_stack;
	record->culprit_pid = kept->culprit_pid;
	record->culprit_tid = kept->culprit_tid;
	record->waker_pid = kept->waker_pid;
	record->waker_tid = kept->waker_tid;
	record->cpu = kept->cpu;
	record->call_api = kept->call_api;
	record->call_depth = kept->call_depth;
	record->switch_type = kept->switch_type;
	record->kernel_stack = kept->kernel_stack;
	record->system_call = kept->system_call;
	record->argument = kept->argument;
	record->flags = kept->flags;
	record->resource = kept->resource;
	bpf_probe_read_kernel(record->comm, COMM_BYTES, comm);
	__builtin_memcpy(record->culprit_comm, kept->culprit_comm, COMM_BYTES);
	__builtin_memcpy(record->waker_comm, kept->waker_comm, COMM_BYTES);
	count(COUNTER_STALLS_CHOSEN);
	bpf_ringbuf_submit(record, wakeup_flags());
}

/* Send the span that a wait was in, if the wait hangs below no call or gap. Returns whether there is one. */
static __always_inline bool send_wait_context(const struct thread *thread,
					      const struct published_context *context,
					      __u64 start_ktime_ns, __u64 end_ktime_ns)
{
	if (!context->span_id)
		return false;
	send_published(&events, COUNTER_LOST_RING_FULL, thread, context, start_ktime_ns,
		       end_ktime_ns);
	return true;
}

/*
 * Send what was kept of a call or gap that becomes a span itself. What was in another span of the
 * application than all of the gap hangs below that one.
 */
static __always_inline void send_intervals(const struct thread *thread, __u64 root_start_ktime_ns,
					   __u64 end_ktime_ns, __u64 gap_span_id, const char *comm)
{
	for (int i = 0; i < MAX_INTERVALS; i++) {
		const struct interval *kept = &thread->intervals[i];
		bool is_apart;

		if (!kept->start_ktime_ns || kept->start_ktime_ns >= end_ktime_ns)
			continue;
		is_apart = kept->context.span_id != gap_span_id &&
			   send_wait_context(thread, &kept->context, kept->start_ktime_ns,
					     kept->end_ktime_ns);
		send_interval(thread, kept, is_apart ? 0 : root_start_ktime_ns, comm);
	}
}

/* A gap begins where an outermost call returns, whose intervals may still be sent. */
static __always_inline void end_outermost(struct thread *thread, __u32 api, __u64 now_ktime_ns)
{
	thread->last_return_ktime_ns = now_ktime_ns;
	thread->last_api = api;
	thread->gap_blocked_ns = thread->blocked_ns;
	thread->gap_run_queue_ns = thread->run_queue_ns;
	thread->gap_voluntary_switches = thread->voluntary_switches;
	thread->gap_involuntary_switches = thread->involuntary_switches;
}

static __always_inline void begin_gap(struct thread *thread, __u32 api, __u64 now_ktime_ns)
{
	end_outermost(thread, api, now_ktime_ns);
	forget_intervals(thread);
}

#endif
