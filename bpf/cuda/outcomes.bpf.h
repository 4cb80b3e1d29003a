/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the outcome of a call shows: about memory, devices and handles, and the call itself. */
#ifndef OTEL_GPU_BPF_CUDA_OUTCOMES_H
#define OTEL_GPU_BPF_CUDA_OUTCOMES_H

#include "core/aggregate.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "cuda/arguments.bpf.h"
#include "cuda/elapsed.bpf.h"
#include "cuda/open_calls.bpf.h"
#include "cuda/stream_captures.bpf.h"
#include "events.h"
#include "memory/out_of_memory.bpf.h"
#include "memory/physical_memory.bpf.h"

/* cudaDeviceProp begins with name[256] and the 16 bytes of the uuid. */
#define DEVICE_PROPERTIES_UUID_OFFSET 256

/* Whether a call shows that an allocator does not try again. */
static __always_inline bool goes_on_without_memory(__u32 api)
{
	__u8 family = settings.apis[api].family;

	return family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH || family == FAMILY_COPY ||
	       family == FAMILY_MEMSET;
}

/*
 * What a network adapter may no longer use. Its handle is freed in the call, and may be another
 * thread's before it returns: so it is taken at the entry, and put back if the call fails.
 */
static __noinline int change_registration(const struct thread *thread, struct open_call *call,
					  bool is_entry)
{
	struct allocation_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.address = call->address,
		.pid = thread->pid,
		.layer = LAYER_VERBS,
	};
	struct allocation *known, registration = {.size_bytes = call->size_bytes};

	if (!is_entry) {
		if (registration.size_bytes)
			bpf_map_update_elem(&allocations, &key, &registration, BPF_NOEXIST);
		return 0;
	}
	known = bpf_map_lookup_elem(&allocations, &key);
	if (known) {
		call->size_bytes = known->size_bytes;
		bpf_map_delete_elem(&allocations, &key);
	}
	return 0;
}

#define TEACHING_FAMILIES                                                                          \
	(1U << FAMILY_ALLOCATE | 1U << FAMILY_HOST_ALLOCATE | 1U << FAMILY_REGISTER |              \
	 1U << FAMILY_FREE | 1U << FAMILY_HOST_FREE | 1U << FAMILY_DEREGISTER |                    \
	 1U << FAMILY_SET_DEVICE | 1U << FAMILY_MEMORY_INFO | 1U << FAMILY_ELAPSED_TIME |          \
	 1U << FAMILY_CONTEXT)

/* Whether a success shows anything but how many bytes it moved. */
static __always_inline bool teaches(const volatile struct api_descriptor *api)
{
	return TEACHING_FAMILIES >> (api->family & 31) & 1 || api->address_is_output ||
	       api->physical;
}

/* Record what a success shows about memory and devices. Returns the bytes that it moved. */
static __noinline __u64 learn_from_success(struct thread *thread,
					   const volatile struct api_descriptor *api,
					   struct open_call *call)
{
	struct allocation_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		.layer = api->layer,
	};
	struct allocation allocation = {}, *known;

	if (api->address_is_output) {
		__u64 address = 0;

		read_user(&address, sizeof(address), call->address);
		call->address = address;
	}
	key.address = call->address;
	if (api->physical)
		return change_physical(thread, api->physical, call);
	switch (api->family) {
	case FAMILY_ALLOCATE:
	case FAMILY_HOST_ALLOCATE:
	case FAMILY_REGISTER:
		/* A node of a graph is not memory. */
		if (!is_captured(thread, call->stream))
			allocation.size_bytes = call->size_bytes;
		allocation.device = call->device;
		if (api->family == FAMILY_ALLOCATE)
			allocation.ktime_ns = call->start_ktime_ns;
		if (bpf_map_update_elem(&allocations, &key, &allocation, BPF_ANY))
			count(COUNTER_LOST_ALLOCATIONS_FULL);
		return allocation.size_bytes;
	case FAMILY_FREE:
	case FAMILY_HOST_FREE:
		known = bpf_map_lookup_elem(&allocations, &key);
		if (known && known->size_bytes && is_captured(thread, call->stream))
			break; /* the graph will free it */
		if (known) {
			call->size_bytes = known->size_bytes;
			/* Memory goes back to where it came from. */
			call->device = known->device;
			if (api->family == FAMILY_FREE)
				keep_freed_segment(thread, key.address, known);
			bpf_map_delete_elem(&allocations, &key);
		} else if (key.address) { /* to free nothing is allowed */
			count(COUNTER_LOST_UNKNOWN_FREE);
		}
		break;
	case FAMILY_DEREGISTER:
		if (!call->size_bytes && key.address)
			count(COUNTER_LOST_UNKNOWN_FREE);
		break;
	case FAMILY_SET_DEVICE:
		thread->device = (__s32)call->function;
		call->device = thread->device;
		break;
	case FAMILY_MEMORY_INFO:
		read_user(&thread->device_free_bytes, sizeof(__u64), call->address);
		read_user(&thread->device_total_bytes, sizeof(__u64), call->function);
		thread->device_ktime_ns = call->start_ktime_ns;
		call->address = 0;
		call->function = 0; /* is of launches */
		break;
	case FAMILY_ELAPSED_TIME:
		note_elapsed_time(thread, call);
		break;
	case FAMILY_CONTEXT:
		/* What the runtime does inside of a call keeps to the device that was set. */
		if (thread->depth == 1)
			thread->device = -1;
		break;
	}
	return call->size_bytes;
}

