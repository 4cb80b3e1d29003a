// SPDX-License-Identifier: Apache-2.0
/*
 * The door: counts the CUDA calls of the program that preloads it, for the agent to read.
 *
 * door.h says what it writes and where. After a thread's first call there is no allocation, no lock
 * and no system call in here.
 */
#include <string.h>

#include "door_interruptions.h"
#include "door_rhythm.h"
#include "door_series.h"
#include "door_bounds.h"

#define NOT_READY		    600 /* of cudaError_t and CUresult alike */
#define SAME_STACK_BYTES	    65536
#define LAUNCH_CONFIG_STREAM_OFFSET 32 /* see bpf/arguments.bpf.h */

/* The agent's probes are here. Each is a function of its own, and does nothing. */
#define PROBED __attribute__((visibility("default"), noinline, used))

/*
 * At the first call of each thread, and again for a new agent. Without a slot: there was none left.
 * Without a memory: nothing is counted in this process, which is said once, or probes have to count
 * what does not come through the door from now on.
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

static void introduce(struct door_slot *slot, __u32 generation)
{
	slot->generation = generation;
	if (generation)
		otel_gpu_door_thread(slot, door_memory);
}

/* Whether somebody is there who wants to be shown anything. */
static inline bool has_viewer(void)
{
	return CONTROL->generation && !(CONTROL->flags & DOOR_NO_CALLS);
}

static inline __u64 gap_ns_until(const struct door_slot *slot, __u64 now_ktime_ns)
{
	/* A signal's handler may have made calls since then. */
	return now_ktime_ns > slot->last_return_ktime_ns ? now_ktime_ns - slot->last_return_ktime_ns
							 : 0;
}

/* Between two outermost calls of a thread. */
static void count_gap(struct door_slot *slot, const struct row *row, __u64 now_ktime_ns)
{
	__u64 gap_ns = gap_ns_until(slot, now_ktime_ns);

	add_own(&slot->places[slot->last_api % MAX_APIS].gap_ns, gap_ns);
	if (row->family == FAMILY_LAUNCH || row->family == FAMILY_GRAPH_LAUNCH)
		add_value(slot, key_of(0, slot->device, METRIC_LAUNCH_GAP, 0, COPY_NONE, false),
			  &duration_bounds, gap_ns, 0);
}

/* Apart, since few gaps come here. */
static __attribute__((noinline)) void show_gap(const struct door_slot *slot, const struct row *row,
					       __u64 now_ktime_ns)
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
static inline bool is_frame_alive(const struct door_open_call *call, __u64 stack_pointer)
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
static inline __u32 drop_unwound(struct door_slot *slot, __u64 stack_pointer)
{
	__u32 depth = slot->depth;

	while (depth && !is_frame_alive(&slot->calls[(depth - 1) % MAX_DEPTH], stack_pointer)) {
		door_count_loss(DOOR_LOST_NO_RETURN);
		depth--;
	}
	slot->depth = depth;
	return depth;
}

/* Also for calls that probes count: the kernel side sees in the slot what was decided. */
static bool is_sampled(struct door_slot *slot)
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
static __attribute__((noinline)) struct door_slot *find_own_slot(void)
{
	/* In a child of fork() the page says nothing of what its parent had. */
	if (door_self.until_retry && (!door_guard || door_self.epoch == door_guard->epoch))
		door_self.until_retry--;
	else
		door_begin_thread();
	return door_self.slot;
}

/* From when on the gap that ends is shown; 0: it is not. */
static inline __u64 gap_floor_ns(const struct door_slot *slot, __u32 depth)
{
	return !depth && slot->last_return_ktime_ns && has_viewer() ? CONTROL->gap_floor_ns : 0;
}

/*
 * Publish a call as it begins. Again, if the thread was interrupted after it looked at the clock, or
 * a signal's handler made calls before this one was uncovered. To show a gap takes time of the gap.
 */
