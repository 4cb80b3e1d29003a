/* SPDX-License-Identifier: Apache-2.0 */
/* Where the memory is that calls are counted in, and what a thread keeps to itself. */
#ifndef OTEL_GPU_PRELOAD_STATE_H
#define OTEL_GPU_PRELOAD_STATE_H

#include <stdbool.h>

#include "clock.h"
#include "compiler.h"
#include "layout.h"

#define SERIES_HASHES 256 /* of a thread: four times PRELOAD_SLOT_SERIES */

enum memory_state {
	MEMORY_NONE = 0, /* in a wiped page */
	MEMORY_BEGUN = 1,
	MEMORY_READY = 2,
	MEMORY_REFUSED = 3,
};

/* In a page that is all zeros in a child. */
struct guard {
	__u32 state; /* enum memory_state */
	__u64 epoch; /* start_ktime_ns of the memory; 0: none yet */
};

struct self {
	struct preload_slot *slot; /* NULL: none; the common part is used */
	__u64 epoch;		   /* of the memory that the slot is in; 0: there is none */
	struct own_clock clock;
	volatile __u64 *sequence_name;	   /* see interruptions.h */
	struct preload_detector *detector; /* NULL: it has none */
	__s32 device;
	__u32 until_retry;
	__u32 until_detector;	/* calls before it asks for one again */
	__u8 is_rate_limited;	/* there was none */
	__u8 is_sampled;	/* the outermost open call is */
	__u8 inside[MAX_DEPTH]; /* something in the open call was reported, or counted by a probe */
	__u8 series[SERIES_HASHES]; /* number + 1 of a series in the slot, by the hash of its key */
};

/* What is not hidden from the compiler by a library's tables: this one is loaded at the start. */
#define OWN HIDDEN __thread __attribute__((tls_model("initial-exec")))

extern HIDDEN struct guard *preload_guard;
extern HIDDEN char *preload_memory;
extern OWN struct self preload_self;

#define HEADER	  ((struct preload_header *)preload_memory)
#define CONTROL	  ((const volatile struct preload_control *)(preload_memory + PRELOAD_CONTROL_OFFSET))
#define COMMON	  ((struct preload_common *)(preload_memory + PRELOAD_COMMON_OFFSET))
#define SLOTS	  ((struct preload_slot *)(preload_memory + PRELOAD_SLOTS_OFFSET))
#define DETECTORS ((struct preload_detector *)(preload_memory + PRELOAD_DETECTORS_OFFSET))

#define NO_SLOT	  ((const struct preload_slot *)~0ULL) /* see bpf/core/tasks.bpf.h */

void preload_count_loss(enum preload_loss loss);

static inline void add_shared(__u64 *sum, __u64 value)
{
	__atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}

#endif
