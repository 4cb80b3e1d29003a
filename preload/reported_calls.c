// SPDX-License-Identifier: Apache-2.0
/*
 * What of calls and gaps is shown to the agent's probes: by calling empty functions, at which they are.
 * Few calls come here, and none that is merely counted.
 */
#include <string.h>

#include "arguments.h"
#include "frame.h"
#include "layout.h"
#include "reported_calls.h"
#include "row.h"
#include "state.h"

/* Each is a function of its own, and does nothing. */
#define PROBED __attribute__((visibility("default"), noinline, used))

/*
 * At the first call of each thread, and again for a new agent. Without a slot: there was none left, or
 * that call is still to come. Without a memory: nothing is counted in this process, which each thread
 * says again and again, or probes have to count what does not come through the door from now on.
 */
PROBED void otel_gpu_door_thread(const struct door_slot *slot, const void *memory)
{
	__asm__ volatile("nop" : : "r"(slot), "r"(memory) : "memory");
}

PROBED void otel_gpu_door_call(const struct door_call *call)
{
	__asm__ volatile("nop" : : "r"(call) : "memory");
}

PROBED void otel_gpu_door_gap(const struct door_gap *gap)
{
	__asm__ volatile("nop" : : "r"(gap) : "memory");
}

void door_introduce(struct door_slot *slot, __u32 generation)
{
	slot->generation = generation;
	if (generation)
		otel_gpu_door_thread(slot, door_memory);
}

void door_show_gap(const struct door_slot *slot, const struct row *row, __u64 now_ktime_ns)
{
	const struct door_gap gap = {
		.start_ktime_ns = slot->last_return_ktime_ns,
		.end_ktime_ns = now_ktime_ns,
		.device = slot->device,
		.previous_api = slot->last_api,
		.next_api = row->api,
	};

	otel_gpu_door_gap(&gap);
}

void door_show_call(const struct frame *frame, const struct row *row, struct door_call *call,
		    const __u64 *slots)
{
	const struct door_slot *slot = frame->slot;

	call->start_ktime_ns = frame->start_ktime_ns;
	call->root_start_ktime_ns = slot->calls[0].start_ktime_ns;
	if (frame->depth)
		call->parent_start_ktime_ns =
			slot->calls[(frame->depth - 1) % MAX_DEPTH].start_ktime_ns;
	call->stream = argument(slots, row->stream_slot);
	call->function = argument(slots, row->function_slot);
	if (!row->address_is_output)
		call->address = argument(slots, row->address_slot);
	else if (!call->status)
		memcpy(&call->address, (const void *)argument(slots, row->address_slot),
		       sizeof(call->address));
	if (row->launch_shape)
		read_launch(call, row, slots);
	call->weight = call->choices == CHOICE_SAMPLED ? CONTROL->sample_one_in : 1;
	call->depth = frame->depth;
	call->api = row->api;
	call->variant = frame->variant;
	if (frame->depth)
		door_self.inside[(frame->depth - 1) % MAX_DEPTH] = 1;
	otel_gpu_door_call(call);
}
