/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where a function's arguments are at its first instruction, and what they state. A probe can be
 * at a later one, where they and the stack pointer are still the same: see
 * otel_gpu/capture/probes/probe_sites.py.
 *
 * A slot is an integer or pointer argument counted from 1; a 12-byte dim3 by value
 * takes two (x and y packed in one register, z in the next). x86-64 passes six
 * slots in registers and the rest on the stack above the return address, arm64
 * eight and the rest at the stack pointer.
 */
#ifndef OTEL_GPU_BPF_CUDA_ARGUMENTS_H
#define OTEL_GPU_BPF_CUDA_ARGUMENTS_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

#if defined(__TARGET_ARCH_x86)
#define REGISTER_SLOTS	     6
#define RETURN_ADDRESS_BYTES 8
#else
#define REGISTER_SLOTS	     8
#define RETURN_ADDRESS_BYTES 0
#endif

/* In CUlaunchConfig and cudaLaunchConfig_t alike, after six dimensions and a size. */
#define LAUNCH_CONFIG_STREAM_OFFSET 32

static __always_inline __u64 stack_pointer_at_entry(struct pt_regs *ctx)
{
	return PT_REGS_SP(ctx);
}

/* The same value as at the entry of the call that returns: its identity. */
static __always_inline __u64 stack_pointer_at_return(struct pt_regs *ctx)
{
	return PT_REGS_SP(ctx) - RETURN_ADDRESS_BYTES;
}

#if defined(OTEL_GPU_NO_BTF) && defined(__TARGET_ARCH_x86)

#define TRAMPOLINE_ALIGNMENT 4096
#define XOL_AREA_WORDS	     16

/*
 * No header has the offset of the address in struct xol_area. It is a small structure of kernel
 * pointers and numbers: one that equals an address in user space is the address.
 * Unrolled, each comparison would double the paths that the verifier follows.
 */
static __noinline int is_trampoline(const struct xol_area *area, __u64 address)
{
	__u64 words[XOL_AREA_WORDS];

	if (!address || address % TRAMPOLINE_ALIGNMENT ||
	    bpf_probe_read_kernel(words, sizeof(words), area))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < XOL_AREA_WORDS; i++) {
		if (words[i] == address)
			return 1;
	}
	return 0;
}

#else
#define is_trampoline(area, address) ((address) == BPF_CORE_READ(area, vaddr))
#endif

static __always_inline struct xol_area *trampoline_of(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
	struct mm_struct *mm = READ_KERNEL(task, mm);

	return mm ? BPF_CORE_READ(mm, uprobes_state.xol_area) : NULL;
#else
	return NULL;
#endif
}

/*
 * Whether the frame of an open call is still there. While it is, its return address is
 * the uprobes' trampoline; what comes after a longjmp or an exception writes over it.
 * On arm64 the address is in a register or wherever the function put it, so there only
 * the order of stack pointers shows it.
 */
