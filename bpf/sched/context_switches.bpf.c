// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where the time of watched threads goes.
 *
 * A thread is off the CPU from switch-out to switch-in. If it left because it had
 * to wait, it is *blocked* until it is woken, and in the *run queue* from
 * then on. If it was preempted, it is in the run queue all the time. The two parts
 * sum to the interval. The culprit of the run-queue part is the task that had the
 * CPU: the next task at a preemption; after a wake-up, the task that ran on the thread's CPU
 * when it was woken. If it runs on another CPU then, the task that had that one most of the time.
 *
 * Every context switch of the host comes through here, so a thread that is not
 * watched must cost no more than one failed hash lookup each way. A program that does
 * nothing at all takes longer than that, so there are only two: sched_wakeup,
 * which comes after sched_waking, has the CPU that the thread is put on.
 */
#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "cuda/call_probes.bpf.h"
#include "cuda/preload.bpf.h"
#include "events.h"
#include "sched/kernel_stacks.bpf.h"
#include "sched/resources.bpf.h"
#include "sched/sockets.bpf.h"
#include "sched/stalls.bpf.h"
#include "sched/time_accounting.bpf.h"
#include "sched/waits.bpf.h"

#if defined(__TARGET_ARCH_x86)
#define SYSCALL_FUTEX 202
#else
#define SYSCALL_FUTEX 98
#endif

#define MAX_CPUS	   1024
#define JOBCTL_TRAP_FREEZE (1UL << 23) /* the kernel's; since Linux 5.2 */
#define STOPPED_STATES	   12	       /* the kernel's __TASK_STOPPED and __TASK_TRACED */
#define SIGNAL_GROUP_EXIT  4	       /* the kernel's */

/* CPU -> who runs there, each in a cache line of its own. */
static struct {
	char comm[COMM_BYTES];
	__u32 pid;
	__u32 tid;
	__u64 timers; /* that are being served */
	__u64 padding[4];
} running[MAX_CPUS];

/* The system call that a thread waits in. */
static __always_inline void note_place(struct thread *thread, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 argument, second_argument;
	__s64 number;

#if defined(__TARGET_ARCH_x86)
	number = regs->orig_ax;
	argument = regs->di;
	second_argument = regs->si;
#else
	number = regs->syscallno;
	argument = regs->orig_x0;
	second_argument = regs->user_regs.regs[1];
#endif
	thread->system_call = number < 0 ? -1 : number;
	thread->argument = number < 0 ? 0 : argument;
	note_descriptor(thread, second_argument);
	if (number < 0)
		thread->stall_flags |= STALL_FAULT;
	if (number == SYSCALL_FUTEX) {
		struct interpreter *interpreter = bpf_map_lookup_elem(&interpreters, &thread->pid);

		if (interpreter && interpreter->program_ktime_ns == thread->program_ktime_ns &&
		    argument >= interpreter->start && argument < interpreter->end)
			thread->stall_flags |= STALL_GIL;
	}
}

static __always_inline void clear_culprit(struct thread *thread)
{
	thread->culprit_pid = 0;
	thread->culprit_tid = 0;
	thread->culprit_comm[0] = 0;
}

/* Idle CPUs have tasks with number 0. */
static __always_inline void set_culprit(struct thread *thread, struct task_struct *task)
{
	thread->culprit_pid = pid_of(task);
	thread->culprit_tid = tid_of(task);
	thread->culprit_comm[0] = 0;
	if (thread->culprit_tid)
		READ_COMM(thread->culprit_comm, task);
}

/* Returns when: later than now where the account was read a moment later. */
static __always_inline __u64 leave_cpu(struct thread *thread, struct task_struct *prev,
				       struct task_struct *next, bool preempt, __u64 now_ktime_ns)
{
	bool voluntary = !preempt && task_state(prev) != 0;

