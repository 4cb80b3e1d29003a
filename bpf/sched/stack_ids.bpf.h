/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Kernel stacks have ids: a hash of their return addresses, compared. */
#ifndef OTEL_GPU_BPF_SCHED_STACK_IDS_H
#define OTEL_GPU_BPF_SCHED_STACK_IDS_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/shares.bpf.h"
#include "events.h"

#define STACK_FLOOR_NS 20000 /* shorter waits go without */

/* This CPU's buffers for the stack that is searched for: keys of stack_walk. */
#define SWITCH_BUFFER	0
#define ITERATOR_BUFFER 1

/*
 * Find the stack in one of this CPU's buffers among the known ones, or add it. Negative: it is not there. A global
 * function, so that the verifier walks its loops once, and not from each place that calls it.
 */
__weak __noinline __s64 find_known_stack(__u32 frames, __u32 buffer)
{
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &buffer), *known;
	__u64 hash = 0;
	__u32 id, uid;

	if (!walk)
		return -1;
	for (__u32 i = 0; i < MAX_STACK_FRAMES && i < frames; i++)
		hash = (hash ^ walk->addresses[i]) * 0x9e3779b97f4a7c15ULL;
	id = hash >> 34; /* the agent gives out those above */
	known = bpf_map_lookup_elem(&stacks, &id);
	if (!known) {
		for (__u32 i = 0; i < MAX_STACK_FRAMES; i++) {
			if (i >= frames)
				walk->addresses[i] = 0;
		}
		/* BPF_NOEXIST: another CPU may have found the same. */
		uid = bpf_get_current_uid_gid();
		if (take_user_share(uid, SHARE_STACKS) &&
		    bpf_map_update_elem(&stacks, &id, walk, BPF_NOEXIST))
			release_user_share(uid, SHARE_STACKS);
		known = bpf_map_lookup_elem(&stacks, &id);
	}
	if (!known)
		return -1;
	for (__u32 i = 0; i < MAX_STACK_FRAMES; i++) {
		if (i >= frames)
			return known->addresses[i] ? -1 : (long)id;
		if (known->addresses[i] != walk->addresses[i])
			return -1;
	}
	return id;
}

/* Returns how many frames there are, or the limit; 0: without a stack. */
static __always_inline __u32 unwind(void *source, struct kernel_stack *walk)
{
	long bytes = WALK_KERNEL_STACK(source, walk, sizeof(*walk));

	return bytes > 0 ? bytes / sizeof(__u64) : 0;
}

#endif
