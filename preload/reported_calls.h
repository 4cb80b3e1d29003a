/* SPDX-License-Identifier: Apache-2.0 */
/* Reports calls and gaps to the agent's probes, and chooses those that may become spans. */
#ifndef OTEL_GPU_PRELOAD_REPORTED_CALLS_H
#define OTEL_GPU_PRELOAD_REPORTED_CALLS_H

#include <stdbool.h>

#include "compiler.h"
#include "frame.h"
#include "layout.h"
#include "row.h"
#include "state.h"

/* Who counts here from now on. */
void otel_gpu_preload_thread(const struct preload_slot *slot, const void *memory);

/* Report that the thread counts its calls, to the agent with this generation; 0: to none. */
HIDDEN void preload_report_thread(struct preload_slot *slot, __u32 generation);
/* The gap since the thread's last call, as the one of this row begins. */
HIDDEN void preload_report_gap(const struct preload_slot *slot, const struct row *row,
			       __u64 now_ktime_ns);
/* What it was and when it ended is there already. */
HIDDEN void preload_report_call(const struct frame *frame, const struct row *row,
				struct preload_call *call, const __u64 *slots);

/* Whether an agent wants calls to be reported. */
static inline bool has_reader(void)
{
	return CONTROL->generation && !(CONTROL->flags & PRELOAD_NO_CALLS);
}

static inline __u8 choices_of(const struct frame *frame, const struct row *row, int status,
			      __u64 duration_ns)
{
	__u64 slow_ns = CONTROL->slow_ns[row->api], floor_ns = CONTROL->call_floor_ns;
	__u8 choices = 0;

	if (status)
		choices |= CHOICE_FAILED;
	if ((slow_ns && duration_ns >= slow_ns) || (floor_ns && duration_ns >= floor_ns))
		choices |= CHOICE_SLOW;
	if (preload_self.is_sampled)
		choices |= CHOICE_SAMPLED;
	if (CONTROL->flags & PRELOAD_FULL)
		choices |= CHOICE_FULL;
	if (preload_self.inside[frame->depth % MAX_DEPTH])
		choices |= CHOICE_PARENT;
	return choices;
}

#endif
