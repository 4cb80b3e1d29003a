/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a function's arguments lie at its first instruction.
 *
 * A slot is an integer or pointer argument counted from 1; a 12-byte dim3 by value
 * takes two (x and y packed in one register, z in the next). x86-64 passes six
 * slots in registers and the rest on the stack above the return address, arm64
 * eight and the rest at the stack pointer.
 */
#ifndef OTEL_GPU_ARGUMENTS_BPF_H
#define OTEL_GPU_ARGUMENTS_BPF_H

#if defined(__TARGET_ARCH_x86)
#define REGISTER_SLOTS	     6
#define RETURN_ADDRESS_BYTES 8
#else
#define REGISTER_SLOTS	     8
#define RETURN_ADDRESS_BYTES 0
#endif

static __always_inline __u64 stack_pointer_at_entry(struct pt_regs *ctx)
{
	return PT_REGS_SP(ctx);
}

/* The same value as at the entry of the call that returns: its identity. */
static __always_inline __u64 stack_pointer_at_return(struct pt_regs *ctx)
{
	return PT_REGS_SP(ctx) - RETURN_ADDRESS_BYTES;
}

/*
 * Whether the frame of an open call is still there. While it is, its return address is
 * the uprobes' trampoline; what comes after a longjmp or an exception writes over it.
 * On arm64 the address is in a register or wherever the function put it, so there only
 * the order of stack pointers tells.
 */
static __always_inline bool is_frame_alive(struct task_struct *task, __u64 stack_pointer)
{
#if defined(__TARGET_ARCH_x86)
	struct mm_struct *mm = task->mm;
	struct xol_area *area = mm ? BPF_CORE_READ(mm, uprobes_state.xol_area) : NULL;
	__u64 return_address = 0;

	if (!area)
		return true;
	if (bpf_probe_read_user(&return_address, sizeof(return_address), (void *)stack_pointer))
		return true;
	return return_address == BPF_CORE_READ(area, vaddr);
#else
	return true;
#endif
}

/* Taken from the registers first: the verifier allows no computed access to them. */
struct arguments {
	__u64 registers[8];
	__u64 stack; /* address of the first slot that is not in a register */
};

static __always_inline void take_arguments(struct pt_regs *ctx, struct arguments *arguments)
{
	arguments->registers[0] = PT_REGS_PARM1(ctx);
	arguments->registers[1] = PT_REGS_PARM2(ctx);
	arguments->registers[2] = PT_REGS_PARM3(ctx);
	arguments->registers[3] = PT_REGS_PARM4(ctx);
	arguments->registers[4] = PT_REGS_PARM5(ctx);
#if defined(__TARGET_ARCH_x86)
	arguments->registers[5] = ctx->r9;
	arguments->registers[6] = 0;
	arguments->registers[7] = 0;
#else
	arguments->registers[5] = ctx->user_regs.regs[5];
	arguments->registers[6] = ctx->user_regs.regs[6];
	arguments->registers[7] = ctx->user_regs.regs[7];
#endif
	arguments->stack = PT_REGS_SP(ctx) + RETURN_ADDRESS_BYTES;
}

static __always_inline __u64 read_slot(const struct arguments *arguments, __u32 slot)
{
	__u64 value = 0, address;

	if (slot <= REGISTER_SLOTS)
		return arguments->registers[(slot - 1) & 7];
	address = arguments->stack + 8 * (slot - REGISTER_SLOTS - 1);
	if (bpf_probe_read_user(&value, sizeof(value), (void *)address))
		count(COUNTER_LOST_READ_FAULT);
	return value;
}

#endif
