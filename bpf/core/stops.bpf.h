/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Stopping a process until its probes stand.
 *
 * No way to hold a thread is invisible: SIGSTOP stops the process for its debugger, and
 * for a parent that asks for stopped children. A debugger reports it to its user, a shell with job
 * control goes on as if the child had ended, su(1) stops itself. Such a process is not stopped, and
 * may make calls before its probes stand.
 */
#ifndef OTEL_GPU_BPF_CORE_STOPS_H
#define OTEL_GPU_BPF_CORE_STOPS_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define SIGSTOP		    19
#define WUNTRACED	    2
#define PIDTYPE_PGID	    2
#define PIDTYPE_SID	    3
#define MAX_WAITS_LOOKED_AT 4

/* No header has what a wait for children is: it is private to the kernel's exit.c. */
#if !defined(OTEL_GPU_NO_BTF)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct wait_queue_entry {
	struct {
		void *next;
	} entry;
};

struct wait_opts {
	int wo_flags;
	struct wait_queue_entry child_wait;
};

#pragma clang attribute pop

#endif

/* The process group or the session of a task, as an address. */
static __always_inline __u64 group_of(struct task_struct *task, __u32 type)
{
	/* Index by hand: the array that is described can have one element. */
	const void *pids = (const void *)READ_SELDOM(task, signal) +
			   bpf_core_field_offset(struct signal_struct, pids);
	__u64 group = 0;

	bpf_probe_read_kernel(&group, sizeof(group), pids + type * sizeof(void *));
	return group;
}

/* Does a thread of this process wait for children, also for those that stop? */
static __always_inline bool awaits_stops(struct task_struct *task)
{
#if !defined(OTEL_GPU_NO_BTF)
	struct signal_struct *signal = READ_SELDOM(task, signal);
	const void *head, *entry;

	if (!bpf_core_type_exists(struct wait_opts))
		return false;
	head = (const void *)signal +
	       bpf_core_field_offset(struct signal_struct, wait_chldexit.head);
	entry = BPF_CORE_READ(signal, wait_chldexit.head.next);
	for (int i = 0; i < MAX_WAITS_LOOKED_AT && entry && entry != head; i++) {
		const struct wait_queue_entry *queued =
			entry - bpf_core_field_offset(struct wait_queue_entry, entry);
		const struct wait_opts *wait =
			(const void *)queued - bpf_core_field_offset(struct wait_opts, child_wait);

		if (BPF_CORE_READ(wait, wo_flags) & WUNTRACED)
			return true;
		entry = BPF_CORE_READ(queued, entry.next);
	}
#endif
	return false;
}

/* Would anybody but us see it, if this process was stopped? */
static __noinline int stop_is_seen(struct task_struct *task)
{
	struct task_struct *parent;
	__u64 session;

	if (READ_KERNEL(task, ptrace))
		return 1;
	parent = READ_KERNEL(task, real_parent);
	if (pid_of(parent) == settings.agent_pid)
		return 0;
	if (awaits_stops(parent))
		return 1;
	session = group_of(task, PIDTYPE_SID);
	/* A shell with job control has each job in a group of its own. */
	if (session == group_of(parent, PIDTYPE_SID))
		return group_of(task, PIDTYPE_PGID) != group_of(parent, PIDTYPE_PGID);
	/* The first process of a terminal is looked after by who opened that, such as script(1). */
	return READ_SELDOM(task, signal, leader) && READ_SELDOM(task, signal, tty);
}

/*
 * Stop the current process, if it shall be stopped at all. Returns whether it will be.
 *
 * That it comes here proves that it went on from its last stop, also where it stands still again when
 * the agent reads the record of that.
 */
static __always_inline bool stop_for_probes(struct task_struct *task, struct process *process,
					    const struct record_header *header)
{
	if (!process || !(process->flags & PROCESS_STOP_ON_LOAD) || stop_is_seen(task))
		return false;
	process->stopped_ktime_ns = header->ktime_ns;
	process->stopped_tid = header->tid;
	return bpf_send_signal_thread(SIGSTOP) == 0;
}

#endif
