/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sizes that are not an argument by themselves: those of arrays, of copies that a structure describes, and
 * of lists of copies. The structures are those of CUDA's headers, the same since CUDA 4.0.
 */
#ifndef OTEL_GPU_BPF_CUDA_SIZES_H
#define OTEL_GPU_BPF_CUDA_SIZES_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "cuda/arguments.bpf.h"
#include "events.h"

#define SIZES_AT_A_TIME 8
#define MAX_SIZES	4096 /* of one list */

struct extent {
	__u64 width;
	__u64 height;
	__u64 depth;
};

/* cudaMemcpy3DParms: with an array on either side, the width is in its elements. */
#define COPY_SOURCE_ARRAY_OFFSET 0
#define COPY_ARRAY_OFFSET	 64
#define COPY_POINTER_OFFSET	 96
#define COPY_EXTENT_OFFSET	 128
#define COPY_KIND_OFFSET	 152

/* Of CUDA_MEMCPY2D and CUDA_MEMCPY3D: where either side is, which is enum memory_type. */
#define CU_COPY_2D_SOURCE_TYPE_OFFSET 16
#define CU_COPY_2D_TYPE_OFFSET	      72
#define CU_COPY_2D_EXTENT_OFFSET      112
#define CU_COPY_3D_SOURCE_TYPE_OFFSET 32
#define CU_COPY_3D_TYPE_OFFSET	      120
#define CU_COPY_3D_EXTENT_OFFSET      176
/* Behind the type: the address on the host, that on the device, and the array. */
#define CU_COPY_HOST_OFFSET   8
#define CU_COPY_DEVICE_OFFSET 16
#define CU_COPY_ARRAY_OFFSET  24

enum memory_type {
	MEMORY_TYPE_HOST = 1,
	MEMORY_TYPE_DEVICE = 2,
	MEMORY_TYPE_ARRAY = 3,
	MEMORY_TYPE_UNIFIED = 4,
};

/* cudaChannelFormatDesc: bits of each channel. */
struct channel_format {
	__s32 bits[4];
	__u32 kind;
};

enum {
	CHANNEL_FLOAT = 2, /* the last one of those that their bits define */
	CHANNEL_NORMALIZED = 5,
	CHANNEL_NORMALIZED_END = 17,
};

/* The number of elements; a height or depth of 0 is that of an array with fewer dimensions. */
static __always_inline __u64 elements_of(const struct extent *extent)
{
	return extent->width * (extent->height ?: 1) * (extent->depth ?: 1);
}

/* Whether it failed, for all reads of a call together: branches would multiply the verifier's paths. */
static __always_inline long fetch(void *to, __u32 size, __u64 address)
{
	return bpf_probe_read_user(to, size, (void *)address);
}

static __always_inline __u32 channel_bytes(__u64 address, long *faults)
{
	struct channel_format format = {};
	__u32 bits;

	*faults |= fetch(&format, sizeof(format), address);
	bits = format.bits[0] + format.bits[1] + format.bits[2] + format.bits[3];
	if (format.kind <= CHANNEL_FLOAT ||
	    (format.kind >= CHANNEL_NORMALIZED && format.kind < CHANNEL_NORMALIZED_END))
		return bits / 8;
	return 0; /* compressed, or of several planes */
}

/* Of a CUarray_format with this number of channels. */
static __always_inline __u32 format_bytes(__u32 format, __u32 channels)
{
	switch (format) {
	case 0x01: /* UNSIGNED_INT8 */
	case 0x08: /* SIGNED_INT8 */
		return channels;
	case 0x02: /* UNSIGNED_INT16 */
	case 0x09: /* SIGNED_INT16 */
	case 0x10: /* HALF */
		return 2 * channels;
	case 0x03: /* UNSIGNED_INT32 */
	case 0x0a: /* SIGNED_INT32 */
	case 0x20: /* FLOAT */
		return 4 * channels;
	}
	return 0;
}

