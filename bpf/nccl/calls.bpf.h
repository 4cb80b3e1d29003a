/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Calls of NCCL. A rank's n-th call on a communicator is part of the n-th collective of all its
 * ranks, so a call counts where it returns: also inside a group, which only defers the work.
 */
#ifndef OTEL_GPU_BPF_NCCL_CALLS_H
#define OTEL_GPU_BPF_NCCL_CALLS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "cuda/arguments.bpf.h"
#include "cuda/stream_captures.bpf.h"
#include "events.h"
#include "nccl/communicator_calls.bpf.h"
#include "nccl/communicators.bpf.h"
#include "nccl/completions.bpf.h"

#define NO_REDUCTION 255
#define NCCL_FAILED  255 /* in the place of an enum nccl_call */

/* Of an ncclDataType_t; 0: a later one. */
static __always_inline __u64 datatype_bytes(__u32 datatype)
{
	switch (datatype & 0xff) {
	case 0:	 /* int8 */
	case 1:	 /* uint8 */
	case 10: /* float8e4m3 */
	case 11: /* float8e5m2 */
		return 1;
	case 6: /* float16 */
	case 9: /* bfloat16 */
		return 2;
	case 2: /* int32 */
	case 3: /* uint32 */
	case 7: /* float32 */
		return 4;
	case 4: /* int64 */
	case 5: /* uint64 */
	case 8: /* float64 */
		return 8;
	}
	return 0;
}

/* At the entry: what will be gone, or changed, at the return. */
static __noinline int read_nccl_call(struct pt_regs *ctx, const volatile struct api_descriptor *api,
				     struct open_call *call)
{
	struct arguments arguments;
	__u64 elements;

	take_arguments(ctx, &arguments);
	switch (api->nccl) {
	case NCCL_COLLECTIVE:
		elements = call->size_bytes;
		call->grid[0] = elements;
		call->grid[1] = elements >> 32;
		call->grid[2] = (__u8)read_slot(&arguments, api->datatype_slot) | api->operation
											  << 16;
		call->grid[2] |= api->reduction_slot
					 ? (__u8)read_slot(&arguments, api->reduction_slot) << 8
					 : NO_REDUCTION << 8;
		call->block[0] = api->root_slot ? read_slot(&arguments, api->root_slot) : -1;
		call->function = read_slot(&arguments, api->communicator_slot);
		call->size_bytes = elements * datatype_bytes(call->grid[2]);
		break;
	case NCCL_INIT_RANK:
		call->address = arguments.registers[0];
		call->grid[0] = arguments.registers[1];
#if defined(__TARGET_ARCH_x86)
		call->grid[1] = arguments.registers[2];
		call->function = arguments.stack;
#else
		call->grid[1] = arguments.registers[3];
		call->function = arguments.registers[2];
#endif
		/* The first field of the id is what its ranks know each other by. */
		read_user(&call->size_bytes, sizeof(__u64), call->function);
		call->function = name_of_id(call->function);
		break;
	case NCCL_INIT_RANK_SCALABLE:
		call->address = arguments.registers[0];
		call->grid[0] = arguments.registers[1];
		call->grid[1] = arguments.registers[2];
		read_user(&call->size_bytes, sizeof(__u64), arguments.registers[4]);
		call->function = name_of_id(arguments.registers[4]);
		break;
	case NCCL_INIT_ALL:
		call->address = arguments.registers[0];
		call->grid[0] = arguments.registers[1];
		call->size_bytes = arguments.registers[2];
		break;
	case NCCL_SPLIT:
		call->function = arguments.registers[0];
		call->grid[0] = arguments.registers[1];
		call->grid[1] = arguments.registers[2];
		call->address = arguments.registers[3];
		break;
	case NCCL_SHRINK:
		call->function = arguments.registers[0];
		call->size_bytes = arguments.registers[1];
		call->grid[0] = arguments.registers[2];
		call->address = arguments.registers[3];
		break;
	case NCCL_GROW:
		call->function = arguments.registers[0];
		call->grid[0] = arguments.registers[1];
		call->grid[1] = arguments.registers[3];
		call->address = arguments.registers[4];
		if (arguments.registers[2])
			read_user(&call->size_bytes, sizeof(__u64), arguments.registers[2]);
		break;
	default:
		call->function = arguments.registers[0];
		call->address = arguments.registers[1];
		break;
	}
	return 0;
}

/* Whether a call is inside another collective, which counts for both: as ncclBroadcast in ncclBcast. */
static __always_inline bool is_counted_outside(const struct thread *thread)
{
	const struct open_call *around;

	if (thread->depth < 2)
		return false;
	around = &thread->calls[(thread->depth - 2) % MAX_DEPTH];
	return settings.apis[around->api < MAX_APIS ? around->api : 0].nccl == NCCL_COLLECTIVE;
}

static __noinline struct kept_communicator *meet_communicator(const struct thread *thread,
							      struct communicator_key *key)
{
	struct kept_communicator *kept = find_communicator(key);
	struct unborn unknown = {.rank = -1};

	if (kept)
		return kept;
	see_born(thread->tid);
	kept = find_communicator(key);
	if (kept || !key->handle)
		return kept;
	return add_communicator(thread, key, &unknown, COMMUNICATOR_LATE);
}

