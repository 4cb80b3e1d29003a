// SPDX-License-Identifier: Apache-2.0
/*
 * The preload library: counts the CUDA calls of the program that preloads it, for the agent to read.
 *
 * layout.h has what it writes and where. After a thread's first call it allocates nothing, takes no lock
 * and makes no system call.
 */
#include <stdbool.h>
#include <string.h>

#include "arguments.h"
#include "bounds.h"
#include "calls.h"
#include "clock.h"
#include "compiler.h"
#include "frame.h"
#include "interruptions.h"
#include "layout.h"
#include "memory.h"
#include "reported_calls.h"
#include "row.h"
#include "series.h"
#include "state.h"
#include "step_detection.h"

#define NOT_READY	 600 /* of cudaError_t and CUresult alike */
#define SAME_STACK_BYTES 65536

static inline __u64 gap_ns_until(const struct preload_slot *slot, __u64 now_ktime_ns)
{
	/* A signal's handler may have made calls since then. */
	return now_ktime_ns > slot->last_return_ktime_ns ? now_ktime_ns - slot->last_return_ktime_ns
							 : 0;
}

/* Between two outermost calls of a thread. */
static void count_gap(struct preload_slot *slot, const struct row *row, __u64 now_ktime_ns)
{
	__u64 gap_ns = gap_ns_until(slot, now_ktime_ns);

	add_own(&slot->places[slot->last_api % MAX_APIS].gap_ns, gap_ns);
	if (row->family == FAMILY_LAUNCH || row->family == FAMILY_GRAPH_LAUNCH)
		add_value(slot, key_of(0, slot->device, METRIC_LAUNCH_GAP, 0, COPY_NONE, false),
			  &duration_bounds, gap_ns, 0);
}

/* What is in a frame while its call is open, and hardly anywhere else. */
static inline __u64 mark_of(__u64 stack_pointer, __u64 start_ktime_ns)
{
	return ~stack_pointer ^ start_ktime_ns << 16;
}

/*
 * Whether the frame of an open call is still there, as another one is entered. The frame of a call
 * inside is below that of the one around it. While a frame is there, so is the address that it
 * returns to: what its caller calls next would write over it. One further up may be on a stack that
 * is gone.
 */
static inline bool is_frame_alive(const struct preload_open_call *call, __u64 stack_pointer)
{
	const struct frame *frame = (const struct frame *)call->stack_pointer;

	if (call->stack_pointer <= stack_pointer)
		return false;
	if (call->stack_pointer - stack_pointer > SAME_STACK_BYTES)
		return true;
	return frame->mark == mark_of(call->stack_pointer, call->start_ktime_ns) &&
	       frame->record[1] == frame->return_address;
}

/* Forget open calls that were left by longjmp or an exception. */
static inline __u32 drop_unwound(struct preload_slot *slot, __u64 stack_pointer)
{
	__u32 depth = slot->depth;

	while (depth && !is_frame_alive(&slot->calls[(depth - 1) % MAX_DEPTH], stack_pointer)) {
		preload_count_loss(PRELOAD_LOST_NO_RETURN);
		depth--;
	}
	slot->depth = depth;
	return depth;
}

/* Also for calls that probes count: the kernel side sees in the slot what was decided. */
static bool is_sampled(struct preload_slot *slot)
{
	__u32 one_in = CONTROL->sample_one_in;

	if (!one_in)
		return false;
	if (unlikely(slot->until_sample >= one_in))
		slot->until_sample %= one_in;
	if (slot->until_sample) {
		slot->until_sample--;
		return false;
	}
	slot->until_sample = one_in - 1;
	return true;
}

/* Where a thread has no slot of this process yet, or found none. */
static __attribute__((noinline)) struct preload_slot *find_own_slot(void)
{
	/* In a child of fork() the page has nothing of what its parent had. */
	if (preload_self.until_retry &&
	    (!preload_guard || preload_self.epoch == preload_guard->epoch))
		preload_self.until_retry--;
	else
		preload_begin_thread();
	return preload_self.slot;
}