static __always_inline void set_size(struct open_call *call, __u64 elements, __u64 element_bytes)
{
	call->size_bytes = elements * element_bytes;
	call->has_no_size = elements && !element_bytes;
}

static __always_inline long read_copy(struct open_call *call, __u64 address)
{
	long faults = 0;
	__u64 source_array = 0, array = 0;
	struct extent extent = {};
	__u32 kind = COPY_NONE;

	faults |= fetch(&source_array, sizeof(source_array), address + COPY_SOURCE_ARRAY_OFFSET);
	faults |= fetch(&array, sizeof(array), address + COPY_ARRAY_OFFSET);
	faults |= fetch(&call->address, sizeof(call->address), address + COPY_POINTER_OFFSET);
	faults |= fetch(&extent, sizeof(extent), address + COPY_EXTENT_OFFSET);
	faults |= fetch(&kind, sizeof(kind), address + COPY_KIND_OFFSET);
	if (array)
		call->address = array;
	call->copy_kind = kind <= COPY_DEFAULT ? kind : COPY_NONE;
	/* The driver's call inside has the bytes of an element. */
	set_size(call, extent.width * extent.height * extent.depth, !source_array && !array);
	return faults;
}

static __always_inline __u8 copy_kind_of(__u32 from, __u32 to)
{
	if (from == MEMORY_TYPE_UNIFIED || to == MEMORY_TYPE_UNIFIED)
		return COPY_DEFAULT;
	if (from == MEMORY_TYPE_HOST)
		return to == MEMORY_TYPE_HOST ? COPY_HOST_TO_HOST : COPY_HOST_TO_DEVICE;
	return to == MEMORY_TYPE_HOST ? COPY_DEVICE_TO_HOST : COPY_DEVICE_TO_DEVICE;
}

static __always_inline long read_cu_copy(struct open_call *call, __u64 address, bool is_3d)
{
	long faults = 0;
	__u64 type_at = address + (is_3d ? CU_COPY_3D_TYPE_OFFSET : CU_COPY_2D_TYPE_OFFSET);
	struct extent extent = {.depth = 1};
	__u32 from = 0, to = 0;

	faults |= fetch(
		&from, sizeof(from),
		address + (is_3d ? CU_COPY_3D_SOURCE_TYPE_OFFSET : CU_COPY_2D_SOURCE_TYPE_OFFSET));
	faults |= fetch(&to, sizeof(to), type_at);
	faults |= fetch(&call->address, sizeof(call->address),
			type_at + (to == MEMORY_TYPE_HOST    ? CU_COPY_HOST_OFFSET
				   : to == MEMORY_TYPE_ARRAY ? CU_COPY_ARRAY_OFFSET
							     : CU_COPY_DEVICE_OFFSET));
	if (is_3d)
		faults |= fetch(&extent, sizeof(extent), address + CU_COPY_3D_EXTENT_OFFSET);
	else
		faults |= fetch(&extent, 2 * sizeof(__u64), address + CU_COPY_2D_EXTENT_OFFSET);
	call->copy_kind = copy_kind_of(from, to);
	set_size(call, extent.width * extent.height * extent.depth, 1);
	return faults;
}

static __always_inline long read_cu_array(struct open_call *call, __u64 address, bool is_3d)
{
	long faults = 0;
	__u64 extent_bytes = is_3d ? sizeof(struct extent) : 2 * sizeof(__u64);
	struct extent extent = {};
	__u32 format[2] = {}; /* and the number of channels */

	if (is_3d)
		faults |= fetch(&extent, sizeof(extent), address);
	else
		faults |= fetch(&extent, 2 * sizeof(__u64), address);
	faults |= fetch(format, sizeof(format), address + extent_bytes);
	set_size(call, elements_of(&extent), format_bytes(format[0], format[1]));
	return faults;
}

struct list {
	__u64 address;
	__u64 sizes;
	__u64 size_bytes;
	__u64 is_whole;
};

