// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Time that passes: before the agent reads the account, it lets this book of every thread what
 * passed since its time was last booked. So a wait, or a call that spins, is in the account
 * before it ends.
 *
 * Only in the object for kernels with BTF: what iterates over tasks needs it.
 */
#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/contexts.bpf.h"
#include "sched/stack_ids.bpf.h"
#include "sched/time_accounting.bpf.h"

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

static __always_inline __s32 kernel_stack_of(struct task_struct *task)
{
	__u32 buffer = ITERATOR_BUFFER, frames;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &buffer);
	__s64 stack;

	if (!walk)
		return -1;
	frames = unwind(task, walk);
	stack = frames ? find_known_stack(frames, buffer) : -1;
	return stack < 0 ? -1 : stack;
}

/* Time of a thread that waits. Who will end that is not known. */
static __always_inline void book_waiting(struct thread *thread, struct task_struct *task,
					 __u64 from_ktime_ns, __u64 now_ktime_ns)
{
	__u64 runnable_ktime_ns = thread->runnable_ktime_ns;
	struct times_key key = key_of_wait(thread);

	if (!runnable_ktime_ns || runnable_ktime_ns > now_ktime_ns)
		runnable_ktime_ns = now_ktime_ns;
	if (runnable_ktime_ns > from_ktime_ns) {
		if (key.kernel_stack < 0 && now_ktime_ns - thread->off_ktime_ns >= STACK_FLOOR_NS)
			key.kernel_stack = kernel_stack_of(task);
		book(&key, thread->comm, runnable_ktime_ns - from_ktime_ns, 0, 0);
		from_ktime_ns = runnable_ktime_ns;
	}
	if (from_ktime_ns >= now_ktime_ns)
		return;
	key = key_of(thread, STATE_RUN_QUEUE);
	key.context = context_of(thread);
	key.api = api_of(thread);
	key.flags = thread->stall_flags & STALL_PREEMPTED;
	book(&key, thread->comm, now_ktime_ns - from_ktime_ns, 0, 0);
}

SEC("iter/task")
int book_passing(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	__u64 seen, from_ktime_ns, now_ktime_ns;
	struct thread *thread;
	__u32 tid;

	if (!task)
		return 0;
	tid = tid_of(task);
	thread = tid ? find_thread(tid) : NULL;
	if (!thread)
		return 0;
	seen = *(volatile __u64 *)&thread->booked;
	now_ktime_ns = bpf_ktime_get_ns();
	/* A thread that was not seen yet: it may have waited since before it was watched. */
	if (!seen && task_state(task))
		return 0;
	from_ktime_ns = seen & ~OFF_CPU;
	if (from_ktime_ns < now_ktime_ns &&
	    __sync_val_compare_and_swap(&thread->booked, seen, now_ktime_ns | (seen & OFF_CPU)) ==
		    seen) {
		if (!seen)
			thread->links_ktime_ns = now_ktime_ns;
		else if (seen & OFF_CPU)
			book_waiting(thread, task, from_ktime_ns, now_ktime_ns);
		else
			book_on_cpu(thread, cpu_place_of(thread), now_ktime_ns - from_ktime_ns, 0);
	}
	book_collected(thread);
	return 0;
}
