// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where the time of watched threads goes.
 *
 * A thread is off the CPU from switch-out to switch-in. If it left because it had
 * to wait, it is *blocked* until somebody wakes it, and in the *run queue* from
 * then on. If it was preempted, it is in the run queue all the time. The two parts
 * sum to the interval. Who is to blame for the run-queue part is whoever had the
 * CPU: the next task at a preemption, the running task of the target CPU at a
 * wake-up.
 *
 * Every context switch of the host comes through here, so a thread that is not
 * watched must cost no more than one failed hash lookup each way.
 */
#define OTEL_GPU_BPF
#include "core.bpf.h"
#include "events.h"
#include "maps.bpf.h"
#include "tasks.bpf.h"
#include "aggregate.bpf.h"
#include "core_fixes.bpf.h"
#include "account.bpf.h"
#include "stalls.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_FUTEX 202
#else
#define SYSCALL_FUTEX 98
#endif

/* Where a thread waits: its kernel stack, and the system call that it is in. */
static __always_inline void note_place(__u64 *ctx, struct thread *thread, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 argument = 0;
	__s64 number = -1;
	long stack;

#if defined(__TARGET_ARCH_x86)
	bpf_probe_read_kernel(&number, sizeof(number), &regs->orig_ax);
	bpf_probe_read_kernel(&argument, sizeof(argument), &regs->di);
#else
	__s32 syscall = -1;

	bpf_probe_read_kernel(&syscall, sizeof(syscall), &regs->syscallno);
	bpf_probe_read_kernel(&argument, sizeof(argument), &regs->orig_x0);
	number = syscall;
#endif
	thread->system_call = number < 0 ? -1 : number;
	thread->argument = number < 0 ? 0 : argument;
	if (number < 0)
		thread->stall_flags |= STALL_FAULT;
	if (number == SYSCALL_FUTEX) {
		struct interpreter *interpreter = bpf_map_lookup_elem(&interpreters, &thread->pid);

		if (interpreter && interpreter->image_ktime_ns == thread->image_ktime_ns &&
		    argument >= interpreter->start && argument < interpreter->end)
			thread->stall_flags |= STALL_GIL;
	}
	stack = bpf_get_stackid(ctx, &stacks, BPF_F_FAST_STACK_CMP);
	if (stack < 0)
		count(COUNTER_LOST_STACK);
	thread->kernel_stack = stack < 0 ? -1 : stack;
}

static __always_inline void leave_cpu(__u64 *ctx, struct thread *thread, struct task_struct *prev,
				      struct task_struct *next, bool preempt, __u64 now_ktime_ns)
{
	bool voluntary = !preempt && task_state(prev) != 0;

	count(COUNTER_SCHEDULER_SWITCHES);
	notice_running(thread, prev, now_ktime_ns);
	bring_in(thread);
	thread->off_ktime_ns = now_ktime_ns;
	thread->runtime_ns = prev->se.sum_exec_runtime;
	thread->waker_pid = 0;
	thread->waker_tid = 0;
	thread->waker_comm[0] = 0;
	thread->kernel_stack = -1;
	thread->system_call = -1;
	thread->argument = 0;
	thread->stall_flags = 0;
	if (voluntary) {
		thread->switch_type = SWITCH_VOLUNTARY;
		thread->voluntary_switches++;
		thread->runnable_ktime_ns = 0;
		thread->culprit_pid = 0;
		thread->culprit_tid = 0;
		thread->culprit_comm[0] = 0;
		note_place(ctx, thread, prev);
	} else {
		thread->switch_type = SWITCH_INVOLUNTARY;
		thread->involuntary_switches++;
		thread->runnable_ktime_ns = now_ktime_ns;
		thread->culprit_pid = pid_of(next);
		thread->culprit_tid = tid_of(next);
		if (!thread->culprit_tid)
			thread->stall_flags |= STALL_IDLE_CPU;
		bpf_probe_read_kernel(thread->culprit_comm, COMM_BYTES, next->comm);
	}
}

SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	bool preempt = (bool)ctx[0];
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	__u32 prev_tid = tid_of(prev), next_tid = tid_of(next);
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct thread *thread;
	struct running *here;

	here = bpf_map_lookup_elem(&running, &cpu);
	if (here) {
		here->pid = pid_of(next);
		here->tid = next_tid;
		bpf_probe_read_kernel(here->comm, COMM_BYTES, next->comm);
	}
	thread = prev_tid ? find_thread(prev_tid) : NULL;
	if (thread)
		leave_cpu(ctx, thread, prev, next, preempt, now_ktime_ns);
	thread = next_tid ? find_thread(next_tid) : NULL;
	if (thread)
		enter_cpu(thread, next, now_ktime_ns);
	return 0;
}

/*
 * In the waker; the wake-up proper may be done by the CPU that the thread is put on. A
 * wake-up from an interrupt (a timer, a device) names whoever was interrupted: whether one
 * is served is in a variable that not every kernel lets us find.
 */
SEC("tp_btf/sched_waking")
int sched_waking(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct task_struct *waker;
	__u32 tid = tid_of(task);
	struct thread *thread = tid ? find_thread(tid) : NULL;

	if (!thread || !thread->off_ktime_ns || thread->runnable_ktime_ns)
		return 0;
	waker = bpf_get_current_task_btf();
	thread->waker_tid = tid_of(waker);
	thread->waker_pid = pid_of(waker);
	bpf_probe_read_kernel(thread->waker_comm, COMM_BYTES, waker->comm);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int sched_wakeup(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 tid = tid_of(task);
	struct thread *thread = tid ? find_thread(tid) : NULL;
	__u32 cpu;
	struct running *there;

	if (!thread || !thread->off_ktime_ns || thread->runnable_ktime_ns)
		return 0;
	thread->runnable_ktime_ns = bpf_ktime_get_ns();
	cpu = task->thread_info.cpu;
	there = bpf_map_lookup_elem(&running, &cpu);
	if (there && !there->tid)
		thread->stall_flags |= STALL_IDLE_CPU;
	if (there && there->tid && there->tid != tid) {
		thread->culprit_pid = there->pid;
		thread->culprit_tid = there->tid;
		__builtin_memcpy(thread->culprit_comm, there->comm, COMM_BYTES);
	}
	return 0;
}

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
