// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Whether the kernel's types have the layout of its headers: only in the object for kernels
 * without BTF.
 *
 * Headers can be of another build than the kernel that runs. What the programs would read
 * then is anything. So before they are attached, the agent runs this on one of its own
 * threads, and compares the result with what it knows of itself.
 */
#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "events.h"

#define COMM_WORDS	     (COMM_BYTES / 8)
#define MAX_PTHREAD_BYTES    4096
#define MAX_RUNTIME_AHEAD_NS 10000000000ULL

/* What the agent knows of itself, as the context. */
struct expected {
	__u64 start_stack;
	__u64 thread_pointer;
	__u64 thread_runtime_ns; /* a moment ago */
	__u64 threads;
};

static __always_inline bool has_name(struct task_struct *task)
{
	__u64 read[COMM_WORDS] = {}, stated[COMM_WORDS] = {};

	bpf_probe_read_kernel(read, sizeof(read), task->comm);
	bpf_get_current_comm(stated, sizeof(stated));
	return read[0] == stated[0] && read[1] == stated[1];
}

static __always_inline __u64 thread_pointer(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	return READ_KERNEL(task, thread.fsbase);
#else
	return READ_KERNEL(task, thread.uw.tp_value);
#endif
}

static __always_inline bool has_user_registers(struct task_struct *task)
{
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);

#if defined(__TARGET_ARCH_x86)
	return (registers->cs & 3) == 3 && registers->ip;
#else
	return !(registers->user_regs.pstate & 15) && registers->user_regs.pc;
#endif
}

/* Returns 0, or the number of the first check that fails; the agent has their names. */
SEC("raw_tp")
int check_layout(struct expected *expected)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 ids = bpf_get_current_pid_tgid(), runtime_ns, started_ns;
	int pid = (__u32)ids, tgid = ids >> 32;

	if (READ_KERNEL(task, pid) != pid || READ_KERNEL(task, tgid) != tgid)
		return 1;
	if (!has_name(task))
		return 2;
	if (READ_KERNEL(task, group_leader, pid) != tgid)
		return 3;
	if (READ_KERNEL(task, thread_pid, numbers[0].nr) != pid)
		return 4;
	if (READ_KERNEL(task, mm, start_stack) != expected->start_stack)
		return 5;
	if (READ_KERNEL(task, signal, live.counter) != (int)expected->threads)
		return 6;
	started_ns = READ_KERNEL(task, start_boottime);
	if (!started_ns || started_ns > bpf_ktime_get_boot_ns())
		return 7;
	runtime_ns = READ_KERNEL(task, se.sum_exec_runtime);
	if (runtime_ns - expected->thread_runtime_ns > MAX_RUNTIME_AHEAD_NS)
		return 8;
	if (thread_pointer(task) - expected->thread_pointer > MAX_PTHREAD_BYTES)
		return 9;
	if (!has_user_registers(task))
		return 10;
	if (cpu_of(task) != bpf_get_smp_processor_id())
		return 11;
	if (task_state(task))
		return 12;
	return 0;
}

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
