/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Where a block was allocated, as a key: of the Python frames there, or of the chain of frame pointers. */
#ifndef OTEL_GPU_BPF_MEMORY_BLOCK_STACKS_H
#define OTEL_GPU_BPF_MEMORY_BLOCK_STACKS_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/samples.bpf.h"
#include "core/shares.bpf.h"
#include "core/tasks.bpf.h"
#include "core/user_memory.bpf.h"
#include "events.h"
#include "python/frames.bpf.h"

#define MAX_FRAMES	   64
#define MAX_CHAIN_BYTES	   (8 << 20)
#define BLOCK_STACKS_BURST 500

/* Chains of frame pointers that leave functions out; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct chain_key);
	__type(value, __u32);
} broken_chains __weak SEC(".maps");

static __always_inline __u64 mix(__u64 hash, __u64 value)
{
	hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

/* Where the caller goes on. */
static __always_inline struct place caller_of(struct pt_regs *ctx)
{
	struct place place = place_of(ctx);

#if defined(__TARGET_ARCH_x86)
	place.instruction_pointer = 0;
	bpf_probe_read_user(&place.instruction_pointer, sizeof(__u64), (void *)place.stack_pointer);
	place.stack_pointer += sizeof(__u64);
#else
	place.instruction_pointer = place.link_register;
#endif
	return place;
}

struct python_hash {
	const struct sample_record *record;
	__u64 hash;
};

static __noinline long add_python_frame(__u32 step, struct python_hash *work)
{
	const struct python_frame *frame = &work->record->python_frames[step % MAX_PYTHON_FRAMES];

	if (step >= work->record->python_count)
		return 1;
	/* A shim is where the stack happens to be. */
	if (frame->flags & PYTHON_FRAME_SHIM)
		work->hash = mix(work->hash, PYTHON_FRAME_SHIM);
	else
		work->hash = mix(work->hash, frame->code + frame->offset);
	return 0;
}

struct frame_chain {
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 below; /* where the last frame was */
	__u64 hash;
};

static __noinline long follow_frame(__u32 step, struct frame_chain *chain)
{
	__u64 at = chain->frame_pointer;
	__u64 words[2]; /* the next frame pointer, and where the function returns to */

	if (at & 7 || at < chain->below || at - chain->stack_pointer >= MAX_CHAIN_BYTES ||
	    bpf_probe_read_user(words, sizeof(words), (void *)at) || !is_user_address(words[1]))
		return 1;
	chain->hash = mix(chain->hash, words[1]);
	chain->frame_pointer = words[0];
	chain->below = at + sizeof(words);
	return 0;
}

/* The key of a place without Python; STACK_OF_ONE: nothing distinguishes it from others. */
static __noinline __u64 key_of_chain(const struct place *place, const struct thread *thread)
{
	struct frame_chain chain = {
		.stack_pointer = place->stack_pointer,
		.frame_pointer = place->frame_pointer,
		.below = place->stack_pointer,
		.hash = mix(0, place->instruction_pointer),
	};
	struct chain_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
	};

	REPEAT(MAX_FRAMES, follow_frame, &chain);
	key.stack = chain.hash & ~STACK_OF_ONE;
	return bpf_map_lookup_elem(&broken_chains, &key) ? STACK_OF_ONE : key.stack;
}

/* The key of the place that a report comes from; 0: no buffer is free to find out. */
static __noinline __u64 key_of_place(struct pt_regs *ctx, const struct thread *thread)
{
	struct place place = caller_of(ctx);
	struct sample_record *record;
	struct sample_buffer *buffer;
	struct python_hash work = {};
	__u64 key;

	buffer = take_sample_buffer();
	if (!buffer)
		return 0;
	record = &buffer->sample.record;
	fill_header(&record->header, RECORD_SAMPLE, 0, 0, thread->program_ktime_ns, thread->pid,
		    thread->tid);
	record->stack_pointer = place.stack_pointer;
	walk_python(CURRENT_MEMORY, &buffer->sample);
	if (record->python_count &&
	    (record->python_status == PYTHON_COMPLETE || record->python_status == PYTHON_CUT)) {
		work.record = record;
		work.hash = mix(1, place.instruction_pointer);
		REPEAT(MAX_PYTHON_FRAMES, add_python_frame, &work);
		key = work.hash & ~STACK_OF_ONE;
	} else {
		key = key_of_chain(&place, thread);
	}
	*(volatile __u64 *)&buffer->is_taken = 0;
	return key;
}

/* Rate limit of the host: theoretical arrival time. */
static __u64 block_stack_arrival_ktime_ns;

/*
 * Whether a stack that is new may be sent. What is left when three quarters of the burst are used is for
 * all users, at a quarter of the rate for each. A global function, so that the verifier follows it once.
 */
__weak __noinline int admit_stack(__u32 pid, __u64 now_ktime_ns)
{
	__u64 interval_ns = settings.block_stack_interval_ns;
	__u64 ahead_ns = since(now_ktime_ns, *(volatile __u64 *)&block_stack_arrival_ktime_ns);
	struct process *process = find_process(pid);
	struct shares *user;

	if (process && ahead_ns > BLOCK_STACKS_BURST / 4 * 3 * interval_ns) {
		user = bpf_map_lookup_elem(&user_shares, &process->uid);
		if (user && !admit_to(&user->block_stack_arrival_ktime_ns, now_ktime_ns,
				      4 * interval_ns, BLOCK_STACKS_BURST / 2 * interval_ns)) {
			__sync_fetch_and_add(&process->shares.refused[SHARE_BLOCK_STACKS], 1);
			count(COUNTER_BLOCK_STACKS_RATE_LIMITED);
			return false;
		}
	}
	if (admit_to(&block_stack_arrival_ktime_ns, now_ktime_ns, interval_ns,
		     BLOCK_STACKS_BURST * interval_ns))
		return true;
	count(COUNTER_BLOCK_STACKS_RATE_LIMITED);
	return false;
}

#endif