static __always_inline bool is_frame_alive(struct xol_area *area, __u64 stack_pointer)
{
#if defined(__TARGET_ARCH_x86)
	__u64 return_address = 0;

	if (!area)
		return true;
	if (bpf_probe_read_user(&return_address, sizeof(return_address), (void *)stack_pointer))
		return true;
	return is_trampoline(area, return_address);
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

static __always_inline void read_user(void *to, __u32 size, __u64 address)
{
	if (bpf_probe_read_user(to, size, (void *)address))
		count(COUNTER_LOST_READ_FAULT);
}

/* A global function, as there are many slots to read: the verifier follows it once. */
__weak __noinline __u64 read_stack_slot(const struct arguments *arguments, __u32 slot)
{
	__u64 value = 0;

	if (!arguments)
		return 0;
	read_user(&value, sizeof(value), arguments->stack + 8 * (slot - REGISTER_SLOTS - 1));
	return value;
}

static __always_inline __u64 read_slot(const struct arguments *arguments, __u32 slot)
{
	if (slot <= REGISTER_SLOTS)
		return arguments->registers[(slot - 1) & 7];
	return read_stack_slot(arguments, slot);
}

static __always_inline void read_launch(const struct arguments *arguments,
					const volatile struct api_descriptor *api,
					struct open_call *call)
{
	const __u64 *slots = arguments->registers;

	switch (api->launch_shape) {
	case LAUNCH_DIM3:
		call->grid[0] = slots[1];
		call->grid[1] = slots[1] >> 32;
		call->grid[2] = slots[2];
		call->block[0] = slots[3];
		call->block[1] = slots[3] >> 32;
		call->block[2] = slots[4];
		break;
	case LAUNCH_SCALARS:
		call->grid[0] = slots[1];
		call->grid[1] = slots[2];
		call->grid[2] = slots[3];
		call->block[0] = slots[4];
		call->block[1] = slots[5];
		call->block[2] = read_slot(arguments, 7);
		break;
	case LAUNCH_CONFIG:
		read_user(call->grid, sizeof(call->grid), slots[0]);
		read_user(call->block, sizeof(call->block), slots[0] + sizeof(call->grid));
		read_user(&call->stream, sizeof(call->stream),
			  slots[0] + LAUNCH_CONFIG_STREAM_OFFSET);
		break;
	}
}

/* The first fields of CUmemAllocationProp. */
struct memory_properties {
	__u32 type;
	__u32 handle_types;
	__u32 location_type;
	__s32 location;
};

enum {
	LOCATION_DEVICE = 1,
	LOCATION_HOST = 2,
	LOCATION_HOST_NUMA = 3,
	LOCATION_HOST_NUMA_CURRENT = 4,
	LOCATION_DEVICE_PART = 6, /* the device is the lowest byte */
};

static __always_inline void read_location(__u64 address, struct open_call *call)
{
	struct memory_properties properties = {};

	read_user(&properties, sizeof(properties), address);
	switch (properties.location_type) {
	case LOCATION_DEVICE:
		call->device = properties.location;
		break;
	case LOCATION_DEVICE_PART:
		call->device = properties.location & 0xff;
		break;
	case LOCATION_HOST:
	case LOCATION_HOST_NUMA:
	case LOCATION_HOST_NUMA_CURRENT:
		call->is_on_host = 1;
		break;
	}
}

/* Apart, so that what it keeps is not on the stack below what else a call's entry does. */
static __noinline int read_arguments(struct pt_regs *ctx, const volatile struct api_descriptor *api,
				     struct open_call *call)
{
	struct arguments arguments;

	take_arguments(ctx, &arguments);
	call->size_bytes = 0;
	call->address = 0;
	call->stream = 0;
	call->function = 0;
	call->copy_kind = api->fixed_copy_kind;
	__builtin_memset(call->grid, 0, sizeof(call->grid));
	__builtin_memset(call->block, 0, sizeof(call->block));
	if (api->size_slot)
		call->size_bytes = read_slot(&arguments, api->size_slot) << (api->size_shift & 7);
	if (api->height_slot)
		call->size_bytes *= read_slot(&arguments, api->height_slot);
	if (api->address_slot)
		call->address = read_slot(&arguments, api->address_slot);
	if (api->stream_slot)
		call->stream = read_slot(&arguments, api->stream_slot);
	if (api->function_slot)
		call->function = read_slot(&arguments, api->function_slot);
	if (api->copy_kind_slot) {
		__u32 kind = read_slot(&arguments, api->copy_kind_slot);

		call->copy_kind = kind <= COPY_DEFAULT ? kind : COPY_NONE;
	}
	/* Device calls have no function: its place keeps the argument until the return. */
	if (api->device_slot)
		call->function = read_slot(&arguments, api->device_slot);
	call->is_on_host = 0;
	call->has_no_size = 0;
	if (api->properties_slot)
		read_location(read_slot(&arguments, api->properties_slot), call);
	if (api->launch_shape)
		read_launch(&arguments, api, call);
	return 0;
}

#endif
