/* SPDX-License-Identifier: Apache-2.0 */
/* Counting: the same keys and buckets as in bpf/core/aggregate.bpf.h. */
#ifndef OTEL_GPU_PRELOAD_SERIES_H
#define OTEL_GPU_PRELOAD_SERIES_H

#include <stdbool.h>
#include <stddef.h>

#include "layout.h"
#include "state.h"

/* Whole for a signal handler of the same thread, which may count as well. */
static inline void add_own(__u64 *sum, __u64 value)
{
#if defined(__x86_64__)
	__asm__("addq %1, %0" : "+m"(*sum) : "re"(value) : "cc");
#else
	*(volatile __u64 *)sum += value;
#endif
}

/* A struct preload_key in registers: fields that are written one by one are slow to read as a whole. */
struct key {
	__u64 words[2];
};

_Static_assert(sizeof(struct key) == sizeof(struct preload_key), "the same bytes");

static inline struct key key_of(__s32 status, __s32 device, __u16 metric, __u16 api, __u8 copy_kind,
				bool nested)
{
	return (struct key){{
		(__u32)status | (__u64)(__u32)device << 32,
		metric | (__u64)api << 16 | (__u64)copy_kind << 32 | (__u64)nested << 40,
	}};
}

static inline __u64 *words_of(struct preload_series *series)
{
	return (__u64 *)(void *)&series->key;
}

static inline __u32 hash_of(const __u64 *words)
{
	return (words[0] * 0x9e3779b97f4a7c15ull ^ words[1] * 0xc2b2ae3d27d4eb4full) >> 56;
}

static inline void index_series(struct preload_slot *slot, __u32 number)
{
	__u32 at = hash_of(words_of(&slot->series[number]));

	while (preload_self.series[at])
		at = (at + 1) % SERIES_HASHES;
	preload_self.series[at] = number + 1;
}

static inline bool has_key(struct preload_series *series, struct key key)
{
	const __u64 *words = words_of(series);

	return words[1] == key.words[1] && words[0] == key.words[0];
}

/* The metric is in the second word. */
static inline struct preload_series *begin_series(struct preload_series *series, struct key key)
{
	words_of(series)[0] = key.words[0];
	__atomic_store_n(&words_of(series)[1], key.words[1], __ATOMIC_RELEASE);
	return series;
}

/* NULL: the slot is full. */
static inline struct preload_series *own_series(struct preload_slot *slot, struct key key)
{
	__u32 number;

	for (__u32 at = hash_of(key.words); preload_self.series[at];
	     at = (at + 1) % SERIES_HASHES) {
		number = preload_self.series[at] - 1;
		if (has_key(&slot->series[number], key))
			return &slot->series[number];
	}
	/* Atomic, as a signal's handler may begin another one. */
	number = slot->series_begun;
	if (number < PRELOAD_SLOT_SERIES)
		number = __atomic_fetch_add(&slot->series_begun, 1, __ATOMIC_RELAXED);
	if (number >= PRELOAD_SLOT_SERIES)
		return NULL;
	begin_series(&slot->series[number], key);
	index_series(slot, number);
	return &slot->series[number];
}

/* Two threads may begin the same series: the reader adds them up. */
static inline struct preload_series *common_series(struct key key)
{
	__u32 begun = __atomic_load_n(&HEADER->common_begun, __ATOMIC_ACQUIRE);

	for (__u32 i = 0; i < begun && i < PRELOAD_COMMON_SERIES; i++) {
		if (has_key(&COMMON->series[i], key))
			return &COMMON->series[i];
	}
	do {
		if (begun >= PRELOAD_COMMON_SERIES)
			return NULL;
	} while (!__atomic_compare_exchange_n(&HEADER->common_begun, &begun, begun + 1, false,
					      __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
	return begin_series(&COMMON->series[begun], key);
}

#define BOUNDS_OF_BITS 4 /* that values of as many bits may be above: a scale of 2 has no more */

/* Ascending inclusive upper bounds, and where the search begins: by the bits of a value. */
struct bounds {
	__u8 first[65];
	__u64 upper[MAX_BOUNDS + BOUNDS_OF_BITS]; /* nothing is above the last ones */
};

/* Without a branch: by the value it would be a guess, and a wrong one takes longer than all of this. */
static inline __u32 find_bucket(const struct bounds *bounds, __u64 value)
{
	__u32 first = bounds->first[value ? 64 - __builtin_clzll(value) : 0], bucket = first;

	for (int i = 0; i < BOUNDS_OF_BITS; i++)
		bucket += value > bounds->upper[first + i];
	return bucket;
}

static inline void raise_shared(__u64 *most, __u64 value)
{
	__u64 before = __atomic_load_n(most, __ATOMIC_RELAXED);

	while (before < value && !__atomic_compare_exchange_n(most, &before, value, false,
							      __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

static __attribute__((noinline, unused)) void add_common(struct key key, __u32 bucket, __u64 value,
							 __u64 size_bytes)
{
	struct preload_series *series = common_series(key);
	struct aggregate *aggregate = series ? &series->aggregate : NULL;

	if (!aggregate) {
		preload_count_loss(PRELOAD_LOST_SERIES_FULL);
		return;
	}
	add_shared(&aggregate->sum, value);
	add_shared(&aggregate->size_bytes, size_bytes);
	raise_shared(&aggregate->max, value);
	raise_shared(&aggregate->min_complement, ~value);
	__atomic_fetch_add(&aggregate->buckets[bucket], 1, __ATOMIC_RELEASE);
}

static inline void add_value(struct preload_slot *slot, struct key key, const struct bounds *bounds,
			     __u64 value, __u64 size_bytes)
{
	struct preload_series *series = slot ? own_series(slot, key) : NULL;
	__u32 bucket = find_bucket(bounds, value);
	struct aggregate *aggregate;

	if (!series) {
		add_common(key, bucket, value, size_bytes);
		return;
	}
	aggregate = &series->aggregate;
	add_own(&aggregate->sum, value);
	add_own(&aggregate->size_bytes, size_bytes);
	if (aggregate->max < value)
		aggregate->max = value;
	if (aggregate->min_complement < ~value)
		aggregate->min_complement = ~value;
	/* Last: a reader that sees the count also sees the sum. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	add_own(&aggregate->buckets[bucket], 1);
}

#endif
