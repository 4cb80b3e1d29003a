/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Who a task is in the agent's pid namespace, and whether it is watched. */
#ifndef OTEL_GPU_BPF_CORE_TASKS_H
#define OTEL_GPU_BPF_CORE_TASKS_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/shares.bpf.h"
#include "events.h"

#define MAX_PID_NAMESPACE_LEVEL 6
#define NO_SLOT                                                                                    \
	(~0ULL) /* of a thread that counts its calls, and does not publish them (any more) */

/*
 * A task has one number per pid namespace that it is visible in. The agent may be
 * in a container; numbers on the wire are the ones that its own /proc shows.
 * Returns 0 for a task that the agent cannot see.
 */
static __always_inline __u32 number_in_agent_namespace(struct task_struct *task)
{
	struct pid *pid = READ_KERNEL(task, thread_pid);
	__u32 level;

	if (!pid)
		return 0;
	level = BPF_CORE_READ(pid, level);
	/* Index by hand: the kernel's array is declared with one element or none. */
	void *numbers = (void *)pid + bpf_core_field_offset(struct pid, numbers);
	for (__u32 i = 0; i <= MAX_PID_NAMESPACE_LEVEL; i++) {
		struct upid *number = numbers + i * bpf_core_type_size(struct upid);

		if (i > level)
			break;
		if (BPF_CORE_READ(number, ns, ns.inum) == settings.pid_namespace_inode)
			return BPF_CORE_READ(number, nr);
	}
	return 0;
}

static __always_inline __u32 tid_of(struct task_struct *task)
{
	if (!settings.pid_namespace_inode)
		return READ_KERNEL(task, pid);
	return number_in_agent_namespace(task);
}

static __always_inline __u32 pid_of(struct task_struct *task)
{
	if (!settings.pid_namespace_inode)
		return READ_KERNEL(task, tgid);
	return number_in_agent_namespace(READ_KERNEL(task, group_leader));
}

static __always_inline __u64 thread_pointer_of(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return READ_KERNEL(task, thread.fsbase);
#else
	return READ_KERNEL(task, thread.uw.tp_value);
#endif
}

static __always_inline struct process *find_process(__u32 pid)
{
	return bpf_map_lookup_elem(&processes, &pid);
}

/* False: another thread was first. */
static __always_inline bool forget_process(struct process *process, __u32 pid)
{
	__u32 uid = process->uid;

	end_shares(process, pid);
	if (bpf_map_delete_elem(&processes, &pid))
		return false;
	release_user_share(uid, SHARE_PROCESSES);
	return true;
}

/* A process becomes another program, and perhaps another user's, as those do that log users in. */
static __always_inline void change_program(struct process *process, __u32 pid, __u64 now_ktime_ns)
{
	__u32 uid = bpf_get_current_uid_gid();

	end_shares(process, pid);
	process->program_ktime_ns = now_ktime_ns;
	process->resources = 0;
	process->communicators = 0;
	process->flags &= ~(PROCESS_FORKED | PROCESS_HAS_COMMUNICATORS);
	__builtin_memset(&process->shares, 0, sizeof(process->shares));
	if (process->uid == uid)
		return;
	release_user_share(process->uid, SHARE_PROCESSES);
	process->uid = uid;
	/* It is watched already, also beyond the share. */
	take_user_share(uid, SHARE_PROCESSES);
}

/* Watch the current process, or a child of it. */
static __noinline struct process *watch_process(__u32 pid, __u32 flags)
{
	struct process process = {
		.program_ktime_ns = bpf_ktime_get_ns(),
		.flags = flags,
		.uid = bpf_get_current_uid_gid(),
	};
	struct process *found = NULL;

	if (take_user_share(process.uid, SHARE_PROCESSES)) {
		/* Another thread may be first; either entry will do. */
		if (bpf_map_update_elem(&processes, &pid, &process, BPF_NOEXIST))
			release_user_share(process.uid, SHARE_PROCESSES);
		found = find_process(pid);
	}
	if (!found)
		count(COUNTER_LOST_PROCESSES_FULL);
	return found;
}

static __always_inline struct thread *find_thread(__u32 tid)
{
	return bpf_map_lookup_elem(&threads, &tid);
}

/* A global function: the verifier follows it once. */
__weak __noinline int forget_thread(__u32 tid)
{
	struct thread *thread = find_thread(tid);
	struct process *process;

	if (!thread)
		return 0;
	process = find_process(thread->pid);
	/* One of the program before is not charged to this one, but to its user all the same. */
	if (process && process->program_ktime_ns == thread->program_ktime_ns)
		add_to_shares(&process->shares, SHARE_THREADS, -1);
	if (process)
		add_to_user(process->uid, SHARE_THREADS, -1);
	bpf_map_delete_elem(&threads, &tid);
	return 0;
}

/* Too large for the BPF stack, so new threads are copied from here. */
static const struct thread new_thread = {};

/*
 * The device of a thread that selects none: the first one. The selection of a thread that existed
 * before the agent is unknown.
 */
static __always_inline __s32 device_at_start(struct task_struct *task)
{
	return READ_KERNEL(task, start_boottime) > settings.started_boot_ns ? 0 : -1;
}

