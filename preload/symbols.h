/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller means by a name, and what to give out for what was found. */
#ifndef OTEL_GPU_PRELOAD_SYMBOLS_H
#define OTEL_GPU_PRELOAD_SYMBOLS_H

#include "compiler.h"
#include "layout.h"

#define PLACES_BITS  10
#define PLACES	     (1 << PLACES_BITS) /* that call: kept; others are looked up each time */
#define ADDRESS_BITS 48

void *preload_resolve(__u64 key, const char *symbol, const void *caller);
void *preload_wrapped(const char *symbol, void *found);
/* A function of libc that the preload library exports as well. */
void *preload_next(const char *name);

/* Where something is called from, and the function that is meant there. */
struct place {
	__u64 key; /* the return address, and which function; 0: free */
	void *target;
};

extern HIDDEN struct place preload_places[PLACES];

static inline __u32 place_of(__u64 key)
{
	return (key * 0x9e3779b97f4a7c15ull) >> (64 - PLACES_BITS);
}

/* The function that a caller means by a symbol; the number identifies the symbol. */
static inline void *preload_target(__u32 number, const char *symbol, const void *caller)
{
	__u64 key = (__u64)caller | (__u64)(number + 1) << ADDRESS_BITS;
	struct place *place = &preload_places[place_of(key)];

	if (__builtin_expect(__atomic_load_n(&place->key, __ATOMIC_ACQUIRE) == key, 1))
		return place->target;
	return preload_resolve(key, symbol, caller);
}

#endif
