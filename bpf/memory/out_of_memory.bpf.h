/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Requests for device memory that fail, and what was where at that moment.
 *
 * The agent reads the maps a moment later, when the program may have freed much of it. So what is
 * freed between a failure and that reading is kept apart, for the agent to put it back.
 */
#ifndef OTEL_GPU_BPF_MEMORY_OUT_OF_MEMORY_H
#define OTEL_GPU_BPF_MEMORY_OUT_OF_MEMORY_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define OUT_OF_MEMORY		  2 /* cudaErrorMemoryAllocation, CUDA_ERROR_OUT_OF_MEMORY */
#define OUT_OF_MEMORY_INTERVAL_NS 50000000
#define OUT_OF_MEMORY_BURST_NS	  1000000000

/* What a framework reports of each device; see events.h. Full is counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct device_key);
	__type(value, struct device_memory);
} device_memories __weak SEC(".maps");

/* When a request failed on a device whose map was not read since; the agent deletes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct device_key);
	__type(value, __u64);
} unread_maps __weak SEC(".maps");

/* What was freed since then. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct block_key);
	__type(value, struct block);
} freed_memory __weak SEC(".maps");

/* Rate limit of the host: theoretical arrival time. */
static __u64 out_of_memory_arrival_ktime_ns;

static __always_inline struct device_key device_key_of(const struct thread *thread, __s32 device)
{
	struct device_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		/* A thread that never chose one has the first. */
		.device = device < 0 ? 0 : device,
	};

	return key;
}

/* Keep what is freed, if it was there when a request failed and the agent does not know it yet. */
static __always_inline void keep_freed(const struct device_key *device, const struct block_key *key,
				       const struct block *block)
{
	__u64 *failed_ktime_ns = bpf_map_lookup_elem(&unread_maps, device);

	/* BPF_NOEXIST: what is there again was freed before, too. */
	if (failed_ktime_ns && block->ktime_ns <= *failed_ktime_ns &&
	    bpf_map_update_elem(&freed_memory, key, block, BPF_NOEXIST) &&
	    !bpf_map_lookup_elem(&freed_memory, key))
		count(COUNTER_LOST_BLOCKS_FULL);
}

static __always_inline void keep_freed_segment(const struct thread *thread, __u64 address,
					       const struct allocation *known)
{
	struct device_key device = device_key_of(thread, known->device);
	struct block_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.address = address,
		.pid = thread->pid,
		.kind = MEMORY_SEGMENT,
	};
	struct block segment = {
		.size_bytes = known->size_bytes,
		.ktime_ns = known->ktime_ns,
		.device = known->device,
	};

	keep_freed(&device, &key, &segment);
}

static __always_inline bool admit_failure(__u64 now_ktime_ns)
{
	if (admit_to(&out_of_memory_arrival_ktime_ns, now_ktime_ns, OUT_OF_MEMORY_INTERVAL_NS,
		     OUT_OF_MEMORY_BURST_NS))
		return true;
	count(COUNTER_OUT_OF_MEMORY_RATE_LIMITED);
	return false;
}

/* What failed is in the thread. The agent reads the map of an earlier failure first. */
__weak __noinline int send_failure(struct thread *thread, __u64 allocated_bytes,
				   __u64 reserved_bytes, __u32 source)
{
	struct out_of_memory_record *record;
	struct failed_request *failed;
	struct device_key device;
	__u64 now_ktime_ns;

	if (!thread)
		return 0;
	failed = &thread->failed;
	now_ktime_ns = failed->ktime_ns;
	device = device_key_of(thread, failed->device);
	bpf_map_update_elem(&unread_maps, &device, &now_ktime_ns, BPF_NOEXIST);
	record = RESERVE_EVENT(thread->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_OUT_OF_MEMORY, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->asked_bytes = failed->asked_bytes;
	record->allocated_bytes = allocated_bytes;
	record->reserved_bytes = reserved_bytes;
	record->device_free_bytes = thread->device_free_bytes;
	record->device_total_bytes = thread->device_total_bytes;
	record->device_ktime_ns = thread->device_ktime_ns;
	record->root_start_ktime_ns = failed->root_start_ktime_ns;
	record->user_stack = failed->user_stack;
	record->device = failed->device;
	record->source = source;
	record->api = failed->api;
	__builtin_memset(record->comm, 0, COMM_BYTES);
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/*
 * A call that was refused memory has failed for good: what it was for goes on without it. Until
 * then an allocator may give back what it has in its cache, and try again.
 */
__weak __noinline int send_failed_call(struct thread *thread)
{
	if (!thread || !thread->failed.ktime_ns)
		return 0;
	send_failure(thread, 0, 0, OUT_OF_MEMORY_CALL);
	thread->failed.ktime_ns = 0;
	return 0;
}

#endif
