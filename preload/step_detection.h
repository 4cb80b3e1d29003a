/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of threads that do not report them: calls are kept, and iterations of a period reported. */
#ifndef OTEL_GPU_PRELOAD_STEP_DETECTION_H
#define OTEL_GPU_PRELOAD_STEP_DETECTION_H

#include <stdbool.h>
#include <stddef.h>

#include "../bpf/step_detection.h"
#include "compiler.h"
#include "layout.h"
#include "row.h"
#include "state.h"

static __attribute__((noinline)) void claim_detector(const struct preload_slot *slot)
{
	if (preload_self.until_detector) {
		preload_self.until_detector--;
		return;
	}
	for (__u32 i = 0; i < PRELOAD_DETECTORS; i++) {
		struct step_detector *detector = &DETECTORS[i].detector;
		__u32 unset = 0;

		if (!__atomic_compare_exchange_n(&detector->tid, &unset, slot->tid, false,
						 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			continue;
		detector->area = 1;
		__atomic_store_n(&detector->pid, HEADER->pid, __ATOMIC_RELEASE);
		preload_self.detector = &DETECTORS[i];
		return;
	}
	if (!preload_self.is_rate_limited)
		preload_count_loss(PRELOAD_LOST_DETECTORS_FULL);
	preload_self.is_rate_limited = true;
	preload_self.until_detector = DETECTOR_AGAIN_CALLS;
}

/* The period has it that an iteration is over, which ended when the call before returned. */
static inline void report_iteration(struct preload_detector *own, __u64 end_ktime_ns)
{
	own->iterations[own->iterations_made % PRELOAD_ITERATIONS] = (struct preload_iteration){
		.start_ktime_ns = own->detector.start_ktime_ns,
		.end_ktime_ns = end_ktime_ns,
	};
	__atomic_store_n(&own->iterations_made, own->iterations_made + 1, __ATOMIC_RELEASE);
}

static inline void follow_detector(struct preload_detector *own, const struct row *row,
				   __u8 copy_kind, __u16 symbol, __u64 start_ktime_ns,
				   __u64 now_ktime_ns)
{
	struct step_detector *detector = &own->detector;
	__u64 returned_ktime_ns = detector->last_return_ktime_ns;
	__u32 kept = *(volatile __u32 *)&detector->kept;

	detector->made++;
	if (!returned_ktime_ns)
		returned_ktime_ns = start_ktime_ns;
	if (detector->area && kept < DETECTOR_CALLS) {
		own->calls[kept].start_ktime_ns = start_ktime_ns;
		describe_call(&own->calls[kept], row->api, copy_kind, symbol,
			      start_ktime_ns - returned_ktime_ns);
		__atomic_store_n(&detector->kept, kept + 1, __ATOMIC_RELEASE);
	}
	if (detector->start_mask && !is_same_again(detector, symbol)) {
		if (detector->is_over)
			report_iteration(own, returned_ktime_ns);
		advance_detector(detector, symbol, returned_ktime_ns);
	}
	detector->last_return_ktime_ns = now_ktime_ns;
}

/* Whether anybody wants to know of this thread's next call. */
static inline bool has_wanted_detector(const struct preload_slot *slot)
{
	const struct step_detector *detector;

	if (!(CONTROL->flags & PRELOAD_STEPS) || !CONTROL->generation)
		return false;
	if (unlikely(!preload_self.detector))
		claim_detector(slot);
	if (!preload_self.detector)
		return false;
	detector = &preload_self.detector->detector;
	return detector->start_mask ||
	       (detector->area && *(volatile __u32 *)&detector->kept < DETECTOR_CALLS);
}

/* The thread ends. */
static inline void leave_detector(void)
{
	if (!preload_self.detector)
		return;
	__atomic_store_n(&preload_self.detector->detector.has_ended, 1, __ATOMIC_RELEASE);
	preload_self.detector = NULL;
}

#endif
