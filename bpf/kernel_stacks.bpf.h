/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where in the kernel a thread waited, as the id of a stack.
 *
 * A stack is looked at when the thread is about to run again: it has not moved
 * meanwhile, and then it is known how long the wait was. Unwinding takes about as long
 * as all else that is done at a context switch, so short waits go without, and are told
 * apart by their system call.
 */
#ifndef OTEL_GPU_KERNEL_STACKS_BPF_H
#define OTEL_GPU_KERNEL_STACKS_BPF_H

#define STACK_FLOOR_NS 20000

/* Negative: none. An id is a hash of the stack, and compared: it never means another. */
static __noinline long find_kernel_stack(struct task_struct *task)
{
	__u32 zero = 0, id = 0;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero), *known;
	__u64 hash = 0;

	if (!walk)
		return -1;
	__builtin_memset(walk, 0, sizeof(*walk));
	if (bpf_get_task_stack(task, walk, sizeof(*walk), 0) <= 0)
		return -1;
	for (int i = 0; i < MAX_STACK_FRAMES && walk->addresses[i]; i++)
		hash = (hash ^ walk->addresses[i]) * 0x9e3779b97f4a7c15ULL;
	id = hash >> 33;
	known = bpf_map_lookup_elem(&stacks, &id);
	if (!known) {
		/* BPF_NOEXIST: another CPU may have found the same. */
		bpf_map_update_elem(&stacks, &id, walk, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&stacks, &id);
	}
	if (!known)
		return -1;
	for (int i = 0; i < MAX_STACK_FRAMES; i++) {
		if (known->addresses[i] != walk->addresses[i])
			return -1;
		if (!walk->addresses[i])
			break;
	}
	return id;
}

/* The thread is about to run on this CPU. */
static __always_inline void note_stack(struct thread *thread, struct task_struct *task,
				       __u64 now_ktime_ns)
{
	long stack;

	if (thread->switch_type != SWITCH_VOLUNTARY ||
	    now_ktime_ns - thread->off_ktime_ns < STACK_FLOOR_NS)
		return;
	stack = find_kernel_stack(task);
	if (stack < 0)
		count(COUNTER_LOST_STACK);
	thread->kernel_stack = stack < 0 ? -1 : stack;
}

#endif
