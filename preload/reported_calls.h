/* SPDX-License-Identifier: Apache-2.0 */
/* What of calls and gaps is shown to the agent's probes, and which of them may be worth it. */
#ifndef OTEL_GPU_PRELOAD_REPORTED_CALLS_H
#define OTEL_GPU_PRELOAD_REPORTED_CALLS_H

#include <stdbool.h>

#include "compiler.h"
#include "frame.h"
#include "layout.h"
#include "row.h"
#include "state.h"

/* Who counts here from now on. */
void otel_gpu_door_thread(const struct door_slot *slot, const void *memory);

/* The thread says that it counts its calls, to the agent that has this generation; 0: to none. */
HIDDEN void door_introduce(struct door_slot *slot, __u32 generation);
/* The gap since the thread's last call, as the one of this row begins. */
HIDDEN void door_show_gap(const struct door_slot *slot, const struct row *row, __u64 now_ktime_ns);
/* What it was and when it ended is there already. */
HIDDEN void door_show_call(const struct frame *frame, const struct row *row, struct door_call *call,
			   const __u64 *slots);

/* Whether somebody is there who wants to be shown anything. */
static inline bool has_viewer(void)
{
	return CONTROL->generation && !(CONTROL->flags & DOOR_NO_CALLS);
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
	if (door_self.is_sampled)
		choices |= CHOICE_SAMPLED;
	if (CONTROL->flags & DOOR_FULL)
		choices |= CHOICE_FULL;
	if (door_self.inside[frame->depth % MAX_DEPTH])
		choices |= CHOICE_PARENT;
	return choices;
}

#endif
