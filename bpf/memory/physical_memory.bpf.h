/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Physical memory of devices, which the driver hands out apart from addresses (cuMemCreate). Its
 * bytes are in use until the last handle is released and the last mapping is gone.
 */
#ifndef OTEL_GPU_BPF_MEMORY_PHYSICAL_MEMORY_H
#define OTEL_GPU_BPF_MEMORY_PHYSICAL_MEMORY_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

#define MAX_UNMAPPED 256 /* mappings that one call takes away */

static __always_inline struct allocation *find_memory(struct allocation_key *key, __u32 layer,
						      __u64 address)
{
	key->layer = layer;
	key->address = address;
	return bpf_map_lookup_elem(&allocations, key);
}

static __always_inline void put_memory(struct allocation_key *key, __u32 layer, __u64 address,
				       const struct allocation *memory)
{
	key->layer = layer;
	key->address = address;
	if (bpf_map_update_elem(&allocations, key, memory, BPF_ANY))
		count(COUNTER_LOST_ALLOCATIONS_FULL);
}

static __always_inline void hold_physical(struct allocation_key *key, __u64 physical)
{
	struct allocation *memory = physical ? find_memory(key, MEMORY_PHYSICAL, physical) : NULL;

	if (memory)
		__sync_fetch_and_add(&memory->references, 1);
}

/* Returns how many bytes that frees, and fills in their device. */
static __always_inline __u64 drop_physical(struct allocation_key *key, __u64 physical,
					   __s32 *device)
{
	struct allocation *memory = physical ? find_memory(key, MEMORY_PHYSICAL, physical) : NULL;
	__u64 size_bytes;

	if (!memory)
		return 0;
	*device = memory->device;
	size_bytes = memory->size_bytes;
	if (__sync_fetch_and_add(&memory->references, -1) != 1)
		return 0;
	bpf_map_delete_elem(&allocations, key);
	return size_bytes;
}

static __always_inline void add_handle(struct allocation_key *key, __u64 handle, __u64 physical)
{
	struct allocation *known = find_memory(key, MEMORY_HANDLE, handle);
	struct allocation memory = {.physical = physical, .references = 1};

	/* The same handle can be given out again: each owner releases it once more. */
	if (known && known->physical == physical)
		__sync_fetch_and_add(&known->references, 1);
	else
		put_memory(key, MEMORY_HANDLE, handle, &memory);
}

static __always_inline void create_physical(struct allocation_key *key, __u64 handle,
					    __u64 size_bytes, __s32 device)
{
	struct allocation memory = {.size_bytes = size_bytes, .device = device, .references = 1};
	__u64 physical = bpf_ktime_get_ns();

	put_memory(key, MEMORY_PHYSICAL, physical, &memory);
	add_handle(key, handle, physical);
}

/* A further handle of memory that is mapped at an address, or has this handle already. */
static __always_inline void retain_physical(struct allocation_key *key, __u64 handle, __u64 address)
{
	struct allocation *known = find_memory(key, MEMORY_HANDLE, handle);
	__u64 physical = 0;

	if (!known)
		known = find_memory(key, MEMORY_MAPPING, address);
	if (known)
		physical = known->physical;
	add_handle(key, handle, physical);
	hold_physical(key, physical);
}

static __always_inline __u64 release_physical(struct allocation_key *key, __u64 handle,
					      __s32 *device)
{
	struct allocation *known = find_memory(key, MEMORY_HANDLE, handle);
	__u64 physical;

	if (!known) {
		count(COUNTER_LOST_UNKNOWN_FREE);
		return 0;
	}
	physical = known->physical;
	if (__sync_fetch_and_add(&known->references, -1) == 1)
		bpf_map_delete_elem(&allocations, key);
	return drop_physical(key, physical, device);
}

static __always_inline void map_physical(struct allocation_key *key, __u64 handle, __u64 address,
					 __u64 size_bytes)
{
	struct allocation *known = find_memory(key, MEMORY_HANDLE, handle);
	struct allocation mapping = {.size_bytes = size_bytes, .ktime_ns = bpf_ktime_get_ns()};

	if (known)
		mapping.physical = known->physical;
	put_memory(key, MEMORY_MAPPING, address, &mapping);
	hold_physical(key, mapping.physical);
}

struct unmapping {
	struct allocation_key key;
	__u64 address;
	__u64 end;
	__u64 freed_bytes;
	__s32 device;
	__u32 padding;
};

/* Take the mapping at an address away, and go on behind it. */
static __noinline long unmap_one(__u32 step, struct unmapping *work)
{
	struct allocation_key key = work->key;
	struct allocation *mapping = find_memory(&key, MEMORY_MAPPING, work->address);
	__s32 device = work->device;
	__u64 physical;

	if (!mapping || !mapping->size_bytes)
		return 1;
	physical = mapping->physical;
	work->address += mapping->size_bytes;
	bpf_map_delete_elem(&allocations, &key);
	work->freed_bytes += drop_physical(&key, physical, &device);
	work->device = device;
	return work->address >= work->end;
}

/* All mappings of a range go at once. */
static __always_inline __u64 unmap_physical(struct allocation_key *key, __u64 address,
					    __u64 size_bytes, __s32 *device)
{
	struct unmapping work = {
		.key = *key,
		.address = address,
		.end = address + size_bytes,
		.device = *device,
	};

	REPEAT(MAX_UNMAPPED, unmap_one, &work);
	if (work.address < work.end)
		count(COUNTER_LOST_UNKNOWN_FREE);
	*device = work.device;
	return work.freed_bytes;
}

/* What a successful call does to physical memory. Returns the bytes that it takes or frees. */
static __noinline __u64 change_physical(const struct thread *thread, __u8 change,
					struct open_call *call)
{
	struct allocation_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
	};
	__u64 argument = call->function, size_bytes = call->size_bytes;
	__s32 device = call->device;

	call->function = 0; /* is of launches */
	switch (change) {
	case PHYSICAL_CREATE:
		/* Memory of the host is none of a device. */
		if (call->is_on_host)
			size_bytes = 0;
		create_physical(&key, call->address, size_bytes, device);
		return size_bytes;
	case PHYSICAL_IMPORT:
		create_physical(&key, call->address, 0, device);
		return 0;
	case PHYSICAL_RETAIN:
		retain_physical(&key, call->address, argument);
		return 0;
	case PHYSICAL_MAP:
		map_physical(&key, argument, call->address, size_bytes);
		return size_bytes;
	case PHYSICAL_RELEASE:
		size_bytes = release_physical(&key, call->address, &device);
		break;
	case PHYSICAL_UNMAP:
		size_bytes = unmap_physical(&key, call->address, size_bytes, &device);
		break;
	}
	/* Memory goes back to where it came from. */
	call->size_bytes = size_bytes;
	call->device = device;
	return size_bytes;
}

#endif
