/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The end of a time off the CPU: booked, and kept or sent where it may explain something. */
#ifndef OTEL_GPU_BPF_SCHED_STALLS_H
#define OTEL_GPU_BPF_SCHED_STALLS_H

#include "core/aggregate.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/preload_view.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/intervals.bpf.h"
#include "sched/time_accounting.bpf.h"
#include "sched/waits.bpf.h"

/*
 * Threads that make no CUDA calls wait as a matter of course; a wait is worth a span of
 * its own when it is long. Of those that do, it is a part of a call or of a gap.
 */
static __noinline int send_long_stall(struct thread *thread, __u64 runnable_ktime_ns,
				      __u64 now_ktime_ns)
{
	struct process *process = find_process(thread->pid);
	struct interval interval = {
		.start_ktime_ns = thread->off_ktime_ns,
		.runnable_ktime_ns = runnable_ktime_ns,
		.end_ktime_ns = now_ktime_ns,
		.argument = thread->argument,
		.culprit_pid = thread->culprit_pid,
		.culprit_tid = thread->culprit_tid,
		.waker_pid = thread->waker_pid,
		.waker_tid = thread->waker_tid,
		.cpu = bpf_get_smp_processor_id(),
		.kernel_stack = thread->kernel_stack,
		.system_call = thread->system_call,
		.flags = thread->stall_flags,
		.switch_type = thread->switch_type,
		.resource = thread->resource,
	};

	if (!process || process->flags & PROCESS_NO_SPANS)
		return 0;
	if (!admit(process, 0, now_ktime_ns)) {
		count(COUNTER_SPANS_RATE_LIMITED);
		return 0;
	}
	interval.user_stack = send_stall_sample(thread);
	send_wait_context(thread, &thread->context, interval.start_ktime_ns, now_ktime_ns);
	__builtin_memcpy(interval.culprit_comm, thread->culprit_comm, COMM_BYTES);
	__builtin_memcpy(interval.waker_comm, thread->waker_comm, COMM_BYTES);
	send_interval(thread, &interval, 0, thread->comm);
	return 0;
}

/*
 * Count a time off the CPU, and keep or send it where it may explain something. A global function,
 * so that the verifier follows it once.
 */
__weak __noinline int note_off_cpu(struct thread *thread, __u64 runnable_ktime_ns,
				   __u64 now_ktime_ns)
{
	struct aggregate_key key = {.device = -1, .copy_kind = COPY_NONE};
	__u64 blocked_ns, run_queue_ns;

	if (!thread)
		return 0;
	key.program_ktime_ns = thread->program_ktime_ns;
	key.pid = thread->pid;
	key.api = thread->switch_type;
	blocked_ns = runnable_ktime_ns - thread->off_ktime_ns;
	run_queue_ns = now_ktime_ns - runnable_ktime_ns;
	thread->blocked_ns += blocked_ns;
	thread->run_queue_ns += run_queue_ns;
	key.metric = METRIC_OFF_CPU;
	add_to_bucket(&key, find_last_bucket(&thread->off_cpu_bucket, blocked_ns + run_queue_ns),
		      blocked_ns + run_queue_ns, 0);
	key.metric = METRIC_RUN_QUEUE;
	add_to_bucket(&key, find_last_bucket(&thread->run_queue_bucket, run_queue_ns), run_queue_ns,
		      0);
	if (thread->depth || thread->last_return_ktime_ns) {
		keep_interval(thread, runnable_ktime_ns, now_ktime_ns);
		if (thread->depth && blocked_ns + run_queue_ns >= settings.call_stall_floor_ns)
			thread->calls[(thread->depth - 1) % MAX_DEPTH].choices |= CHOICE_STALLED;
	} else if (blocked_ns >= settings.stall_floor_ns ||
		   run_queue_ns >= settings.stall_floor_ns) {
		send_long_stall(thread, runnable_ktime_ns, now_ktime_ns);
	}
	return 0;
}

/* A thread is on a CPU again. Not a function: the BPF stack is too small for another one. */
static __always_inline void enter_cpu(struct thread *thread, __u64 now_ktime_ns)
{
	__u64 runnable_ktime_ns = thread->runnable_ktime_ns, from_ktime_ns;

	if (!thread->off_ktime_ns) /* first seen running */
		return;
	if (now_ktime_ns < thread->off_ktime_ns) /* an estimate; see notice_running */
		now_ktime_ns = thread->off_ktime_ns;
	from_ktime_ns = claim(thread, &now_ktime_ns, 0);
	/* Woken before it was watched: all of it counts as blocked. */
	if (!runnable_ktime_ns || runnable_ktime_ns > now_ktime_ns)
		runnable_ktime_ns = now_ktime_ns;
	/* Woken before it was off the CPU: that was put off to when the account was read. */
	else if (runnable_ktime_ns < thread->off_ktime_ns)
		runnable_ktime_ns = thread->off_ktime_ns;
	note_off_cpu(thread, runnable_ktime_ns, now_ktime_ns);
	book_off_cpu(thread, from_ktime_ns, runnable_ktime_ns, now_ktime_ns);
	thread->off_ktime_ns = 0;
}

/* As below. A global function, so that the verifier follows it once. */
__weak __noinline int repair_switch(struct thread *thread, __u64 ran_ns, __u64 now_ktime_ns)
{
	__u64 from_ktime_ns = now_ktime_ns - ran_ns, ran_ktime_ns;

	if (!thread)
		return 0;
	count(COUNTER_SWITCHES_REPAIRED);
	if (read_preload_view(thread)) {
		ran_ktime_ns = view_of(thread)->last_return_ktime_ns;
		if (ran_ktime_ns > thread->off_ktime_ns && ran_ktime_ns < from_ktime_ns)
			from_ktime_ns = ran_ktime_ns;
	}
	enter_cpu(thread, from_ktime_ns);
	return 0;
}

/*
 * A thread runs, and its switch-in was not seen: now and then the kernel calls no
 * tracepoint for one. The scheduler knows for how long the thread has run, to the last tick. The
 * thread also ran when it published that a call was over.
 */
static __always_inline void notice_running(struct thread *thread, struct task_struct *task,
					   __u64 now_ktime_ns)
{
	if (thread->off_ktime_ns)
		repair_switch(thread, READ_KERNEL(task, se.sum_exec_runtime) - thread->runtime_ns,
			      now_ktime_ns);
}

#endif