static inline void publish(struct frame *frame, const struct row *row)
{
	__u64 stack_pointer = (__u64)frame, gap_floor = gap_floor_ns(frame->slot, frame->depth);
	struct door_open_call *call = &frame->slot->calls[frame->depth];
	int interruptions = 0;

	frame->return_address = frame->record[1];
	do {
		watch_interruptions();
		frame->start_ktime_ns = ktime_ns(&door_self.clock);
		if (gap_floor && gap_ns_until(frame->slot, frame->start_ktime_ns) >= gap_floor) {
			gap_floor = 0;
			show_gap(frame->slot, row, frame->start_ktime_ns);
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

void door_enter(struct frame *frame, const struct row *row, __u16 variant)
{
	struct door_slot *slot = door_self.slot;
	__u32 depth = 0, generation;

	if (unlikely(!slot || door_self.epoch != door_guard->epoch))
		slot = find_own_slot();
	frame->slot = slot;
	frame->epoch = door_self.epoch;
	frame->variant = variant;
	frame->device = door_self.device;
	frame->depth = 0;
	if (!slot) {
		frame->start_ktime_ns = frame->epoch ? ktime_ns(&door_self.clock) : 0;
		return;
	}
	generation = CONTROL->generation;
	if (unlikely(slot->generation != generation))
		introduce(slot, generation);
	if (unlikely(slot->depth))
		depth = drop_unwound(slot, (__u64)frame);
	frame->depth = depth;
	if (unlikely(depth >= MAX_DEPTH)) {
		frame->start_ktime_ns = ktime_ns(&door_self.clock);
		door_count_loss(DOOR_LOST_DEPTH_EXCEEDED);
		return;
	}
	door_self.inside[depth] = 0;
	if (!depth)
		door_self.is_sampled = is_sampled(slot);
	publish(frame, row);
	if (!depth && slot->last_return_ktime_ns)
		count_gap(slot, row, frame->start_ktime_ns);
}

static inline __u64 argument(const __u64 *slots, __u32 slot)
{
	return slot ? slots[slot - 1] : 0;
}

static inline __u64 size_of(const struct row *row, const __u64 *slots)
{
	__u64 size_bytes = argument(slots, row->size_slot) << row->size_shift;

	return row->height_slot ? size_bytes * argument(slots, row->height_slot) : size_bytes;
}

static inline __u8 copy_kind_of(const struct row *row, const __u64 *slots)
{
	__u32 kind = argument(slots, row->copy_kind_slot);

	if (!row->copy_kind_slot)
		return row->fixed_copy_kind;
	return kind <= COPY_DEFAULT ? kind : COPY_NONE;
}

/* Which device the thread's calls are about from now on, which this call says. */
static inline __s32 learn_device(const struct frame *frame, const struct row *row,
				 const __u64 *slots)
{
	if (row->family == FAMILY_SET_DEVICE)
		door_self.device = (__s32)argument(slots, row->device_slot);
	else if (row->family == FAMILY_GET_DEVICE)
		door_self.device = *(const __s32 *)argument(slots, row->device_slot);
	else
		return frame->device;
	if (frame->slot)
		frame->slot->device = door_self.device;
	return door_self.device;
}

static void read_launch(struct door_call *call, const struct row *row, const __u64 *slots)
{
	const __u8 *config = (const __u8 *)slots[0];

	switch (row->launch_shape) {
	case LAUNCH_DIM3:
		memcpy(call->grid, &slots[1], sizeof(call->grid));
		memcpy(call->block, &slots[3], sizeof(call->block));
		break;
	case LAUNCH_SCALARS:
		for (int i = 0; i < 3; i++) {
			call->grid[i] = slots[1 + i];
			call->block[i] = slots[4 + i];
		}
		break;
	case LAUNCH_CONFIG:
		memcpy(call->grid, config, sizeof(call->grid));
		memcpy(call->block, config + sizeof(call->grid), sizeof(call->block));
		memcpy(&call->stream, config + LAUNCH_CONFIG_STREAM_OFFSET, sizeof(call->stream));
		break;
	}
}

/* Apart, since few calls come here. */
static __attribute__((noinline)) void show(const struct frame *frame, const struct row *row,
					   struct door_call *call, const __u64 *slots)
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

/* What a call was, which is counted here and not by a probe. */
static inline void account(const struct frame *frame, const struct row *row, int status,
			   const __u64 *slots, __u64 now_ktime_ns)
{
	__u64 duration_ns = now_ktime_ns - frame->start_ktime_ns, size_bytes = 0;
	bool is_published = frame->slot && frame->depth < MAX_DEPTH;
	struct door_call call;
	__u8 copy_kind = copy_kind_of(row, slots);
	__s32 device;
	int said = status;
	__u8 choices = 0;

	/* An answer; that nothing is done is for who follows streams. */
	if (status == NOT_READY && row->family == FAMILY_QUERY)
		status = 0;
	device = status ? frame->device : learn_device(frame, row, slots);
	if (row->size_slot)
		size_bytes = size_of(row, slots);
	add_value(
		frame->slot,
		key_of(status, device, METRIC_CALL_DURATION, row->api, copy_kind, frame->depth > 0),
		&duration_bounds, duration_ns, status ? 0 : size_bytes);
	if (is_published && has_viewer())
		choices = choices_of(frame, row, status, duration_ns);
	if (unlikely(choices || (row->stream_work && is_published && CONTROL->generation &&
				 CONTROL->flags & DOOR_STREAM_WORK))) {
		memset(&call, 0, sizeof(call));
		call.end_ktime_ns = now_ktime_ns;
		call.size_bytes = size_bytes;
		call.status = said;
		call.device = device;
		call.copy_kind = copy_kind;
		call.choices = choices;
		show(frame, row, &call, slots);
	}
	if (row->family == FAMILY_COPY && !status && !frame->depth) {
		add_value(frame->slot, key_of(0, device, METRIC_COPY_SIZE, 0, copy_kind, false),
			  &size_bounds, size_bytes, 0);
	}
}

/* Whoever only asks, as a watchdog does, feeds no device: no gap begins. */
static inline bool only_asks(const struct row *row)
{
	return row->family == FAMILY_QUERY || row->family == FAMILY_ELAPSED_TIME;
}

/*
 * When a call is over. For the kernel side that of an outermost one is as soon as it is the thread's
 * last return, while it is still published: what is counted and shown of it is.
 */
static inline __u64 end_call(struct frame *frame, const struct row *row)
{
	struct door_slot *slot = frame->slot;
	bool begins_gap = !frame->depth && (slot->last_return_ktime_ns || !only_asks(row));
	int interruptions = 0;
	__u64 now_ktime_ns;

	do {
		watch_interruptions();
		now_ktime_ns = ktime_ns(&door_self.clock);
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
static __attribute__((noinline)) void keep_rhythm(const struct frame *frame, const struct row *row,
						  const __u64 *slots, __u64 now_ktime_ns)
{
	__u64 size_bytes = row->size_slot ? size_of(row, slots) : 0;
	__u8 copy_kind = copy_kind_of(row, slots);

	follow_rhythm(door_self.rhythm, row, copy_kind,
		      symbol_of(row->family, row->api, copy_kind,
				argument(slots, row->function_slot), size_bytes),
		      frame->start_ktime_ns, now_ktime_ns);
}

void door_leave(struct frame *frame, const struct row *row, int status, const __u64 *slots)
{
	struct door_slot *slot = frame->slot;
	__u64 now_ktime_ns;

	/* There is no memory; or the thread forked inside the call, and this is the child. */
	if (unlikely(!frame->epoch || frame->epoch != door_self.epoch ||
		     door_self.epoch != door_guard->epoch))
		return;
	now_ktime_ns = slot ? end_call(frame, row) : ktime_ns(&door_self.clock);
	if (row->counts)
		account(frame, row, status, slots, now_ktime_ns);
	else if (slot && frame->depth)
		door_self.inside[(frame->depth - 1) % MAX_DEPTH] = 1;
	if (!slot)
		return;
	if (!frame->depth && counts_in_rhythm(row->family) && has_wanted_rhythm(slot))
		keep_rhythm(frame, row, slots, now_ktime_ns);
	__atomic_store_n(&slot->depth, frame->depth, __ATOMIC_RELEASE);
	frame->mark = 0;
}
