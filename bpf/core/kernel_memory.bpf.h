/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * How the programs reach the kernel's memory: the difference between the two objects that
 * are built of one source.
 *
 * Where the kernel has BTF, it knows the types of pointers: a tracepoint's arguments and
 * the current task are read as if they were our own. Where it has none, they are numbers,
 * and each read is a call of bpf_probe_read_kernel(). That object is built with
 * OTEL_GPU_NO_BTF. Its offsets are fixed at load time too, from BTF that the agent makes
 * of the kernel's headers.
 */
#ifndef OTEL_GPU_BPF_CORE_KERNEL_MEMORY_H
#define OTEL_GPU_BPF_CORE_KERNEL_MEMORY_H

#include "core/kernel_types.bpf.h"
#include "events.h"

#if !defined(OTEL_GPU_NO_BTF)

#define TRACEPOINT "tp_btf/"

/* READ_KERNEL(task, mm, start_stack) is task->mm->start_stack. */
#define READ_KERNEL(source, ...) ___arrow(source, __VA_ARGS__)
/*
 * For a pointer in a task or the like that is seldom read: where one is read in place, the verifier
 * looks for its type among the names of all types of the kernel, several times in each state, which
 * takes it a millisecond.
 */
#define READ_SELDOM(source, ...) BPF_CORE_READ(source, __VA_ARGS__)
/* A task's name, by two loads: a helper's call costs more than they do. */
#define READ_COMM(to, task)                                                                        \
	do {                                                                                       \
		((__u64 *)(to))[0] = ((const __u64 *)(task)->comm)[0];                             \
		((__u64 *)(to))[1] = ((const __u64 *)(task)->comm)[1];                             \
	} while (0)

/*
 * Since Linux kernel commit a35b9af4ec2c ("bpf: Add a kfunc for generic type cast") (in v6.2),
 * whatever is at an address can be read by a load, as a field is. Before that, it takes a call
 * of a helper, and a copy. A kernel without it refuses to load a program that names it.
 */
extern void *bpf_rdonly_cast(const void *address, __u32 type) __ksym __weak;

/*
 * What is at an address that the verifier knows no type of, in a function that knows whether the
 * kernel can read in place; see core/core_fixes.bpf.h.
 */
#define TYPED(address, type)                                                                       \
	(in_place ? (type *)bpf_rdonly_cast((void *)(address), bpf_core_type_id_kernel(type))      \
		  : (type *)(address))
#define LOAD(source, ...)                                                                          \
	(in_place ? READ_KERNEL(source, __VA_ARGS__) : BPF_CORE_READ(source, __VA_ARGS__))

/* A kernel stack is had from the task whose it is. On x86-64, all return addresses are in it. */
#define WALK_KERNEL_STACK(task, buffer, size) bpf_get_task_stack(task, buffer, size, 0)
#if defined(__TARGET_ARCH_x86)
#define CAN_RECALL_STACKS   1
#define STACK_POINTER(task) READ_KERNEL(task, thread.sp)
#else
#define CAN_RECALL_STACKS 0
#endif

#else

#define TRACEPOINT			     "raw_tp/"
#define READ_KERNEL(source, ...)	     BPF_CORE_READ(source, __VA_ARGS__)
#define READ_SELDOM(source, ...)	     BPF_CORE_READ(source, __VA_ARGS__)
#define READ_COMM(to, task)		     bpf_probe_read_kernel(to, COMM_BYTES, (task)->comm)
#define TYPED(address, type)		     ((type *)(address))
#define LOAD(source, ...)		     BPF_CORE_READ(source, __VA_ARGS__)
/* A kernel stack is had from the context of a program: it is that of the current task. */
#define WALK_KERNEL_STACK(ctx, buffer, size) bpf_get_stack(ctx, buffer, size, 0)
#define CAN_RECALL_STACKS		     0

/* Stand-ins for helpers that take or give typed pointers. */
#define bpf_get_current_task_btf()	     ((struct task_struct *)bpf_get_current_task())
#define bpf_task_pt_regs(task)		     copy_registers(task)

#define MAX_REGISTERS_CPUS		     1024

/* Offsets that are not a field of any type. The agent puts the enum into the BTF that it makes. */
enum kernel_layout {
	KERNEL_LAYOUT_REGISTERS = 1, /* offset of user space's registers in a task's stack */
};

static struct pt_regs registers_of_cpu[MAX_REGISTERS_CPUS];

/* User space's registers of a task, until this CPU copies others. */
static __always_inline struct pt_regs *copy_registers(struct task_struct *task)
{
	struct pt_regs *copy = &registers_of_cpu[bpf_get_smp_processor_id() % MAX_REGISTERS_CPUS];
	__u64 offset = bpf_core_enum_value(enum kernel_layout, KERNEL_LAYOUT_REGISTERS);

	bpf_probe_read_kernel(copy, sizeof(*copy), READ_KERNEL(task, stack) + offset);
	return copy;
}

#endif

#endif