/* The number of the collective; 0: it has none. */
static __always_inline __u64 add_collective(struct communicator *communicator,
					    struct open_call *call, __u64 now_ktime_ns)
{
	__u32 operation = call->grid[2] >> 16 & (MAX_COLLECTIVE_OPERATIONS - 1);
	struct collective *recent;
	__u64 number;

	__sync_fetch_and_add(&communicator->calls[operation], 1);
	__sync_fetch_and_add(&communicator->bytes[operation], call->size_bytes);
	if (operation == COLLECTIVE_SEND || operation == COLLECTIVE_RECEIVE)
		return 0;
	number = __sync_fetch_and_add(&communicator->called, 1) + 1;
	recent = &communicator->recent[number % RECENT_COLLECTIVES];
	/* Until it is whole, a reader takes it for none. */
	*(volatile __u64 *)&recent->number = 0;
	recent->count = call->grid[0] | (__u64)call->grid[1] << 32;
	recent->called_ktime_ns = now_ktime_ns;
	recent->root = call->block[0];
	recent->operation = operation;
	recent->datatype = call->grid[2];
	recent->reduction = call->grid[2] >> 8;
	*(volatile __u64 *)&recent->number = number;
	return number;
}

static __always_inline void count_collective(const struct thread *thread, struct open_call *call,
					     __u64 now_ktime_ns)
{
	struct communicator_key key = handle_key(thread, call->function);
	struct kept_communicator *kept;
	__u64 number;

	if (is_counted_outside(thread))
		return;
	kept = meet_communicator(thread, &key);
	if (!kept)
		return;
	call->address = kept->communicator.id;
	if (is_captured(thread, call->stream)) {
		__sync_fetch_and_add(&kept->communicator.captured, 1);
		return;
	}
	number = add_collective(&kept->communicator, call, now_ktime_ns);
	call->block[1] = number;
	call->block[2] = number >> 32;
	if (number)
		queue_work(thread, call->stream, &key, number, now_ktime_ns);
}

static __always_inline void note_failed_nccl_call(const struct thread *thread,
						  struct open_call *call)
{
	struct kept_communicator *kept = name_communicator(thread, call);

	if (kept && !is_counted_outside(thread))
		__sync_fetch_and_add(&kept->communicator.failed, 1);
}

/* At the return of the innermost open call of a thread, which is one of NCCL. */
__weak __noinline int after_nccl_call(__u32 tid, __s32 status, __u64 now_ktime_ns)
{
	struct thread *thread = find_thread(tid);
	struct open_call *call, *around;
	__u8 kind;

	if (!thread || !thread->depth)
		return 0;
	call = &thread->calls[(thread->depth - 1) % MAX_DEPTH];
	kind = settings.apis[call->api < MAX_APIS ? call->api : 0].nccl;
	if (status && (kind == NCCL_INIT_RANK || kind == NCCL_INIT_RANK_SCALABLE)) {
		call->address = call->function;
		kind = NCCL_FAILED;
	} else if (status) {
		note_failed_nccl_call(thread, call);
		if (kind == NCCL_COLLECTIVE)
			return 0;
		kind = NCCL_FAILED;
	}
	switch (kind) {
	case NCCL_COLLECTIVE:
		count_collective(thread, call, now_ktime_ns);
		return 0;
	case NCCL_FAILED:
		break;
	case NCCL_END_GROUP:
		call->address = 0;
		see_born(tid);
		break;
	case NCCL_GET_ID:
		call->address = 0;
		around = &thread->calls[(thread->depth - 2) % MAX_DEPTH];
		if (thread->depth < 2 || around->api >= MAX_APIS ||
		    settings.apis[around->api].nccl != NCCL_INIT_ALL)
			break;
		read_user(&around->stream, sizeof(__u64), call->function);
		around->function = name_of_id(call->function);
		break;
	case NCCL_INIT_RANK:
	case NCCL_INIT_RANK_SCALABLE:
		begin_communicator(thread, call, call->function, call->grid[1], call->grid[0]);
		break;
	case NCCL_INIT_ALL:
		add_all(thread, call);
		break;
	case NCCL_SPLIT:
		split_communicator(thread, call);
		break;
	case NCCL_SHRINK:
		shrink_communicator(thread, call);
		break;
	case NCCL_GROW:
		grow_communicator(thread, call);
		break;
	case NCCL_DESTROY:
		end_communicator(thread, call, COMMUNICATOR_DESTROYED);
		break;
	case NCCL_ABORT:
		end_communicator(thread, call, COMMUNICATOR_ABORTED);
		break;
	case NCCL_ASYNC_ERROR:
	case NCCL_COUNT:
	case NCCL_USER_RANK:
	case NCCL_DEVICE:
		learn_answer(thread, call, kind);
		break;
	default:
		name_communicator(thread, call);
		break;
	}
	/* These were to keep what the return needs. */
	call->size_bytes = 0;
	__builtin_memset(call->grid, 0, sizeof(call->grid));
	__builtin_memset(call->block, 0, sizeof(call->block));
	return 0;
}

#endif
