/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The end of a gap between two calls: counted, and sent where it is long. */
#ifndef OTEL_GPU_BPF_CUDA_GAPS_H
#define OTEL_GPU_BPF_CUDA_GAPS_H

#include "core/aggregate.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "cuda/recorded_calls.bpf.h"
#include "events.h"
#include "sched/intervals.bpf.h"

static __always_inline bool is_launch(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_LAUNCH || api->family == FAMILY_GRAPH_LAUNCH;
}

/* A gap is in a span that it begins and ends in. */
__attribute__((unused)) static __noinline int note_gap_context(struct thread *thread)
{
	struct published_context context = {};

	thread->gap_span_id = read_context(thread, &context) ? context.span_id : 0;
	return 0;
}

/* Returns the id of that span; 0: it is in none. */
static __noinline __u64 send_gap_context(struct thread *thread, __u64 now_ktime_ns)
{
	struct published_context context = {};

	if (!thread->gap_span_id || !read_context(thread, &context) ||
	    context.span_id != thread->gap_span_id)
		return 0;
	send_published(&events, COUNTER_LOST_RING_FULL, thread, &context,
		       thread->last_return_ktime_ns, now_ktime_ns);
	return context.span_id;
}

static __always_inline void send_gap(struct thread *thread, __u32 next_api, __u32 choices,
				     __u64 now_ktime_ns)
{
	__u64 span_id = send_gap_context(thread, now_ktime_ns);
	struct gap_record *record;
	char comm[COMM_BYTES];

	bpf_get_current_comm(comm, sizeof(comm));
	send_intervals(thread, thread->last_return_ktime_ns, now_ktime_ns, span_id, comm);
	record = RESERVE_EVENT(thread->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_GAP, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = thread->last_return_ktime_ns;
	record->blocked_ns = thread->blocked_ns - thread->gap_blocked_ns;
	record->run_queue_ns = thread->run_queue_ns - thread->gap_run_queue_ns;
	record->device = thread->device;
	record->voluntary_switches = thread->voluntary_switches - thread->gap_voluntary_switches;
	record->involuntary_switches =
		thread->involuntary_switches - thread->gap_involuntary_switches;
	record->previous_api = thread->last_api;
	record->next_api = next_api;
	record->choices = choices;
	record->padding = 0;
	__builtin_memcpy(record->comm, comm, COMM_BYTES);
	count(COUNTER_GAPS_CHOSEN);
	bpf_ringbuf_submit(record, wakeup_flags());
}

/* Send a gap that is long, for this thread. A global function, so that the verifier follows it once. */
__weak __noinline int choose_gap(struct thread *thread, __u32 next_api, __u64 now_ktime_ns)
{
	struct threshold_key series = {.copy_kind = COPY_NONE};
	__u64 *threshold_ns, gap_ns;

	if (!thread)
		return 0;
	series.program_ktime_ns = thread->program_ktime_ns;
	series.pid = thread->pid;
	gap_ns = since(thread->last_return_ktime_ns, now_ktime_ns);
	if (gap_ns < settings.call_stall_floor_ns || thread->process_flags & PROCESS_NO_SPANS)
		return 0;
	threshold_ns = bpf_map_lookup_elem(&thresholds, &series);
	if (gap_ns < (threshold_ns ? *threshold_ns : settings.stall_floor_ns))
		return 0;
	if (may_send(thread, CHOICE_SLOW, now_ktime_ns))
		send_gap(thread, next_api, CHOICE_SLOW, now_ktime_ns);
	else
		count(COUNTER_SPANS_RATE_LIMITED);
	return 0;
}

static __always_inline void count_launch_gap(const struct thread *thread, __u64 gap_ns)
{
	struct aggregate_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		.device = thread->device,
		.copy_kind = COPY_NONE,
		.metric = METRIC_LAUNCH_GAP,
	};

	add_duration(&key, gap_ns, 0);
}

/* The gap ends that began when the thread's last outermost call returned. */
static __always_inline void finish_gap(struct thread *thread, __u32 next_api, __u64 now_ktime_ns)
{
	__u64 gap_ns = since(thread->last_return_ktime_ns, now_ktime_ns);

	if (!thread->last_return_ktime_ns)
		return;
	if (is_launch(&settings.apis[next_api < MAX_APIS ? next_api : 0]))
		count_launch_gap(thread, gap_ns);
	if (gap_ns >= settings.call_stall_floor_ns)
		choose_gap(thread, next_api, now_ktime_ns);
}

#endif
