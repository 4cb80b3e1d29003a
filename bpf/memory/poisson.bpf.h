/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Sampling in proportion to bytes: the mean distance of samples is given, their places are random. A
 * block that is sampled stands for as many bytes as its size over its probability to
 * be sampled. Without floating point.
 */
#ifndef OTEL_GPU_BPF_MEMORY_POISSON_H
#define OTEL_GPU_BPF_MEMORY_POISSON_H

#include "core/kernel_types.bpf.h"

#define ONE_16	       (1 << 16) /* 1, with 16 bits behind the point */
#define ONE_32	       (1ULL << 32)
#define LN_2_16	       45426 /* the logarithm of 2 */
#define MAX_SIZE       (1ULL << 40)
#define MAX_RATIO_32   (32 * ONE_32) /* hit for sure from here on */
#define SMALL_RATIO_32 (ONE_32 / 16)
#define HALVINGS       6
#define RATIO_BITS     20

/* The position of the highest bit. */
/* This and weight_of are global functions, so that the verifier follows their branches once. */
__weak __noinline __u32 highest_bit(__u64 value)
{
	__u32 bits = 0;

	for (__u32 step = 32; step; step /= 2) {
		if (value >> step) {
			value >>= step;
			bits += step;
		}
	}
	return bits;
}

/* A number of bytes with an exponential distribution; the mean is at most MAX_SIZE. */
static __always_inline __s64 next_interval(__u64 mean_bytes)
{
	__u64 chance = (__u64)bpf_get_prandom_u32() + 1; /* of 2^32 */
	__s64 bits = highest_bit(chance);
	__s64 above = (__s64)(chance << (32 - bits) >> 16) - ONE_16; /* the power of 2 */
	/* log2(1 + x) = x (1 + (1 - x) (a + b x + c x^2)), to 0.0003 */
	__s64 curve = 28887 + (above * (-15904 + (above * 5349 >> 16)) >> 16);
	__s64 log2 = (bits << 16) + (above * (ONE_16 + ((ONE_16 - above) * curve >> 16)) >> 16);

	return mean_bytes * ((((32 << 16) - log2) * LN_2_16) >> 16) >> 16;
}

/* size / (1 - exp(-size / mean)), to 0.1 %; both are at most MAX_SIZE. */
__weak __noinline __u64 weight_of(__u64 size_bytes, __u64 mean_bytes)
{
	__u64 ratio, power, square, cube, hit;
	__u32 halvings = 0;

	if (size_bytes >= MAX_SIZE || !mean_bytes)
		return size_bytes;
	ratio = (size_bytes << RATIO_BITS) / mean_bytes << (32 - RATIO_BITS);
	if (ratio >= MAX_RATIO_32)
		return size_bytes;
	if (ratio < SMALL_RATIO_32)
		return mean_bytes + size_bytes / 2 + (size_bytes * (ratio >> 16) / 12 >> 16);
	for (int i = 0; i < HALVINGS; i++) {
		if (ratio > ONE_32 / 2) {
			ratio /= 2;
			halvings++;
		}
	}
	square = ratio * ratio >> 32;
	cube = square * ratio >> 32;
	power = ONE_32 - ratio + square / 2 - cube / 6 + (square * square >> 32) / 24 -
		(square * cube >> 32) / 120;
	for (__u32 i = 0; i < HALVINGS; i++) {
		if (i < halvings)
			power = power * power >> 32;
	}
	hit = ONE_32 - power;
	return (size_bytes << RATIO_BITS) / (hit >> (32 - RATIO_BITS));
}

/* How many times it goes in, up or down by chance, so that it is right on average. */
static __always_inline __u32 round_by_chance(__u64 whole, __u64 part)
{
	__u64 rest = whole % part;

	return whole / part + ((bpf_get_prandom_u32() * part >> 32) < rest);
}

#endif
