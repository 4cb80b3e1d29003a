/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the door know of each other: wrappers, symbols, and the accounting of calls. */
#ifndef OTEL_GPU_DOOR_CALLS_H
#define OTEL_GPU_DOOR_CALLS_H

#include <stdbool.h>

#include "layout.h"

#define EXPORTED      __attribute__((visibility("default"), used))
#define likely(x)     __builtin_expect(!!(x), 1)
#define unlikely(x)   __builtin_expect(!!(x), 0)
#define SERIES_HASHES 256  /* of a thread: four times DOOR_SLOT_SERIES */
#define RETRY_CALLS   4096 /* of a thread without a slot, before it looks for one again */
#define COPIES	      6 /* of a function that programs look up: spellings, and versions of its library */
#define PLACES_BITS   10
#define PLACES	      (1 << PLACES_BITS) /* that call: kept; others are looked up each time */
#define ADDRESS_BITS  48
#define NO_DEVICE     100 /* cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE: where there is no library */

/*
 * A row of the probe table, and whether its calls are counted here, or by a probe. Slots are
 * arguments, as bpf/cuda/arguments.bpf.h has them.
 */
struct row {
	const char *name;
	__u16 api;
	__u8 counts;
	__u8 family;
	__u8 size_slot;
	__u8 size_shift;
	__u8 height_slot;
	__u8 stream_slot;
	__u8 address_slot;
	__u8 address_is_output;
	__u8 copy_kind_slot;
	__u8 fixed_copy_kind;
	__u8 launch_shape;
	__u8 function_slot;
	__u8 device_slot;
	__u8 stream_work;
};

#define BOUNDS_OF_BITS 4 /* that values of as many bits may be above: a scale of 2 has no more */

/* Ascending inclusive upper bounds, and where to begin to look: by the bits of a value. */
struct bounds {
	__u8 first[65];
	__u64 upper[MAX_BOUNDS + BOUNDS_OF_BITS]; /* nothing is above the last ones */
};

/* Of a call, in the frame of its wrapper. */
struct frame {
	struct door_slot *slot; /* NULL: the common part is used */
	__u64 epoch;		/* 0: nothing is counted */
	__u64 mark;		/* of a frame that is in use; see mark_of() */
	const __u64 *record;	/* of the wrapper: where it keeps its caller's frame and address */
	__u64 return_address;
	__u64 start_ktime_ns;
	__u32 depth;
	__s32 device;
	__u16 variant;
};

/* calls.c: before and after a call. slots are its arguments. */
void door_enter(struct frame *frame, const struct row *row, __u16 variant);
void door_leave(struct frame *frame, const struct row *row, int status, const __u64 *slots);
void door_count_loss(enum door_loss loss);

/*
 * memory.c: make the memory before the first call, which else has to wait until the agent reads it.
 * Leaves errno as it is, as the next one does.
 */
void door_begin_early(bool is_told);
/* Something was loaded whose calls are not seen here. Leaves errno as it is. */
void door_bind_past(void);

/* names.c: whether a library is of CUDA: its runtime or its driver. */
bool door_is_cuda(const char *path);
/* The row of a function, and which spelling of it a name is; NULL: of no row. */
const struct row *door_find_row(const char *symbol, __u16 *variant);
/* Whether a function gives out others. */
bool door_is_lookup(const char *symbol);

/* symbols.c: what a caller means by a name, and what to give out for what was found. */
void *door_look_up(__u64 key, const char *symbol, const void *caller);
void *door_wrapped(const char *symbol, void *found);
/* A function of libc that the door exports as well. */
void *door_next(const char *name);

/* Where something is called from, and the function that is meant there. */
struct place {
	__u64 key; /* the return address, and which function; 0: free */
	void *target;
};

extern __attribute__((visibility("hidden"))) struct place door_places[PLACES];

static inline __u32 place_of(__u64 key)
{
	return (key * 0x9e3779b97f4a7c15ull) >> (64 - PLACES_BITS);
}

/* The function that a caller means by a symbol; the number says which symbol. */
static inline void *door_target(__u32 number, const char *symbol, const void *caller)
{
	__u64 key = (__u64)caller | (__u64)(number + 1) << ADDRESS_BITS;
	struct place *place = &door_places[place_of(key)];

	if (__builtin_expect(__atomic_load_n(&place->key, __ATOMIC_ACQUIRE) == key, 1))
		return place->target;
	return door_look_up(key, symbol, caller);
}

/* wrappers.c */
struct copy {
	void *target; /* NULL: free */
	__u16 variant;
};

extern const struct row door_rows[];
extern const __u32 door_row_count;
extern struct copy door_copies[][COPIES];
extern void *const door_copy_wrappers[][COPIES];
extern struct copy door_lookup_copies[COPIES];
extern void *const door_lookup_wrappers[COPIES];

#endif
