/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The open calls of a thread, and the record of one that is over. */
#ifndef OTEL_GPU_BPF_CUDA_OPEN_CALLS_H
#define OTEL_GPU_BPF_CUDA_OPEN_CALLS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "events.h"
#include "sched/intervals.bpf.h"

/* Of cudaError_t and CUresult alike. */
#define NOT_READY 600

static __always_inline struct open_call *call_at(struct thread *thread, __u32 index)
{
	return &thread->calls[index % MAX_DEPTH];
}

static __always_inline struct open_call *innermost(struct thread *thread)
{
	return call_at(thread, thread->depth - 1);
}

/* Once for an outermost call, before the first thing of it that is sent. */
static __noinline int send_context(struct thread *thread, __u64 start_ktime_ns, __u64 now_ktime_ns)
{
	struct published_context context = {};

	if (thread->context_ktime_ns == start_ktime_ns)
		return 0;
	thread->context_ktime_ns = start_ktime_ns;
	if (read_context(thread, &context))
		send_published(&events, COUNTER_LOST_RING_FULL, thread, &context, start_ktime_ns,
			       now_ktime_ns);
	return 0;
}

/* A launch stub resolves its kernel once, right before the first launch. */
#define FIRST_USE_NS 1000000

/*
 * Whether what a launch took may be the time of loading the code: the driver does that when a kernel is
 * first launched, and the thread has just found the kernel or does so inside of the call.
 */
static __always_inline bool is_first_use(const struct thread *thread, const struct open_call *call)
{
	__u8 family = settings.apis[call->api < MAX_APIS ? call->api : 0].family;

	return (family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH) &&
	       thread->prepared_ktime_ns + FIRST_USE_NS > call->start_ktime_ns;
}

static __noinline int send_call(struct thread *thread, struct open_call *call, __u64 user_stack,
				__u64 now_ktime_ns)
{
	__u8 choices = call->choices;
	__u32 depth = thread->depth - 1;
	struct open_call *parent = depth ? call_at(thread, depth - 1) : NULL;
	struct cuda_call_record *record;
	char comm[COMM_BYTES];

	bpf_get_current_comm(comm, sizeof(comm));
	send_context(thread, call_at(thread, 0)->start_ktime_ns, now_ktime_ns);
	if (!depth)
		send_intervals(thread, call->start_ktime_ns, now_ktime_ns, 0, comm);
	record = RESERVE_EVENT(thread->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_CUDA_CALL, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = call->start_ktime_ns;
	record->parent_start_ktime_ns = parent ? parent->start_ktime_ns : 0;
	record->root_start_ktime_ns = call_at(thread, 0)->start_ktime_ns;
	record->blocked_ns = thread->blocked_ns - call->blocked_ns;
	record->run_queue_ns = thread->run_queue_ns - call->run_queue_ns;
	record->size_bytes = call->size_bytes;
	record->address = call->address;
	record->stream = call->stream;
	record->function = call->function;
	record->user_stack = user_stack;
	record->status = call->status;
	record->device = call->device;
	record->weight = choices == CHOICE_SAMPLED ? settings.sample_one_in : 1;
	record->voluntary_switches = thread->voluntary_switches - call->voluntary_switches;
	record->involuntary_switches = thread->involuntary_switches - call->involuntary_switches;
	record->cpu = bpf_get_smp_processor_id();
	__builtin_memcpy(record->grid, call->grid, sizeof(record->grid));
	__builtin_memcpy(record->block, call->block, sizeof(record->block));
	record->api = call->api;
	record->variant = call->variant;
	record->copy_kind = call->copy_kind;
	record->choices = choices | (is_first_use(thread, call) ? CHOICE_FIRST_USE : 0);
	record->depth = depth;
	record->padding = 0;
	__builtin_memcpy(record->comm, comm, COMM_BYTES);
	count(COUNTER_SPANS_CHOSEN);
	/* Spans inside spans: the outer call has to be sent too. */
	if (parent)
		parent->choices |= CHOICE_PARENT;
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}

#endif
