/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Communicators of NCCL: which there are, and what they are called on all ranks. The names are
 * NCCL's own (src/init.cc): a hash of the unique id, or of the parent's name. Where a child is made
 * inside a group or without blocking, its handle is not there when the call returns.
 *
 * The larger functions are global: the verifier walks each once.
 */
#ifndef OTEL_GPU_BPF_NCCL_COMMUNICATORS_H
#define OTEL_GPU_BPF_NCCL_COMMUNICATORS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define UNIQUE_ID_WORDS 16

/* Cumulative, and read by the agent. Not LRU: full is counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct communicator_key);
	__type(value, struct kept_communicator);
} communicators __weak SEC(".maps");

/* The generation of the communicator that a handle, with generation 0, is of now. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct communicator_key);
	__type(value, __u32);
} communicator_handles __weak SEC(".maps");

/* Those of a process; the stream in the key is 0. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct stream_key);
	__type(value, struct communicator_list);
} process_communicators __weak SEC(".maps");

/* By tid. LRU: a thread may end without them. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct unborn_list);
} unborn_communicators __weak SEC(".maps");

/* How many processes have turned out to have communicators: 0 on most hosts. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} collectives_epoch __weak SEC(".maps");

/* Too large for the BPF stack, so new ones are copied from here. */
static const struct kept_communicator new_communicator = {
	.communicator = {.rank = -1, .device = -1},
};
static const struct communicator_list no_communicators = {};
static const struct unborn_list none_unborn = {};

/* Names. */

struct hash {
	__u64 low;
	__u64 high;
};

static __always_inline void mix(struct hash *hash)
{
	hash->low += hash->high;
	hash->high ^= hash->low;
	hash->low ^= hash->low >> 31;
	hash->low *= 0x9de62bbc8cef3ce3ull;
	hash->high ^= hash->high >> 32;
	hash->high *= 0x485cd6311b599e79ull;
}

/* As one argument of NCCL's eatHash, of at most eight bytes. */
static __always_inline void eat(struct hash *hash, __u64 word, __u64 size_bytes)
{
	hash->low ^= size_bytes;
	mix(hash);
	hash->low += word;
}

static __always_inline __u64 digest(const struct hash *hash)
{
	__u64 value = hash->low;

	value ^= value >> 31;
	value *= 0xbac3bd562846de6bull;
	value += hash->high;
	value ^= value >> 32;
	return value * 0x995a187a14e7b445ull;
}

/* Of the unique id at an address: NCCL's getHash. 0: it cannot be read. */
__weak __noinline __u64 name_of_id(__u64 address)
{
	struct hash hash = {.low = 1 ^ (UNIQUE_ID_WORDS * 8), .high = 1};

	for (__u32 i = 0; i < UNIQUE_ID_WORDS; i++) {
		__u64 word = 0;

		if (bpf_probe_read_user(&word, sizeof(word), (void *)(address + i * 8))) {
			count(COUNTER_LOST_READ_FAULT);
			return 0;
		}
		mix(&hash);
		hash.low += word;
	}
	return digest(&hash);
}

/* Of a parent that has no name there is none. */
static __always_inline __u64 name_of_child(__u64 parent, __u32 child, __s32 color)
{
	struct hash hash = {.low = 1, .high = 1};

	if (!parent)
		return 0;
	eat(&hash, parent, sizeof(parent));
	eat(&hash, child, sizeof(child));
	eat(&hash, (__u32)color, sizeof(color));
	return digest(&hash);
}

/* NCCL's hashCombine. */
static __always_inline __u64 combine(__u64 base, __u64 value)
{
	struct hash hash = {.low = 1, .high = 1};

	eat(&hash, base, sizeof(base));
	eat(&hash, value, sizeof(value));
	return digest(&hash);
}

/* Which there are. */

static __always_inline struct communicator_key handle_key(const struct thread *thread, __u64 handle)
{
	struct communicator_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.handle = handle,
		.pid = thread->pid,
	};

	return key;
}

static __always_inline struct stream_key process_key(const struct thread *thread)
{
	struct stream_key key = {.program_ktime_ns = thread->program_ktime_ns, .pid = thread->pid};

	return key;
}

/* Leaves the generation in the key, which has to be 0; it stays that if the handle is not known. */
static __always_inline struct kept_communicator *find_communicator(struct communicator_key *key)
{
	__u32 *generation = bpf_map_lookup_elem(&communicator_handles, key);

	if (!generation)
		return NULL;
	key->generation = *generation;
	return bpf_map_lookup_elem(&communicators, key);
}

/* From now on, events and streams of the process are looked at. */
static __always_inline void follow_collectives(struct process *process)
{
	__u32 zero = 0, *epoch = bpf_map_lookup_elem(&collectives_epoch, &zero);

	if (process->flags & PROCESS_HAS_COMMUNICATORS || !epoch)
		return;
	__sync_fetch_and_or(&process->flags, PROCESS_HAS_COMMUNICATORS);
	__sync_fetch_and_add(epoch, 1);
}

