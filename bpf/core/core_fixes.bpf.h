/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Kernel differences, each citing the commit that made it. */
#ifndef OTEL_GPU_BPF_CORE_CORE_FIXES_H
#define OTEL_GPU_BPF_CORE_CORE_FIXES_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"

/*
 * Since Linux kernel commit 2f064a59a11f ("sched: Change task_struct::state") (in
 * v5.14), the task state is named "__state". Before that, it is named "state".
 */
struct task_struct___since_5_14 {
	unsigned int __state;
} __attribute__((preserve_access_index));

struct task_struct___before_5_14 {
	volatile long state;
} __attribute__((preserve_access_index));

/*
 * Non-zero for a task that leaves the CPU because it must wait. A waker that races
 * with the switch can only turn it into TASK_WAKING, which is not zero either.
 */
static __always_inline __u64 task_state(struct task_struct *task)
{
	struct task_struct___since_5_14 *task_new = (void *)task;
	struct task_struct___before_5_14 *task_old = (void *)task;

	if (bpf_core_field_exists(task_new->__state))
		return READ_KERNEL(task_new, __state);
	return READ_KERNEL(task_old, state);
}

/*
 * Since Linux kernel commit e1fad12dcb66 ("sched/fair: Switch to task based throttle model")
 * (in v6.18), a task that a CPU quota throttles is marked, and leaves the CPU by
 * itself where it would return to user space. Before that, its whole queue is taken away.
 */
struct task_struct___since_6_18 {
	bool throttled;
} __attribute__((preserve_access_index));

static __always_inline bool is_throttled(struct task_struct *task)
{
	struct task_struct___since_6_18 *task_new = (void *)task;

	return bpf_core_field_exists(task_new->throttled) && READ_KERNEL(task_new, throttled);
}

/*
 * Since Linux kernel commit bcf9033e5449 ("sched: move CPU field back into thread_info if
 * THREAD_INFO_IN_TASK=y") (in v5.16), the CPU is in "thread_info". Before that, it is in
 * the task itself, and some kernels have another "cpu" in "thread_info", without a meaning.
 */
struct task_struct___before_5_16 {
	unsigned int cpu;
} __attribute__((preserve_access_index));

/* The CPU that a task is on, or was on last. */
static __always_inline __u32 cpu_of(struct task_struct *task)
{
	struct task_struct___before_5_16 *task_old = (void *)task;

	if (bpf_core_field_exists(task_old->cpu))
		return READ_KERNEL(task_old, cpu);
	return READ_KERNEL(task, thread_info.cpu);
}

/*
 * Since Linux kernel commit e6f2dd0f8067 ("bpf: Add bpf_loop helper") (in v5.17), a loop can
 * be a call, and the verifier looks at its body once. Before that, it walks each step.
 */
#define HAS_BPF_LOOP bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)

/* Call a step with 0, 1, 2, ... and what is being worked on, until it returns 1. */
#define REPEAT(times, step, work)                                                                  \
	do {                                                                                       \
		if (HAS_BPF_LOOP) {                                                                \
			bpf_loop(times, step, work, 0);                                            \
		} else {                                                                           \
			for (__u32 number = 0; number < (times); number++) {                       \
				if (step(number, work))                                            \
					break;                                                     \
			}                                                                          \
		}                                                                                  \
	} while (0)

#if CAN_RECALL_STACKS

static __always_inline __u64 word_at(__u64 address)
{
	struct pt_regs *words =
		bpf_rdonly_cast((void *)address, bpf_core_type_id_kernel(struct pt_regs));

	return words->r15; /* the first of them */
}

#endif

#endif