/* From which duration on the gap that ends is reported; 0: it is not. */
static inline __u64 gap_floor_ns(const struct preload_slot *slot, __u32 depth)
{
	return !depth && slot->last_return_ktime_ns && has_reader() ? CONTROL->gap_floor_ns : 0;
}

/*
 * Publish a call as it begins. Again, if the thread was interrupted after it looked at the clock, or
 * a signal's handler made calls before this one was uncovered. To report a gap takes time of the gap.
 */
static inline void publish(struct frame *frame, const struct row *row)
{
	__u64 stack_pointer = (__u64)frame, gap_floor = gap_floor_ns(frame->slot, frame->depth);
	struct preload_open_call *call = &frame->slot->calls[frame->depth];
	int interruptions = 0;

	frame->return_address = frame->record[1];
	do {
		watch_interruptions();
		frame->start_ktime_ns = ktime_ns(&preload_self.clock);
		if (gap_floor && gap_ns_until(frame->slot, frame->start_ktime_ns) >= gap_floor) {
			gap_floor = 0;
			preload_report_gap(frame->slot, row, frame->start_ktime_ns);
			continue;
		}
		frame->mark = mark_of(stack_pointer, frame->start_ktime_ns);
		call->start_ktime_ns = frame->start_ktime_ns;
		call->api = row->api;
		call->variant = frame->variant;
		call->device = frame->device;
		call->stack_pointer = stack_pointer;
		if (unlikely(was_interrupted()) && ++interruptions < MAX_INTERRUPTIONS)
			continue;
		__atomic_store_n(&frame->slot->depth, frame->depth + 1, __ATOMIC_RELEASE);
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
		if (likely(*(volatile __u64 *)&call->stack_pointer == stack_pointer))
			return;
	} while (true);
}

void preload_enter(struct frame *frame, const struct row *row, __u16 variant)
{
	struct preload_slot *slot = preload_self.slot;
	__u32 depth = 0, generation;

	if (unlikely(!slot || preload_self.epoch != preload_guard->epoch))
		slot = find_own_slot();
	frame->slot = slot;
	frame->epoch = preload_self.epoch;
	frame->variant = variant;
	frame->device = preload_self.device;
	frame->depth = 0;
	if (!slot) {
		frame->start_ktime_ns = frame->epoch ? ktime_ns(&preload_self.clock) : 0;
		return;
	}
	generation = CONTROL->generation;
	if (unlikely(slot->generation != generation))
		preload_report_thread(slot, generation);
	if (unlikely(slot->depth))
		depth = drop_unwound(slot, (__u64)frame);
	frame->depth = depth;
	if (unlikely(depth >= MAX_DEPTH)) {
		frame->start_ktime_ns = ktime_ns(&preload_self.clock);
		preload_count_loss(PRELOAD_LOST_DEPTH_EXCEEDED);
		return;
	}
	preload_self.inside[depth] = 0;
	if (!depth)
		preload_self.is_sampled = is_sampled(slot);
	publish(frame, row);
	if (!depth && slot->last_return_ktime_ns)
		count_gap(slot, row, frame->start_ktime_ns);
}

/* The device of the thread's calls from now on, which this call selects. */
static inline __s32 learn_device(const struct frame *frame, const struct row *row,
				 const __u64 *slots)
{
	if (row->family == FAMILY_SET_DEVICE)
		preload_self.device = (__s32)argument(slots, row->device_slot);
	else if (row->family == FAMILY_CONTEXT && !frame->depth)
		preload_self.device = -1;
	else
		return frame->device;
	if (frame->slot)
		frame->slot->device = preload_self.device;
	return preload_self.device;
}

