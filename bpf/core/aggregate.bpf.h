/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counting in the kernel: one histogram per series, exact at any call rate. */
#ifndef OTEL_GPU_BPF_CORE_AGGREGATE_H
#define OTEL_GPU_BPF_CORE_AGGREGATE_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/shares.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

/* Too large for the BPF stack, so new series are copied from here. */
static const struct aggregate new_aggregate = {};

#define SEARCHED_BOUNDS 256 /* a power of 2, more than MAX_BOUNDS */
#define MOST_OF_A_VALUE 0x7fffffffffffffffULL

/*
 * Find the bucket of a value among ascending inclusive upper bounds; those that are not used
 * are MOST_OF_A_VALUE. Its number is how many bounds are below the value. Without a branch, as the bounds are constants to
 * the verifier: it would follow every path through them.
 */
static __always_inline __u32 find_bucket(const volatile __u64 *bounds, __u64 value)
{
	__u32 below = 0;

	if (value > MOST_OF_A_VALUE)
		value = MOST_OF_A_VALUE;
	for (__u32 step = SEARCHED_BOUNDS / 2; step; step /= 2) {
		__u32 at = (below + step - 1) & (SEARCHED_BOUNDS - 1);

		below += (bounds[at] - value) >> 63 ? step : 0;
	}
	return below;
}

/* Global functions, so that the verifier walks each search once. Weak: several objects have them. */
__weak __noinline __u32 find_duration_bucket(__u64 duration_ns)
{
	return find_bucket(settings.duration_bounds_ns, duration_ns);
}

__weak __noinline __u32 find_size_bucket(__u64 size_bytes)
{
	return find_bucket(settings.size_bounds_bytes, size_bytes);
}

/* Durations of one kind are mostly in the bucket of the one before, which is tried first. */
static __always_inline __u32 find_last_bucket(__u8 *last, __u64 duration_ns)
{
	const volatile __u64 *bounds = settings.duration_bounds_ns;
	__u32 bucket = *last, below = (bucket - 1) & (SEARCHED_BOUNDS - 1);

	/* Below the first bucket there is none, which what is compared with then does not change. */
	if (duration_ns <= bounds[bucket & (SEARCHED_BOUNDS - 1)] &&
	    (!bucket || duration_ns > bounds[below]))
		return bucket;
	bucket = find_duration_bucket(duration_ns);
	*last = bucket;
	return bucket;
}

/* Begin a series, unless its program has its share of them. */
static __noinline struct aggregate *add_aggregate(const struct aggregate_key *key)
{
	struct process *process = bpf_map_lookup_elem(&processes, &key->pid);
	struct aggregate *aggregate;

	/* BPF_NOEXIST: another CPU may have begun the series, and counted already. */
	if (take_share(process, SHARE_SERIES) &&
	    bpf_map_update_elem(&aggregates, key, &new_aggregate, BPF_NOEXIST))
		release_share(process, SHARE_SERIES);
	aggregate = bpf_map_lookup_elem(&aggregates, key);
	if (!aggregate)
		count(COUNTER_LOST_SERIES_FULL);
	return aggregate;
}

static __always_inline struct aggregate *find_aggregate(const struct aggregate_key *key)
{
	struct aggregate *aggregate = bpf_map_lookup_elem(&aggregates, key);

	return aggregate ? aggregate : add_aggregate(key);
}

static __always_inline void add_to_bucket(const struct aggregate_key *key, __u32 bucket,
					  __u64 value, __u64 size_bytes)
{
	struct aggregate *aggregate = find_aggregate(key);

	if (!aggregate)
		return;
	__sync_fetch_and_add(&aggregate->sum, value);
	if (size_bytes)
		__sync_fetch_and_add(&aggregate->size_bytes, size_bytes);
	raise_to(&aggregate->max, value);
	raise_to(&aggregate->min_complement, ~value);
	barrier_var(bucket); /* or the check is on another copy than the one that is used */
	/* Last: a reader that sees the count also sees the sum. */
	if (bucket < MAX_BUCKETS)
		__sync_fetch_and_add(&aggregate->buckets[bucket], 1);
}

static __always_inline void add_duration(const struct aggregate_key *key, __u64 duration_ns,
					 __u64 size_bytes)
{
	add_to_bucket(key, find_duration_bucket(duration_ns), duration_ns, size_bytes);
}

static __always_inline void add_size(const struct aggregate_key *key, __u64 size_bytes)
{
	add_to_bucket(key, find_size_bucket(size_bytes), size_bytes, 0);
}

#endif