/* What is left follows from the step: a number that falls would be another state at each of them. */
static __noinline long add_sizes(__u32 step, struct list *list)
{
	__u64 sizes_bytes[SIZES_AT_A_TIME] = {};
	__u64 first = (__u64)step * SIZES_AT_A_TIME, left = list->sizes - first;

	if (first >= list->sizes) {
		list->is_whole = 1;
		return 1;
	}
	if (left > SIZES_AT_A_TIME)
		left = SIZES_AT_A_TIME;
	if (fetch(sizes_bytes, left * sizeof(*sizes_bytes),
		  list->address + first * sizeof(*sizes_bytes)))
		return 1;
	for (int i = 0; i < SIZES_AT_A_TIME; i++)
		list->size_bytes += sizes_bytes[i];
	return 0;
}

static __always_inline long read_list(struct open_call *call, __u64 address, __u64 sizes)
{
	struct list list = {.address = address, .sizes = sizes};

	call->has_no_size = 1;
	if (sizes > MAX_SIZES)
		return 0;
	REPEAT(MAX_SIZES / SIZES_AT_A_TIME + 1, add_sizes, &list);
	if (!list.is_whole)
		return 1;
	call->size_bytes = list.size_bytes;
	call->has_no_size = 0;
	return 0;
}

/*
 * For calls whose size is in no slot: of the slot, and those before and after it. A global function,
 * which the verifier walks once by itself.
 */
__weak __noinline int set_size_by_form(struct open_call *call, __u32 form, __u64 before,
				       __u64 value, __u64 after)
{
	struct extent extent = {};
	long faults = 0;

	if (!call)
		return 0;
	call->size_bytes = 0;
	/* The first signatures of the driver, whose structures have numbers of 32 bits. */
	if (form >= SIZE_OF_CU_COPY_2D && !call->variant) {
		call->has_no_size = 1;
		return 0;
	}
	switch (form) {
	case SIZE_OF_EXTENT:
		faults = fetch(&extent, sizeof(extent), value);
		set_size(call, extent.width * extent.height * extent.depth, 1);
		break;
	case SIZE_OF_ARRAY:
		extent.width = value;
		extent.height = after;
		set_size(call, elements_of(&extent), channel_bytes(before, &faults));
		break;
	case SIZE_OF_ARRAY_3D:
		faults = fetch(&extent, sizeof(extent), value);
		set_size(call, elements_of(&extent), channel_bytes(before, &faults));
		break;
	case SIZE_OF_COPY_3D:
		faults = read_copy(call, value);
		break;
	case SIZE_OF_LIST:
		faults = read_list(call, value, after);
		break;
	case SIZE_OF_CU_COPY_2D:
	case SIZE_OF_CU_COPY_3D:
		faults = read_cu_copy(call, value, form == SIZE_OF_CU_COPY_3D);
		break;
	case SIZE_OF_CU_ARRAY:
	case SIZE_OF_CU_ARRAY_3D:
		faults = read_cu_array(call, value, form == SIZE_OF_CU_ARRAY_3D);
		break;
	}
	if (faults)
		count(COUNTER_LOST_READ_FAULT);
	return 0;
}

static __noinline int read_size(struct pt_regs *ctx, const volatile struct api_descriptor *api,
				struct open_call *call)
{
	__u32 slot = api->size_slot; /* of the first four, which are in registers */
	struct arguments arguments;
	__u64 value;

	take_arguments(ctx, &arguments);
	value = arguments.registers[(slot - 1) & 7];
#if defined(__TARGET_ARCH_x86)
	/* It is among the caller's arguments; elsewhere a register points to a copy. */
	if (api->size_form == SIZE_OF_EXTENT || api->size_form == SIZE_OF_ARRAY_3D)
		value = arguments.stack;
#endif
	return set_size_by_form(call, api->size_form, arguments.registers[(slot - 2) & 7], value,
				arguments.registers[slot & 7]);
}

#endif