static __always_inline bool names_device(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_DEVICE_UUID || api->family == FAMILY_DEVICE_PROPERTIES;
}

static __noinline int send_device(struct thread *thread, const volatile struct api_descriptor *api,
				  struct open_call *call, __u64 now_ktime_ns)
{
	struct device_record *record;
	__u64 uuid = call->address;

	record = RESERVE_LIFECYCLE(thread->pid, record);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_DEVICE, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->device = (__s32)call->function;
	record->has_name = api->family == FAMILY_DEVICE_PROPERTIES;
	__builtin_memset(record->uuid, 0, sizeof(record->uuid));
	__builtin_memset(record->name, 0, sizeof(record->name));
	if (record->has_name) {
		if (bpf_probe_read_user_str(record->name, sizeof(record->name),
					    (void *)call->address) < 0)
			count(COUNTER_LOST_READ_FAULT);
		uuid += DEVICE_PROPERTIES_UUID_OFFSET;
	}
	read_user(record->uuid, sizeof(record->uuid), uuid);
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* Finds or loads code that is not run yet, or makes what it is run in. */
static __always_inline bool prepares(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_PREPARE || api->family == FAMILY_KERNEL ||
	       api->family == FAMILY_KERNEL_ALIAS;
}

/* A launch names a kernel by a handle, or by an address of the host. */
static __noinline int note_handle(const struct thread *thread, struct open_call *call, __u8 family,
				  __s32 status, __u64 now_ktime_ns)
{
	__u64 argument = call->function;
	struct handle_record *record;

	call->function = call->address;
	call->address = 0;
	if (status)
		return 0;
	record = RESERVE_LIFECYCLE(thread->pid, record);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_HANDLE, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->handle = call->function;
	record->same_as = family == FAMILY_KERNEL_ALIAS ? argument : 0;
	__builtin_memset(record->name, 0, sizeof(record->name));
	if (family == FAMILY_KERNEL &&
	    bpf_probe_read_user_str(record->name, sizeof(record->name), (void *)argument) < 0)
		count(COUNTER_LOST_READ_FAULT);
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/*
 * A call that was refused memory. In a program whose framework reports what it hands out, it is
 * not known yet whether that was the last attempt.
 */
static __noinline void note_failure(struct thread *thread, const struct open_call *call,
				    __u64 now_ktime_ns)
{
	struct device_key device = device_key_of(thread, call->device);
	struct device_memory *memory = bpf_map_lookup_elem(&device_memories, &device);

	thread->failed.ktime_ns = now_ktime_ns;
	thread->failed.asked_bytes = call->size_bytes;
	thread->failed.root_start_ktime_ns = call->start_ktime_ns;
	thread->failed.device = call->device;
	thread->failed.api = call->api;
	if (!memory)
		send_failed_call(thread);
}

/* A call that makes calls of another library asks for something else than they do. */
static __always_inline bool is_nested(struct thread *thread,
				      const volatile struct api_descriptor *api)
{
	__u32 around, layer;

	if (thread->depth < 2)
		return false;
	around = call_at(thread, thread->depth - 2)->api;
	layer = settings.apis[around < MAX_APIS ? around : 0].layer;
	/* The runtime and the driver are one in this. */
	return layer < LAYER_NCCL ? api->layer < LAYER_NCCL : api->layer == layer;
}

static __always_inline void count_call(struct thread *thread,
				       const volatile struct api_descriptor *api,
				       struct open_call *call, __s32 status, __u64 duration_ns,
				       __u64 size_bytes)
{
	struct aggregate_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		.status = status,
		.device = call->device,
		.metric = METRIC_CALL_DURATION,
		.api = call->api,
		.copy_kind = call->copy_kind,
		.nested = is_nested(thread, api),
	};

	add_to_bucket(
		&key,
		find_last_bucket(&thread->call_buckets[call->api % CALL_BUCKETS], duration_ns),
		duration_ns, size_bytes);
	if (api->family == FAMILY_COPY && !status && !key.nested && !call->has_no_size) {
		key.metric = METRIC_COPY_SIZE;
		key.api = 0;
		add_size(&key, size_bytes);
	}
}

/* An inner call can have the size that the arguments of the outer one lack. */
static __noinline int settle_size(struct thread *thread, const volatile struct api_descriptor *api,
				  const struct open_call *call)
{
	__u32 depth = thread->depth;
	struct open_call *parent;

	if (depth < 2) {
		if (call->has_no_size)
			count(COUNTER_LOST_SIZE);
		return 0;
	}
	parent = call_at(thread, depth - 2);
	if (parent->has_no_size && !call->has_no_size && parent->api < MAX_APIS &&
	    settings.apis[parent->api].family == api->family) {
		parent->size_bytes = call->size_bytes;
		parent->has_no_size = 0;
	}
	return 0;
}

static __always_inline bool only_asks(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_QUERY || api->family == FAMILY_ELAPSED_TIME ||
	       api->layer == LAYER_VERBS;
}

#endif
