// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The door: a library in the program that counts hot calls without a trap. At the first call of
 * each thread it calls an empty function, at which this is attached: from then on, nothing else
 * counts what it counts.
 */
#define OTEL_GPU_BPF
#include "core.bpf.h"
#include "events.h"
#include "maps.bpf.h"
#include "tasks.bpf.h"
#include "aggregate.bpf.h"
#include "times.bpf.h"
#include "chains.bpf.h"
#include "thread_context.bpf.h"
#include "account.bpf.h"
#include "door.bpf.h"

#define SIGSTOP 19

/* The agent has to open what the program counts in, before that is gone. */
static __always_inline void report_door(struct thread *thread, __u64 memory)
{
	struct door_record *record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);
	struct process *process = find_process(thread->pid);

	if (!record) {
		/* The agent would not let it go on again, so it must not stop either. */
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_DOOR, sizeof(*record), bpf_ktime_get_ns(),
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->memory = memory;
	record->stopped = process && process->flags & PROCESS_STOP_ON_LOAD &&
			  bpf_send_signal_thread(SIGSTOP) == 0;
	record->padding = 0;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/* Whether calls would not be shown, as the agent has not said yet what it wants to see. */
static __always_inline bool comes_too_early(const struct thread *thread, __u64 memory)
{
	const struct process *process = find_process(thread->pid);
	__u32 generation;

	return process && process->flags & PROCESS_STOP_ON_LOAD &&
	       !bpf_probe_read_user(&generation, sizeof(generation),
				    (const void *)(memory + DOOR_CONTROL_OFFSET)) &&
	       !generation;
}

/*
 * Arguments: the thread's slot, if there was one for it, and the memory, if there is any. What it has
 * published in another one is seen for the last time, as that will be another thread's.
 */
SEC("uprobe")
int enter_door(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = tid_of(task), pid;
	struct thread *thread = find_thread(tid);
	__u64 memory = PT_REGS_PARM2(ctx);
	const __u64 *known_ktime_ns;
	bool is_known;

	if (!thread)
		thread = meet_thread(task, tid);
	if (!thread)
		return 0;
	/* Until now it was in no call that the door knows of. */
	if (!thread->door_slot)
		pass_on_cpu(thread, bpf_ktime_get_ns(), 0);
	sync_door(thread);
	thread->door_slot = PT_REGS_PARM1(ctx);
	if (!memory) {
		report_door(thread, 0);
		return 0;
	}
	if (!thread->door_slot)
		thread->door_slot = NO_SLOT;
	pid = thread->pid;
	known_ktime_ns = bpf_map_lookup_elem(&doors, &pid);
	is_known = known_ktime_ns && (*known_ktime_ns & ~DOOR_REFUSED) == thread->image_ktime_ns;
	/* To stop a process takes a moment, in which its other threads go on. */
	if (is_known && (*known_ktime_ns & DOOR_REFUSED || !comes_too_early(thread, memory)))
		return 0;
	if (!is_known && bpf_map_update_elem(&doors, &pid, &thread->image_ktime_ns, BPF_ANY)) {
		count(COUNTER_LOST_PROCESSES_FULL);
		return 0;
	}
	report_door(thread, memory);
	return 0;
}