	count(COUNTER_SCHEDULER_SWITCHES);
	notice_running(thread, prev, now_ktime_ns);
	sync_preload(thread);
	READ_COMM(thread->comm, prev);
	thread->runnable_ktime_ns = 0;
	now_ktime_ns = pass_on_cpu(thread, now_ktime_ns, OFF_CPU);
	count_hits(thread);
#if defined(OTEL_GPU_NO_BTF)
	book_cpu_times(thread);
#endif
	thread->off_ktime_ns = now_ktime_ns;
	thread->runtime_ns = READ_KERNEL(prev, se.sum_exec_runtime);
	thread->waker_pid = 0;
	thread->waker_tid = 0;
	thread->waker_comm[0] = 0;
	thread->kernel_stack = -1;
	thread->system_call = -1;
	thread->argument = 0;
	thread->descriptor = -1;
	thread->resource = 0;
	thread->shared_resource = 0;
	thread->stall_flags = 0;
	if (voluntary) {
		thread->switch_type = SWITCH_VOLUNTARY;
		thread->voluntary_switches++;
		clear_culprit(thread);
		note_place(thread, prev);
		if (task_state(prev) & STOPPED_STATES)
			thread->stall_flags |= STALL_STOPPED;
#if !defined(OTEL_GPU_NO_BTF)
		if (READ_KERNEL(prev, jobctl) & JOBCTL_TRAP_FREEZE)
			thread->stall_flags |= STALL_FROZEN;
		thread->waits_for_io = BPF_CORE_READ_BITFIELD(prev, in_iowait);
#endif
	} else {
		thread->switch_type = SWITCH_INVOLUNTARY;
		thread->involuntary_switches++;
		thread->runnable_ktime_ns = now_ktime_ns;
		thread->stall_flags = STALL_PREEMPTED;
		set_culprit(thread, next);
		if (!thread->culprit_tid)
			thread->stall_flags |= STALL_IDLE_CPU;
		if (is_throttled(prev))
			thread->stall_flags |= STALL_THROTTLED;
	}
	sample_stall(thread, prev, now_ktime_ns);
	note_context(thread);
	return now_ktime_ns;
}

/*
 * A new thread runs for the first time: it has waited for a CPU since it was made. A function, so that
 * its key is not on the BPF stack of a context switch, which calls deeper ones.
 */
__weak __noinline int begin_running(struct thread *thread, __u64 now_ktime_ns)
{
	struct times_key key;
	__u64 from_ktime_ns;

	if (!thread || !(thread->booked & OFF_CPU))
		return 0;
	key = key_of(thread, STATE_RUN_QUEUE);
	from_ktime_ns = claim(thread, &now_ktime_ns, 0);
	key.context = CONTEXT_OTHER;
	book(&key, thread->comm, now_ktime_ns - from_ktime_ns,
	     now_ktime_ns - thread->runnable_ktime_ns, 1);
	return 0;
}

/*
 * After a wake-up: the task that kept the thread waiting for the CPU that it gets now. The task
 * that had the CPU that it was woken on is known. The thread may have been put on another CPU at
 * once, or later. There the culprit is the last task to run, if it ran for most of the wait: the
 * scheduler knows for how long.
 */
static __always_inline void note_culprit(struct thread *thread, struct task_struct *prev, __u32 cpu,
					 __u64 now_ktime_ns)
{
	__u64 wait_ns = now_ktime_ns - thread->runnable_ktime_ns;

	if (thread->switch_type != SWITCH_VOLUNTARY || !thread->runnable_ktime_ns)
		return;
	if (thread->woken_cpu == cpu && thread->culprit_tid)
		return;
	set_culprit(thread, prev);
	if (!thread->culprit_tid) {
		thread->stall_flags |= STALL_IDLE_CPU;
		return;
	}
	if (READ_KERNEL(prev, se.sum_exec_runtime) - READ_KERNEL(prev, se.prev_sum_exec_runtime) <
	    wait_ns / 2)
		clear_culprit(thread);
}

static __always_inline int on_switch(__u64 *ctx, bool in_place)
{
	bool preempt = (bool)ctx[0];
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	__u32 prev_tid = tid_of(prev), next_tid = tid_of(next);
	__u64 now_ktime_ns = 0;
	__u32 cpu = bpf_get_smp_processor_id();
	struct thread *thread;

	READ_COMM(running[cpu % MAX_CPUS].comm, next);
	running[cpu % MAX_CPUS].pid = pid_of(next);
	running[cpu % MAX_CPUS].tid = next_tid;
	/* Should the end of one not have been seen: none lasts longer than this. */
	running[cpu % MAX_CPUS].timers = 0;
	thread = prev_tid ? find_thread(prev_tid) : NULL;
	if (thread) {
		now_ktime_ns = bpf_ktime_get_ns();
		now_ktime_ns = leave_cpu(thread, prev, next, preempt, now_ktime_ns);
		note_stack_early(thread, ctx);
	}
	thread = next_tid ? find_thread(next_tid) : NULL;
	if (thread && thread->off_ktime_ns) {
		/* One moment for both: what the one loses, the other gains. */
		if (!now_ktime_ns)
			now_ktime_ns = bpf_ktime_get_ns();
		note_stack(thread, next, now_ktime_ns, in_place);
		note_resource(thread, next, now_ktime_ns, in_place);
		note_culprit(thread, prev, cpu, now_ktime_ns);
		enter_cpu(thread, now_ktime_ns);
	} else if (thread) {
		begin_running(thread, bpf_ktime_get_ns());
	}
	return 0;
}

/* The agent loads one of these two: the other one where stacks can be read in place. */
SEC(TRACEPOINT "sched_switch")
int sched_switch(__u64 *ctx)
{
	return on_switch(ctx, false);
}

