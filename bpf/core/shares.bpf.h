/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares of the maps that all programs fill: one program, or the programs of one user, must leave
 * space for those of other users.
 *
 * A program can have as many entries as are free, and all programs of a user USER_SHARE times as
 * many as are free: dynamic thresholds, as otel_gpu/limits/shares.py explains. Only a thread that adds a new key checks
 * its share. What is refused is counted for the program, so that it can be named.
 *
 * Here is counted what the kernel side adds and removes. What the agent does to the maps is in
 * corrections of its own, as it has no atomic operations. Keys are where they are already: the
 * deepest chains of calls have hardly any stack left.
 */
#ifndef OTEL_GPU_BPF_CORE_SHARES_H
#define OTEL_GPU_BPF_CORE_SHARES_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

/* uid -> what its programs hold; ALL_USERS -> what all do. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct shares);
} user_shares __weak SEC(".maps");

/* The same keys; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct share_corrections);
} user_corrections __weak SEC(".maps");

/* What programs held when they ended; the agent frees that, and deletes it here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct program_key);
	__type(value, struct ended_shares);
} ended_shares __weak SEC(".maps");

static __always_inline struct shares *shares_of(const __u32 *uid)
{
	static const struct shares nothing = {};
	struct shares *shares = bpf_map_lookup_elem(&user_shares, uid);

	if (shares)
		return shares;
	bpf_map_update_elem(&user_shares, uid, &nothing, BPF_NOEXIST);
	return bpf_map_lookup_elem(&user_shares, uid);
}

/* Global functions, and of numbers alone: the verifier follows each once, and what calls them as if it did not branch. */
__weak __noinline int held_by(__u32 uid, __u32 kind)
{
	const struct share_corrections *corrections;
	const struct shares *shares = shares_of(&uid);
	__s32 held = 0;

	if (kind >= SHARE_COUNT)
		return 0;
	if (shares)
		held = *(volatile __s32 *)&shares->held[kind];
	corrections = bpf_map_lookup_elem(&user_corrections, &uid);
	return corrections ? held + corrections->held[kind] : held;
}

static __always_inline void add_to_shares(struct shares *shares, __u32 kind, __s32 entries)
{
	if (shares)
		__sync_fetch_and_add(&shares->held[kind], entries);
}

/* Of a user, and of all. */
__weak __noinline int add_to_user(__u32 uid, __u32 kind, int entries)
{
	__u32 everybody = ALL_USERS;

	if (kind >= SHARE_COUNT)
		return 0;
	add_to_shares(bpf_map_lookup_elem(&user_shares, &uid), kind, entries);
	add_to_shares(bpf_map_lookup_elem(&user_shares, &everybody), kind, entries);
	return 0;
}

/* Charge one entry to a user, for a program that holds this many; false: it has its share. */
static __always_inline bool charge(__u32 uid, __u32 kind, __s32 held)
{
	__s32 free = settings.share_bounds[kind] - held_by(ALL_USERS, kind);

	if (held >= free || held_by(uid, kind) >= USER_SHARE * free)
		return false;
	add_to_user(uid, kind, 1);
	return true;
}

/* Charge one entry to a program. Returns whether it may be added. */
__weak __noinline int take_share(struct process *process, __u32 kind)
{
	if (!process || kind >= SHARE_COUNT)
		return true; /* it ends this moment */
	if (!charge(process->uid, kind, process->shares.held[kind])) {
		__sync_fetch_and_add(&process->shares.refused[kind], 1);
		return false;
	}
	add_to_shares(&process->shares, kind, 1);
	return true;
}

/* An entry that was charged to a program was removed. */
__weak __noinline int release_share(struct process *process, __u32 kind)
{
	if (!process || kind >= SHARE_COUNT)
		return 0;
	add_to_shares(&process->shares, kind, -1);
	add_to_user(process->uid, kind, -1);
	return 0;
}

/* The same of what is charged to users alone. */
__weak __noinline int take_user_share(__u32 uid, __u32 kind)
{
	struct shares *user;

	if (kind >= SHARE_COUNT || charge(uid, kind, 0))
		return true;
	user = bpf_map_lookup_elem(&user_shares, &uid);
	if (user)
		__sync_fetch_and_add(&user->refused[kind], 1);
	return false;
}

static __always_inline int release_user_share(__u32 uid, __u32 kind)
{
	return add_to_user(uid, kind, -1);
}

/*
 * A program has ended, or its process becomes another one. What it holds is charged until the agent
 * frees it.
 */
static __noinline int end_shares(struct process *process, __u32 pid)
{
	struct program_key key = {.program_ktime_ns = process->program_ktime_ns, .pid = pid};
	struct ended_shares ended = {.uid = process->uid, .shares = process->shares};

	bpf_get_current_comm(ended.comm, COMM_BYTES);
	bpf_map_update_elem(&ended_shares, &key, &ended, BPF_ANY);
	return 0;
}

#endif