/* What a call was, which is counted here and not by a probe. */
static inline void account(const struct frame *frame, const struct row *row, int status,
			   const __u64 *slots, __u64 now_ktime_ns)
{
	__u64 duration_ns = now_ktime_ns - frame->start_ktime_ns, size_bytes = 0;
	bool is_published = frame->slot && frame->depth < MAX_DEPTH;
	struct preload_call call;
	__u8 copy_kind = copy_kind_of(row, slots);
	__s32 device;
	int returned = status;
	__u8 choices = 0;

	/* An answer. The record keeps the code, for what follows streams. */
	if (status == NOT_READY && row->family == FAMILY_QUERY)
		status = 0;
	device = status ? frame->device : learn_device(frame, row, slots);
	if (row->size_slot)
		size_bytes = size_of(row, slots);
	add_value(
		frame->slot,
		key_of(status, device, METRIC_CALL_DURATION, row->api, copy_kind, frame->depth > 0),
		&duration_bounds, duration_ns, status ? 0 : size_bytes);
	if (is_published && has_reader())
		choices = choices_of(frame, row, status, duration_ns);
	if (unlikely(choices || (row->stream_work && is_published && CONTROL->generation &&
				 CONTROL->flags & PRELOAD_STREAM_WORK))) {
		memset(&call, 0, sizeof(call));
		call.end_ktime_ns = now_ktime_ns;
		call.size_bytes = size_bytes;
		call.status = returned;
		call.device = device;
		call.copy_kind = copy_kind;
		call.choices = choices;
		preload_report_call(frame, row, &call, slots);
	}
	if (row->family == FAMILY_COPY && !status && !frame->depth) {
		add_value(frame->slot, key_of(0, device, METRIC_COPY_SIZE, 0, copy_kind, false),
			  &size_bounds, size_bytes, 0);
	}
}

/* A thread that only asks, as a watchdog does, launches nothing: no gap begins. */
static inline bool only_asks(const struct row *row)
{
	return row->family == FAMILY_QUERY || row->family == FAMILY_ELAPSED_TIME;
}

/*
 * When a call is over. For the kernel side that of an outermost one is as soon as it is the thread's
 * last return, while it is still published: what is counted and reported of it is.
 */
static inline __u64 end_call(struct frame *frame, const struct row *row)
{
	struct preload_slot *slot = frame->slot;
	bool begins_gap = !frame->depth && (slot->last_return_ktime_ns || !only_asks(row));
	int interruptions = 0;
	__u64 now_ktime_ns;

	do {
		watch_interruptions();
		now_ktime_ns = ktime_ns(&preload_self.clock);
		if (begins_gap)
			slot->last_api = row->api;
	} while (unlikely(was_interrupted()) && ++interruptions < MAX_INTERRUPTIONS);
	if (begins_gap)
		__atomic_store_n(&slot->last_return_ktime_ns, now_ktime_ns, __ATOMIC_RELEASE);
	if (!frame->depth)
		add_own(&slot->places[row->api].call_ns, now_ktime_ns - frame->start_ktime_ns);
	return now_ktime_ns;
}

/* Apart, since few threads have one. */
static __attribute__((noinline)) void keep_detector(const struct frame *frame,
						    const struct row *row, const __u64 *slots,
						    __u64 now_ktime_ns)
{
	__u64 size_bytes = row->size_slot ? size_of(row, slots) : 0;
	__u8 copy_kind = copy_kind_of(row, slots);

	follow_detector(preload_self.detector, row, copy_kind,
			symbol_of(row->family, row->api, copy_kind,
				  argument(slots, row->function_slot), size_bytes),
			frame->start_ktime_ns, now_ktime_ns);
}

void preload_leave(struct frame *frame, const struct row *row, int status, const __u64 *slots)
{
	struct preload_slot *slot = frame->slot;
	__u64 now_ktime_ns;

	/* Without memory; or the thread forked inside the call, and this is the child. */
	if (unlikely(!frame->epoch || frame->epoch != preload_self.epoch ||
		     preload_self.epoch != preload_guard->epoch))
		return;
	now_ktime_ns = slot ? end_call(frame, row) : ktime_ns(&preload_self.clock);
	if (row->counts)
		account(frame, row, status, slots, now_ktime_ns);
	else if (slot && frame->depth)
		preload_self.inside[(frame->depth - 1) % MAX_DEPTH] = 1;
	if (!slot)
		return;
	if (!frame->depth && counts_in_steps(row->family) && has_wanted_detector(slot))
		keep_detector(frame, row, slots, now_ktime_ns);
	__atomic_store_n(&slot->depth, frame->depth, __ATOMIC_RELEASE);
	frame->mark = 0;
}
