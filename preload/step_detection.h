/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of threads that do not tell them: calls are kept, and rounds of a rhythm reported. */
#ifndef OTEL_GPU_PRELOAD_STEP_DETECTION_H
#define OTEL_GPU_PRELOAD_STEP_DETECTION_H

#include <stdbool.h>
#include <stddef.h>

#include "../bpf/step_detection.h"
#include "compiler.h"
#include "layout.h"
#include "row.h"
#include "state.h"

static __attribute__((noinline)) void claim_rhythm(const struct preload_slot *slot)
{
	if (preload_self.until_rhythm) {
		preload_self.until_rhythm--;
		return;
	}
	for (__u32 i = 0; i < PRELOAD_RHYTHMS; i++) {
		struct rhythm *rhythm = &RHYTHMS[i].rhythm;
		__u32 nobody = 0;

		if (!__atomic_compare_exchange_n(&rhythm->tid, &nobody, slot->tid, false,
						 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		rhythm->area = 1;
		__atomic_store_n(&rhythm->pid, HEADER->pid, __ATOMIC_RELEASE);
		preload_self.rhythm = &RHYTHMS[i];
		return;
	}
	if (!preload_self.is_withheld)
		preload_count_loss(PRELOAD_LOST_RHYTHMS_FULL);
	preload_self.is_withheld = true;
	preload_self.until_rhythm = RHYTHM_AGAIN_CALLS;
}

/* The rhythm has it that a round is over, which ended when the call before returned. */
static inline void report_round(struct preload_rhythm *own, __u64 end_ktime_ns)
{
	own->rounds[own->rounds_made % PRELOAD_ROUNDS] = (struct preload_round){
		.start_ktime_ns = own->rhythm.start_ktime_ns,
		.end_ktime_ns = end_ktime_ns,
	};
	__atomic_store_n(&own->rounds_made, own->rounds_made + 1, __ATOMIC_RELEASE);
}

static inline void follow_rhythm(struct preload_rhythm *own, const struct row *row, __u8 copy_kind,
				 __u16 symbol, __u64 start_ktime_ns, __u64 now_ktime_ns)
{
	struct rhythm *rhythm = &own->rhythm;
	__u64 returned_ktime_ns = rhythm->last_return_ktime_ns;
	__u32 kept = *(volatile __u32 *)&rhythm->kept;

	rhythm->made++;
	if (!returned_ktime_ns)
		returned_ktime_ns = start_ktime_ns;
	if (rhythm->area && kept < RHYTHM_CALLS) {
		own->calls[kept].start_ktime_ns = start_ktime_ns;
		describe_call(&own->calls[kept], row->api, copy_kind, symbol,
			      start_ktime_ns - returned_ktime_ns);
		__atomic_store_n(&rhythm->kept, kept + 1, __ATOMIC_RELEASE);
	}
	if (rhythm->start_mask && !is_same_again(rhythm, symbol)) {
		if (rhythm->is_over)
			report_round(own, returned_ktime_ns);
		take_turn(rhythm, symbol, returned_ktime_ns);
	}
	rhythm->last_return_ktime_ns = now_ktime_ns;
}

/* Whether anybody wants to know of this thread's next call. */
static inline bool has_wanted_rhythm(const struct preload_slot *slot)
{
	const struct rhythm *rhythm;

	if (!(CONTROL->flags & PRELOAD_STEPS) || !CONTROL->generation)
		return false;
	if (unlikely(!preload_self.rhythm))
		claim_rhythm(slot);
	if (!preload_self.rhythm)
		return false;
	rhythm = &preload_self.rhythm->rhythm;
	return rhythm->start_mask ||
	       (rhythm->area && *(volatile __u32 *)&rhythm->kept < RHYTHM_CALLS);
}

/* The thread ends. */
static inline void leave_rhythm(void)
{
	if (!preload_self.rhythm)
		return;
	__atomic_store_n(&preload_self.rhythm->rhythm.has_ended, 1, __ATOMIC_RELEASE);
	preload_self.rhythm = NULL;
}

#endif