static __always_inline void list_communicator(const struct thread *thread,
					      const struct communicator_key *key)
{
	struct stream_key process = process_key(thread);
	struct communicator_list *list = bpf_map_lookup_elem(&process_communicators, &process);

	if (!list) {
		bpf_map_update_elem(&process_communicators, &process, &no_communicators,
				    BPF_NOEXIST);
		list = bpf_map_lookup_elem(&process_communicators, &process);
	}
	if (!list)
		return;
	for (int i = 0; i < MAX_DEVICE_COMMUNICATORS; i++) {
		struct communicator_key *slot = &list->keys[i];

		if (slot->handle && bpf_map_lookup_elem(&communicators, slot))
			continue;
		*slot = *key;
		return;
	}
}

/*
 * Returns the generation; 0: the map is full. One that was made before it was watched can be met
 * by several threads at once, so the first of them has it. Ranks: the rank, and how many above it.
 */
__weak __noinline int make_communicator(__u32 tid, __u64 handle, __u64 id, __u64 ranks, __u32 flags)
{
	struct thread *thread = find_thread(tid);
	struct process *process = thread ? find_process(thread->pid) : NULL;
	struct kept_communicator *kept;
	struct communicator_key key;
	__u32 generation;

	if (!process)
		return 0;
	key = handle_key(thread, handle);
	generation = __sync_fetch_and_add(&process->communicators, 1) + 1;
	key.generation = generation;
	bpf_map_update_elem(&communicators, &key, &new_communicator, BPF_ANY);
	kept = bpf_map_lookup_elem(&communicators, &key);
	if (!kept) {
		count(COUNTER_LOST_COMMUNICATORS_FULL);
		return 0;
	}
	kept->communicator.id = id;
	kept->communicator.rank = (__u32)ranks;
	kept->communicator.rank_count = ranks >> 32;
	kept->communicator.device = thread->device;
	kept->communicator.flags = flags;
	/* Last: what has none is not read yet. */
	*(volatile __u64 *)&kept->communicator.made_ktime_ns = bpf_ktime_get_ns();
	list_communicator(thread, &key);
	follow_collectives(process);
	key.generation = 0;
	if (bpf_map_update_elem(&communicator_handles, &key, &generation,
				flags & COMMUNICATOR_LATE ? BPF_NOEXIST : BPF_ANY)) {
		key.generation = generation;
		bpf_map_delete_elem(&communicators, &key);
		key.generation = 0;
		if (!find_communicator(&key))
			count(COUNTER_LOST_COMMUNICATORS_FULL);
		return key.generation;
	}
	return generation;
}

/* The key gets the generation. NULL: the map is full. */
static __always_inline struct kept_communicator *add_communicator(const struct thread *thread,
								  struct communicator_key *key,
								  const struct unborn *known,
								  __u32 flags)
{
	key->generation = make_communicator(
		thread->tid, key->handle, known->id,
		(__u32)known->rank | (__u64)(__u32)known->rank_count << 32, flags);
	return key->generation ? bpf_map_lookup_elem(&communicators, key) : NULL;
}

/* One that a thread has asked for is there now, if its handle is. Returns whether it is not. */
__weak __noinline int is_still_unborn(const struct thread *thread, struct unborn *unborn)
{
	struct kept_communicator *kept;
	struct communicator_key key;

	if (!thread || !unborn || !unborn->where)
		return false;
	key = handle_key(thread, 0);
	if (bpf_probe_read_user(&key.handle, sizeof(key.handle), (void *)unborn->where))
		unborn->where = 0;
	if (!key.handle)
		return true;
	kept = add_communicator(thread, &key, unborn, 0);
	if (kept)
		kept->magic = unborn->id;
	unborn->where = 0;
	return false;
}

/* Those that a thread has asked for are there now, if their handles are. */
__weak __noinline int see_born(__u32 tid)
{
	struct unborn_list *list = bpf_map_lookup_elem(&unborn_communicators, &tid);
	struct thread *thread = find_thread(tid);
	bool waiting = false;

	if (!list || !thread)
		return 0;
	for (int i = 0; i < MAX_UNBORN; i++)
		waiting |= is_still_unborn(thread, &list->unborn[i]);
	if (!waiting)
		bpf_map_delete_elem(&unborn_communicators, &tid);
	return 0;
}

/* A child, whose handle may come later. */
static __always_inline void await_birth(__u32 tid, __u64 where, __u64 id, __s32 rank,
					__s32 rank_count)
{
	struct unborn_list *list = bpf_map_lookup_elem(&unborn_communicators, &tid);

	if (!list) {
		bpf_map_update_elem(&unborn_communicators, &tid, &none_unborn, BPF_ANY);
		list = bpf_map_lookup_elem(&unborn_communicators, &tid);
	}
	if (!list)
		return;
	for (int i = 0; i < MAX_UNBORN; i++) {
		struct unborn *unborn = &list->unborn[i];

		if (unborn->where)
			continue;
		unborn->where = where;
		unborn->id = id;
		unborn->rank = rank;
		unborn->rank_count = rank_count;
		see_born(tid);
		return;
	}
	count(COUNTER_LOST_COMMUNICATORS_FULL);
}

#endif