static __noinline struct thread *watch_thread(struct process *process, struct task_struct *task,
					      __u32 pid, __u32 tid)
{
	struct thread *thread = NULL;

	/* Of the program that the process was before, or whose end was not seen. */
	forget_thread(tid);
	if (take_share(process, SHARE_THREADS)) {
		bpf_map_update_elem(&threads, &tid, &new_thread, BPF_ANY);
		thread = find_thread(tid);
		if (!thread)
			release_share(process, SHARE_THREADS);
	}
	if (!thread) {
		count(COUNTER_LOST_THREADS_FULL);
		return NULL;
	}
	thread->program_ktime_ns = process->program_ktime_ns;
	thread->pid = pid;
	thread->tid = tid;
	thread->device = device_at_start(task);
	thread->process_flags = process->flags;
	thread->booked = bpf_ktime_get_ns();
	thread->links_ktime_ns = thread->booked;
	/* A random start: the first calls of many short threads must not all be samples. */
	if (settings.sample_one_in)
		thread->until_sample = bpf_get_prandom_u32() % settings.sample_one_in;
	return thread;
}

/* The first probe that a thread meets which is not known yet, or is of a process under watch_all. */
static __always_inline struct thread *meet_thread(struct task_struct *task, __u32 tid)
{
	__u32 pid = pid_of(task);
	struct process *process = find_process(pid);

	if (!process && settings.watch_all && pid && pid != settings.agent_pid)
		process = watch_process(pid, settings.default_process_flags);
	return process ? watch_thread(process, task, pid, tid) : NULL;
}

/* Probe hits are counted in the thread, and brought in when it leaves the CPU. */
static __always_inline void count_hits(struct thread *thread)
{
	if (thread->entries)
		count_many(COUNTER_PROBE_ENTRIES, thread->entries);
	if (thread->returns)
		count_many(COUNTER_PROBE_RETURNS, thread->returns);
	thread->entries = 0;
	thread->returns = 0;
}

static __always_inline void fill_header(struct record_header *header, enum record_kind kind,
					__u32 size, __u64 ktime_ns, __u64 program_ktime_ns,
					__u32 pid, __u32 tid)
{
	header->kind = kind;
	header->flags = 0;
	header->size = size;
	header->ktime_ns = ktime_ns;
	header->program_ktime_ns = program_ktime_ns;
	header->pid = pid;
	header->tid = tid;
}

/* More than a record takes up together with the samples and code objects before it. */
#define WAKEUP_WINDOW_BYTES 65536

/*
 * Wake the agent only when much is pending: it reads by itself several times a second. What
 * comes when it has been woken does not wake it again, as that takes longer than all else.
 */
static __always_inline __u64 wakeup_flags(void)
{
	__u64 pending_bytes = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	if (pending_bytes >= settings.wakeup_bytes &&
	    pending_bytes < settings.wakeup_bytes + WAKEUP_WINDOW_BYTES)
		return BPF_RB_FORCE_WAKEUP;
	return BPF_RB_NO_WAKEUP;
}

/*
 * The time since something that a program may have dated: its clock may be a little ahead of ours,
 * and it may publish what it likes.
 */
static __always_inline __u64 since(__u64 start_ktime_ns, __u64 now_ktime_ns)
{
	return now_ktime_ns > start_ktime_ns ? now_ktime_ns - start_ktime_ns : 0;
}

#define ATOMIC_TRIES 8

/*
 * Raise *slot to value. Each failed try means that another CPU raised it. This and admit_to are
 * global functions, so that the verifier follows their tries once, and not in each place.
 */
__weak __noinline int try_to_raise(__u64 *slot, __u64 value)
{
	for (int i = 0; i < ATOMIC_TRIES && slot; i++) {
		__u64 seen = *(volatile __u64 *)slot;

		if (value <= seen || __sync_val_compare_and_swap(slot, seen, value) == seen)
			break;
	}
	return 0;
}

static __always_inline void raise_to(__u64 *slot, __u64 value)
{
	if (value > *(volatile __u64 *)slot)
		try_to_raise(slot, value);
}

/*
 * A rate of records, as a leaky bucket in one word: the time at which the next record would
 * arrive if they came evenly spaced. They may be ahead of it by a burst.
 */
__weak __noinline int admit_to(__u64 *slot, __u64 now_ktime_ns, __u64 interval_ns, __u64 burst_ns)
{
	if (!slot)
		return false;
	for (int i = 0; i < ATOMIC_TRIES; i++) {
		__u64 seen = *(volatile __u64 *)slot;
		__u64 arrival = seen > now_ktime_ns ? seen : now_ktime_ns;

		if (arrival - now_ktime_ns > burst_ns)
			return false;
		if (__sync_val_compare_and_swap(slot, seen, arrival + interval_ns) == seen)
			return true;
	}
	/* Crowded: pay without looking again. */
	__sync_fetch_and_add(slot, interval_ns);
	return true;
}

/*
 * The rate of spans of a process, and that of all processes of its user. Stalled calls are limited by
 * the second alone, and calls whose children were sent by none. A global function, so that the
 * verifier follows it once.
 */
__weak __noinline int admit(struct process *process, __u32 choices, __u64 now_ktime_ns)
{
	struct shares *user;

	if (!process)
		return true; /* it ends this moment */
	if (!admit_to(&process->span_arrival_ktime_ns, now_ktime_ns, settings.span_interval_ns,
		      settings.span_burst_ns) &&
	    !(choices & (CHOICE_PARENT | CHOICE_STALLED)))
		return false;
	user = bpf_map_lookup_elem(&user_shares, &process->uid);
	if (!user || admit_to(&user->span_arrival_ktime_ns, now_ktime_ns,
			      settings.span_interval_ns / USER_SPANS, settings.span_burst_ns))
		return true;
	if (choices & CHOICE_PARENT)
		return true;
	__sync_fetch_and_add(&process->shares.refused[SHARE_SPANS], 1);
	return false;
}

#endif
