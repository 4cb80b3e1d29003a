/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The end of a wait in the account: who ended it, if anybody, and what came before that. */
#ifndef OTEL_GPU_BPF_SCHED_WAITS_H
#define OTEL_GPU_BPF_SCHED_WAITS_H

#include "core/kernel_types.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/time_accounting.bpf.h"
#include "sched/wait_chains.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_NANOSLEEP	35
#define SYSCALL_CLOCK_NANOSLEEP 230
#else
#define SYSCALL_NANOSLEEP	101
#define SYSCALL_CLOCK_NANOSLEEP 115
#endif

/* Whether a timer or a device ends the wait, whatever thread it interrupts. */
static __always_inline bool is_ended_by_nobody(const struct thread *thread)
{
	return thread->waits_for_io || thread->system_call == SYSCALL_NANOSLEEP ||
	       thread->system_call == SYSCALL_CLOCK_NANOSLEEP;
}

/* Remember a wait, in a state of enum thread_state, as a link. */
__weak __noinline int keep_link(struct thread *thread, __u64 blocked_ns, __u32 end_pid,
				__u32 end_tid, __u32 state)
{
	bool is_own = state == STATE_BLOCKED;
	__s32 system_call, kernel_stack;
	struct wait_link *latest, *part;
	__u64 end_ktime_ns;

	if (!thread)
		return 0;
	latest = latest_link(thread);
	part = &thread->part;
	end_ktime_ns = thread->off_ktime_ns + blocked_ns;
	system_call = is_own ? thread->system_call : -1;
	kernel_stack = is_own ? thread->kernel_stack : -1;
	if (lengthen(latest, end_tid, state, system_call, kernel_stack, thread->off_ktime_ns,
		     end_ktime_ns)) {
		latest->blocked_ns += blocked_ns;
		return 0;
	}
	end_by(part, end_pid, end_tid, state);
	part->start_ktime_ns = thread->off_ktime_ns;
	part->end_ktime_ns = end_ktime_ns;
	part->blocked_ns = blocked_ns;
	part->run_queue_ns = 0;
	part->kernel_stack = kernel_stack;
	part->system_call = system_call;
	if (is_own)
		part->flags = thread->stall_flags & KEY_FLAGS;
	return add_link(thread, part);
}

/* Book a wait that no known watched thread ended. */
static __noinline int book_alone(struct thread *thread, struct times_key *key, __u64 blocked_ns,
				 __u64 unbooked_ns)
{
	if (!is_ended_by_nobody(thread))
		key->who_pid = thread->waker_pid;
	/* Entries stay few: unwatched wakers are recorded by process, not by thread. */
	if (key->who_pid && find_process(key->who_pid))
		key->who_tid = thread->waker_tid;
	book_wait(&thread->kept[KEPT_BLOCKED], key, thread->waker_comm, unbooked_ns, blocked_ns);
	keep_link(thread, blocked_ns, thread->pid, thread->tid, STATE_BLOCKED);
	return 0;
}

/* Whether who ended the waits that are kept ended this one too: it is watched, then. */
static __always_inline bool is_known_waker(const struct thread *thread)
{
	const struct times_key *kept = &thread->kept[KEPT_BLOCKED].key;

	return kept->end_tid == thread->waker_tid && kept->who_tid == thread->waker_tid &&
	       kept->who_pid == thread->waker_pid;
}

/* Book a wait that another watched thread ended, which was on a CPU all the time. */
static __noinline int book_woken(struct thread *thread, struct times_key *key, __u64 blocked_ns,
				 __u64 unbooked_ns)
{
	key->who_pid = thread->waker_pid;
	key->who_tid = thread->waker_tid;
	key->end_pid = thread->waker_pid;
	key->end_tid = thread->waker_tid;
	key->end_state = STATE_ON_CPU;
	book_wait(&thread->kept[KEPT_BLOCKED], key, thread->waker_comm, unbooked_ns, blocked_ns);
	keep_link(thread, blocked_ns, thread->waker_pid, thread->waker_tid, STATE_ON_CPU);
	return 0;
}

/* Book a wait that another thread ended, or no thread. */
static __always_inline void book_blocked(struct thread *thread, struct times_key *key,
					 __u64 blocked_ns, __u64 unbooked_ns)
{
	struct thread *waker;

	if (!thread->waker_tid || is_ended_by_nobody(thread)) {
		book_alone(thread, key, blocked_ns, unbooked_ns);
		return;
	}
	if (blocked_ns < SHORT_NS && !thread->slices_ns && is_known_waker(thread)) {
		book_woken(thread, key, blocked_ns, unbooked_ns);
		return;
	}
	waker = find_thread(thread->waker_tid);
	if (!waker)
		book_alone(thread, key, blocked_ns, unbooked_ns);
	/* Most often the other one was on a CPU all the time. */
	else if (thread->slices_ns || (blocked_ns >= SHORT_NS &&
				       (latest_link(waker)->end_ktime_ns > thread->off_ktime_ns ||
					waker->links_ktime_ns > thread->off_ktime_ns)))
		divide_wait(thread, waker, thread->off_ktime_ns + blocked_ns, unbooked_ns);
	else
		book_woken(thread, key, blocked_ns, unbooked_ns);
}

/*
 * Python waits for the GIL in slices of 5 ms, looking up in between. It is one wait, and only
 * the end of the last slice shows which thread released the GIL. Until then, it is taken to be the one
 * that got it last.
 */