SEC(TRACEPOINT "sched_switch")
int sched_switch_in_place(__u64 *ctx)
{
	return on_switch(ctx, true);
}

/*
 * A timer's wake-up has no waker: the interrupted thread has nothing to do with it. Only
 * timers of this kind end sleeps and the time limits of waits.
 */
SEC(TRACEPOINT "hrtimer_expire_entry")
int timer_begins(__u64 *ctx)
{
	running[bpf_get_smp_processor_id() % MAX_CPUS].timers++;
	return 0;
}

SEC(TRACEPOINT "hrtimer_expire_exit")
int timer_ends(__u64 *ctx)
{
	__u32 cpu = bpf_get_smp_processor_id() % MAX_CPUS;

	/* One that had begun before this was attached. */
	if (running[cpu].timers)
		running[cpu].timers--;
	return 0;
}

/*
 * Whether a task is woken only to end. The process that killed it is not what it waited for: the wait
 * would have gone on.
 */
static __always_inline bool is_killed(struct task_struct *task, bool in_place)
{
	return LOAD(TYPED(task, struct task_struct), signal, flags) & SIGNAL_GROUP_EXIT;
}

/*
 * In the waker: another thread can put the thread on a CPU. A wake-up from a device's
 * interrupt names the interrupted thread: whether one is served is in a variable that not
 * every kernel lets us find.
 */
static __always_inline int on_waking(__u64 *ctx, bool in_place)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 tid = tid_of(task);
	struct thread *thread = tid ? find_thread(tid) : NULL;
	struct task_struct *waker;
	__u32 cpu;

	if (!thread || !thread->off_ktime_ns || thread->runnable_ktime_ns)
		return 0;
	thread->runnable_ktime_ns = bpf_ktime_get_ns();
	waker = bpf_get_current_task_btf();
	cpu = bpf_get_smp_processor_id() % MAX_CPUS;
	if (!running[cpu].timers && !is_killed(task, in_place)) {
		thread->waker_tid = tid_of(waker);
		thread->waker_pid = pid_of(waker);
		if (thread->waker_pid == settings.agent_pid)
			thread->stall_flags |= STALL_AGENT;
		READ_COMM(thread->waker_comm, waker);
	}
	if (thread->stall_flags & STALL_GIL)
		note_taker(thread, thread->waker_tid);
	thread->woken_cpu = cpu_of(task);
	cpu = thread->woken_cpu % MAX_CPUS;
	thread->culprit_pid = running[cpu].pid;
	thread->culprit_tid = running[cpu].tid;
	__builtin_memcpy(thread->culprit_comm, running[cpu].comm, COMM_BYTES);
	if (!thread->culprit_tid)
		thread->culprit_comm[0] = 0;
	return 0;
}

/* As of the two programs at a switch. */
SEC(TRACEPOINT "sched_waking")
int sched_waking(__u64 *ctx)
{
	return on_waking(ctx, false);
}

SEC(TRACEPOINT "sched_waking")
int sched_waking_in_place(__u64 *ctx)
{
	return on_waking(ctx, true);
}

#if !defined(OTEL_GPU_NO_BTF)

/*
 * The programs of CUDA calls, where many uprobes are attached at once. They are here since what reads
 * in place must be in one file: bpftool 7.1 cannot link two that name the same function of the kernel.
 */
SEC("uprobe")
int enter_call_in_place(struct pt_regs *ctx)
{
	return enter(ctx, true);
}

SEC("uretprobe")
int exit_call_in_place(struct pt_regs *ctx)
{
	return leave(ctx, true);
}

/*
 * A segment had to be sent again to a host that a watched thread waited for. Counted by peer: which
 * thread sent it, the kernel does not know any more.
 */
SEC(TRACEPOINT "tcp_retransmit_skb")
int tcp_retransmit_skb(__u64 *ctx)
{
	struct sock *sk = (struct sock *)ctx[0];
	__u32 zero = 0, id;
	/* A context switch, which uses the same buffer, does not come in between. */
	struct resource *scratch = bpf_map_lookup_elem(&resource_scratch, &zero), *known;

	if (!scratch)
		return 0;
	clear_scratch(scratch);
	scratch->identity.family = READ_KERNEL(sk, __sk_common.skc_family);
	scratch->identity.socket_type = SOCK_STREAM;
	read_addresses(scratch, sk, true);
	if (!scratch->identity.is_remote)
		return 0;
	id = id_of(&scratch->identity);
	known = bpf_map_lookup_elem(&resources, &id);
	if (known && is_same(&known->identity, &scratch->identity))
		__sync_fetch_and_add(&known->retransmits, 1);
	return 0;
}

#endif

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
