// SPDX-License-Identifier: Apache-2.0
/*
 * Reports calls and gaps to the agent's probes, by calling empty functions that have probes.
 * Few calls are reported, and none that is merely counted.
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
 * repeats, or probes have to count the calls that bypass the library from now on.
 */
PROBED void otel_gpu_preload_thread(const struct preload_slot *slot, const void *memory)
{
	__asm__ volatile("nop" : : "r"(slot), "r"(memory) : "memory");
}

PROBED void otel_gpu_preload_call(const struct preload_call *call)
{
	__asm__ volatile("nop" : : "r"(call) : "memory");
}

PROBED void otel_gpu_preload_gap(const struct preload_gap *gap)
{
	__asm__ volatile("nop" : : "r"(gap) : "memory");
}

void preload_report_thread(struct preload_slot *slot, __u32 generation)
{
	slot->generation = generation;
	if (generation)
		otel_gpu_preload_thread(slot, preload_memory);
}

void preload_report_gap(const struct preload_slot *slot, const struct row *row, __u64 now_ktime_ns)
{
	const struct preload_gap gap = {
		.start_ktime_ns = slot->last_return_ktime_ns,
		.end_ktime_ns = now_ktime_ns,
		.device = slot->device,
		.previous_api = slot->last_api,
		.next_api = row->api,
	};

	otel_gpu_preload_gap(&gap);
}

void preload_report_call(const struct frame *frame, const struct row *row,
			 struct preload_call *call, const __u64 *slots)
{
	const struct preload_slot *slot = frame->slot;

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
		preload_self.inside[(frame->depth - 1) % MAX_DEPTH] = 1;
	otel_gpu_preload_call(call);
}