static __noinline int keep_slice(struct thread *thread, const struct times_key *key,
				 __u64 runnable_ktime_ns, __u64 unbooked_ns, __u64 now_ktime_ns)
{
	struct process *process = find_process(thread->pid);
	struct wait_link *link;

	if (!thread->slices_ns) {
		thread->slices_start_ktime_ns = thread->off_ktime_ns;
		link = &thread->links[thread->next_link++ % MAX_LINKS];
		if (link->start_ktime_ns)
			thread->links_ktime_ns = link->end_ktime_ns;
		end_by(link, thread->pid, thread->tid, STATE_BLOCKED);
		link->flags = STALL_GIL;
		link->system_call = key->system_call;
		link->start_ktime_ns = thread->off_ktime_ns;
		link->last_ktime_ns = thread->off_ktime_ns;
		link->run_queue_ns = 0;
		if (process && process->gil_tid && process->gil_tid != thread->tid)
			end_by(link, thread->pid, process->gil_tid, STATE_ON_CPU);
	}
	thread->slices_end_ktime_ns = now_ktime_ns;
	thread->slices_ns += runnable_ktime_ns - thread->off_ktime_ns;
	thread->slices_place = (__u32)key->context << 16 | key->api;
	thread->slices_kernel_stack = key->kernel_stack;
	thread->slices_system_call = key->system_call;
	link = latest_link(thread);
	link->runnable_ktime_ns = now_ktime_ns;
	link->end_ktime_ns = now_ktime_ns;
	link->blocked_ns = thread->slices_ns;
	return book(key, thread->comm, unbooked_ns, 0, 0);
}

/* A thread that waited for the GIL has it. */
static __always_inline void note_gil(const struct thread *thread)
{
	struct process *process = find_process(thread->pid);

	if (process)
		process->gil_tid = thread->tid;
}

/*
 * A thread wakes another one that waits for the GIL: it has it now. If it took it without being
 * woken, right after a slice, then the other one has released it, and waits until it is taken.
 */
static __always_inline void note_taker(const struct thread *holder, __u32 taker_tid)
{
	struct thread *taker = find_thread(taker_tid);

	if (!taker || !taker->slices_ns || taker->pid != holder->pid)
		return;
	divide_wait(taker, holder, taker->slices_end_ktime_ns, 0);
	note_gil(taker);
}

/* It has the GIL; the only thread known to have released it is the one that got it last. */
static __noinline int end_slices(struct thread *thread)
{
	struct process *process = find_process(thread->pid);
	struct times_key key = key_of(thread, STATE_BLOCKED);

	key.context = thread->slices_place >> 16;
	key.api = thread->slices_place;
	key.kernel_stack = thread->slices_kernel_stack;
	key.system_call = thread->slices_system_call;
	key.flags = STALL_GIL;
	if (process && process->gil_tid && process->gil_tid != thread->tid) {
		key.who_pid = thread->pid;
		key.who_tid = process->gil_tid;
		key.end_pid = thread->pid;
		key.end_tid = process->gil_tid;
		key.end_state = STATE_ON_CPU;
	}
	book(&key, thread->comm, 0, thread->slices_ns, 1);
	thread->slices_ns = 0;
	note_gil(thread);
	return 0;
}

/*
 * Book what is left of a time off the CPU that ends now, and all of it as ended. A global function,
 * so that the verifier follows it once.
 */
__weak __noinline int book_off_cpu(struct thread *thread, __u64 from_ktime_ns,
				   __u64 runnable_ktime_ns, __u64 now_ktime_ns)
{
	__u64 blocked_ns, unbooked_ns = 0;
	struct wait_link *latest;
	struct times_key key;
	bool is_gil;

	if (!thread)
		return 0;
	key = key_of_wait(thread);
	is_gil = thread->stall_flags & STALL_GIL;
	blocked_ns = runnable_ktime_ns - thread->off_ktime_ns;
	if (blocked_ns) {
		if (runnable_ktime_ns > from_ktime_ns)
			unbooked_ns = runnable_ktime_ns - from_ktime_ns;
		if (thread->slices_ns &&
		    (!is_gil || thread->off_ktime_ns - thread->slices_end_ktime_ns > SLICE_GAP_NS))
			end_slices(thread);
		if (is_gil && thread->waker_pid != thread->pid)
			keep_slice(thread, &key, runnable_ktime_ns, unbooked_ns, now_ktime_ns);
		else
			book_blocked(thread, &key, blocked_ns, unbooked_ns);
		if (is_gil && !thread->slices_ns)
			note_gil(thread);
	} else {
		thread->slices_end_ktime_ns = now_ktime_ns;
		if (!thread->slices_ns)
			keep_link(thread, 0, thread->pid, thread->tid, STATE_RUN_QUEUE);
	}
	if (now_ktime_ns <= runnable_ktime_ns)
		return 0;
	if (from_ktime_ns < runnable_ktime_ns)
		from_ktime_ns = runnable_ktime_ns;
	latest = latest_link(thread);
	latest->end_ktime_ns = now_ktime_ns;
	latest->run_queue_ns += now_ktime_ns - runnable_ktime_ns;
	/* The threads of one process are one hog. */
	key.who_pid = thread->culprit_pid;
	key.who_tid = 0;
	key.end_pid = 0;
	key.end_tid = 0;
	key.kernel_stack = -1;
	key.system_call = -1;
	key.resource = 0;
	key.state = STATE_RUN_QUEUE;
	/* No task had an idle CPU: waking it up is what took the time. */
	key.flags = thread->stall_flags & (STALL_IDLE_CPU | STALL_PREEMPTED);
	key.end_state = STATE_NONE;
	return book_wait(&thread->kept[KEPT_RUN_QUEUE], &key, thread->culprit_comm,
			 now_ktime_ns - from_ktime_ns, now_ktime_ns - runnable_ktime_ns);
}

/* A thread ends, on a CPU. */
static __always_inline void end_account(struct thread *thread)
{
	count_hits(thread);
	book_collected(thread);
	if (thread->slices_ns)
		end_slices(thread);
}

#endif
