/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Calls that make, divide and end communicators, or ask for what they are. */
#ifndef OTEL_GPU_BPF_NCCL_COMMUNICATOR_CALLS_H
#define OTEL_GPU_BPF_NCCL_COMMUNICATOR_CALLS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "cuda/arguments.bpf.h"
#include "events.h"
#include "nccl/communicators.bpf.h"

#define IN_PROGRESS	      7 /* ncclInProgress: no failure, nor an error of a communicator */
#define NO_COLOR	      (-1)
#define MAX_RANKS_OF_INIT_ALL 16
#define MAX_EXCLUDED	      32 /* ranks that a shrink leaves out, and whose order is known */

/* Keep the communicator of the call for its span. */
static __noinline int begin_communicator(const struct thread *thread, struct open_call *call,
					 __u64 id, __s32 rank, __s32 rank_count)
{
	struct communicator_key key = handle_key(thread, 0);
	struct unborn known = {.id = id, .rank = rank, .rank_count = rank_count};
	struct kept_communicator *kept;

	read_user(&key.handle, sizeof(key.handle), call->address);
	call->address = id;
	if (!key.handle)
		return 0;
	kept = add_communicator(thread, &key, &known, 0);
	if (kept)
		kept->magic = call->size_bytes;
	call->function = key.handle;
	return 0;
}

/* Of a rank among all of a process. */
__weak __noinline int add_rank(const struct thread *thread, const struct open_call *call, __u64 id,
			       __u32 rank)
{
	struct unborn known = {.id = id, .rank = rank};
	struct kept_communicator *kept;
	struct communicator_key key;
	__s32 device = rank;

	if (!thread || !call)
		return 0;
	known.rank_count = call->grid[0];
	key = handle_key(thread, 0);
	read_user(&key.handle, sizeof(key.handle), call->address + rank * sizeof(key.handle));
	if (call->size_bytes)
		read_user(&device, sizeof(device), call->size_bytes + rank * sizeof(device));
	kept = key.handle ? add_communicator(thread, &key, &known, 0) : NULL;
	if (!kept)
		return 0;
	kept->magic = call->stream;
	kept->communicator.device = device;
	return 0;
}

/* All ranks are in this process, so the name may be of it alone, if NCCL's is not known. */
static __noinline int add_all(const struct thread *thread, struct open_call *call)
{
	__u64 id = call->function ?: combine(thread->program_ktime_ns, call->start_ktime_ns);

	for (__u32 i = 0; i < MAX_RANKS_OF_INIT_ALL && i < call->grid[0]; i++)
		add_rank(thread, call, id, i);
	if (call->grid[0] > MAX_RANKS_OF_INIT_ALL)
		count_many(COUNTER_LOST_COMMUNICATORS_FULL, call->grid[0] - MAX_RANKS_OF_INIT_ALL);
	call->function = 0;
	call->address = id;
	call->stream = 0;
	return 0;
}

/* The order of its ranks is that of the keys: where they are ranks themselves, this one's. */
static __noinline int split_communicator(const struct thread *thread, struct open_call *call)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *parent = find_communicator(&key);
	__s32 color = call->grid[0], rank = call->grid[1];
	__u64 where = call->address, id;

	call->address = 0;
	if (!parent)
		return 0;
	parent->children++;
	if (color == NO_COLOR)
		return 0;
	if (rank < 0 || rank >= parent->communicator.rank_count)
		rank = -1;
	id = name_of_child(parent->communicator.id, parent->children, color);
	await_birth(thread->tid, where, id, rank, 0);
	call->address = id;
	return 0;
}

static __noinline int shrink_communicator(const struct thread *thread, struct open_call *call)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *parent = find_communicator(&key);
	__u32 excluded = call->grid[0];
	__u64 where = call->address, id;
	__s32 rank, rank_count, below = 0;

	call->address = 0;
	if (!parent)
		return 0;
	rank_count = parent->communicator.rank_count - (__s32)excluded;
	rank = excluded <= MAX_EXCLUDED ? parent->communicator.rank : -1;
	for (__u32 i = 0; i < MAX_EXCLUDED && i < excluded && rank > 0; i++) {
		__s32 other = 0;

		read_user(&other, sizeof(other), call->size_bytes + i * sizeof(other));
		/* One less if it is below, without a branch: the verifier would follow both each time. */
		below += (__u64)((__s64)other - rank) >> 63;
	}
	rank -= below;
	id = name_of_child(parent->communicator.id, 0, 0);
	await_birth(thread->tid, where, id, rank, rank_count > 0 ? rank_count : 0);
	call->address = id;
	return 0;
}

/* Those who come anew have an id whose first field the others make of what they have. */
static __noinline int grow_communicator(const struct thread *thread, struct open_call *call)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *parent = call->function ? find_communicator(&key) : NULL;
	__s32 rank = call->grid[1], rank_count = call->grid[0];

	if (parent) {
		parent->children++;
		rank = parent->communicator.rank;
		call->size_bytes = parent->magic ? combine(parent->magic, parent->children) : 0;
	}
	return begin_communicator(thread, call,
				  call->size_bytes ? combine(call->size_bytes, rank_count) : 0,
				  rank, rank_count);
}

/* Name the communicator in the span of the call. */
static __always_inline struct kept_communicator *name_communicator(const struct thread *thread,
								   struct open_call *call)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *kept = find_communicator(&key);

	call->address = kept ? kept->communicator.id : 0;
	return kept;
}

/* Its handle can be another communicator's by now. */
static __always_inline void end_communicator(const struct thread *thread, struct open_call *call,
					     __u32 flag)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *kept = name_communicator(thread, call);

	if (!kept || kept->communicator.made_ktime_ns > call->start_ktime_ns)
		return;
	__sync_fetch_and_or(&kept->communicator.flags, flag);
	bpf_map_delete_elem(&communicator_handles, &key);
}

/* What NCCL has answered. */
static __always_inline void learn_answer(const struct thread *thread, struct open_call *call,
					 __u8 asked)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *kept;
	__u64 where = call->address;
	__s32 answer = 0;

	call->address = 0;
	if (bpf_probe_read_user(&answer, sizeof(answer), (void *)where))
		return;
	/* It may have waited for a child. */
	if (asked == NCCL_ASYNC_ERROR && answer != IN_PROGRESS)
		see_born(thread->tid);
	kept = find_communicator(&key);
	if (!kept)
		return;
	call->address = kept->communicator.id;
	switch (asked) {
	case NCCL_ASYNC_ERROR:
		if (answer == IN_PROGRESS)
			answer = 0;
		if (kept->communicator.async_error != answer)
			kept->communicator.async_error = answer;
		break;
	case NCCL_COUNT:
		kept->communicator.rank_count = answer;
		break;
	case NCCL_USER_RANK:
		kept->communicator.rank = answer;
		break;
	case NCCL_DEVICE:
		kept->communicator.device = answer;
		break;
	}
}

#endif
