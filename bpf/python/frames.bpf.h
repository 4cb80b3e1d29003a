/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The Python frames of a thread, for CPython 3.10 to 3.14.
 *
 * An interpreter has a list of thread states, and a thread state knows its innermost
 * frame; each frame knows the one that it goes back to. Frames of C functions are not
 * among them. Where C code called Python, the frames contain that, in a form that has changed:
 *
 *     3.10        every Python frame has an evaluation loop, and so a C frame, of its own
 *     3.11        is_entry is set in a frame that began a loop
 *     3.12-3.14   a frame without Python code, the shim, lies between the two: a variable
 *                 of the C function that runs the loop, whose frame is known by its address
 *
 * Where things lie in memory is in struct interpreter. What is read is another program's,
 * and may be anything: each pointer has to be a possible one, each walk ends after a
 * known number of steps, and what does not add up is PYTHON_BROKEN. The current thread is
 * inside the kernel, so only it could change its frames, and it does not. The list of
 * thread states is not its own: a walk of it may end early. The frames of another thread
 * that runs may change at any moment.
 *
 * The functions that see the current thread are global, not inlined: the verifier walks each of
 * them once, and not once for every frame and every caller. Weak, as two programs have them.
 */
#ifndef OTEL_GPU_BPF_PYTHON_FRAMES_H
#define OTEL_GPU_BPF_PYTHON_FRAMES_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/user_memory.bpf.h"
#include "events.h"
#include "python/code_objects.bpf.h"
#include "python/thread_states.bpf.h"

#define MAX_PYTHON_STEPS   (MAX_PYTHON_FRAMES + 32) /* some are left out */
#define PAGE_BYTES	   4096
#define MAX_FRAME_BYTES	   256
#define FRAME_WINDOW_BYTES 4096
#define LONE_FRAME	   (FRAME_WINDOW_BYTES - MAX_FRAME_BYTES) /* where in it one is read alone */
#define NEAR_BYTES	   (1 << 20)
#define FIRST_USER_ADDRESS 0x1000
#define LAST_USER_ADDRESS  ((1ULL << 56) - 1)
#define TAG_BITS	   7 /* 3.14 keeps flags in the low bits of references */

/* A sample with space for a stack, which serves the walk as long as it is empty. */
struct sample {
	struct sample_record record;
	union {
		__u8 stack[STALL_COPY_BYTES];
		struct {
			__u64 window; /* where the frames that follow here begin */
			__u64 newest; /* the last one of them, from there */
			__u64 frame;  /* of the walk along them: the next one */
			__u64 milestone;
			__u64 program_tag;
			__u8 frames[FRAME_WINDOW_BYTES + MAX_FRAME_BYTES];
			struct code_head code;
		};
	};
};

static __always_inline bool is_user_address(__u64 address)
{
	return address >= FIRST_USER_ADDRESS && address <= LAST_USER_ADDRESS;
}

/* A word of the frames that were read. */
static __always_inline __u64 frame_word(const __u8 *frames, __u32 offset)
{
	return *(__u64 *)(frames + (offset & (FRAME_WINDOW_BYTES - 1)));
}

/*
 * Where to begin to read, with a frame, those that it goes back to: they mostly lie just
 * before it. Not before its page: reading what is not there takes a microsecond.
 */
static __always_inline __u64 window_of(__u64 frame)
{
	__u64 page = frame & ~(__u64)(PAGE_BYTES - 1);
	__u64 start = frame - (LONE_FRAME - MAX_FRAME_BYTES);

	return start < page ? page : start;
}

/* In bytes from the first instruction; negative: that cannot be. */
static __always_inline __s64 instruction_offset(const struct interpreter *interpreter,
						__u64 instruction, __u64 code)
{
	__s64 offset = 2 * (__s64)(__s32)instruction;

	if (interpreter->version >= PYTHON_3_11)
		offset = instruction - (code + interpreter->code_instructions);
	/* Before its first instruction a frame points before it. */
	return offset == -2 ? 0 : offset;
}

/*
 * From 3.12 on, a call of a class that was made often goes through code that no source has,
 * and that tracebacks leave out. All of its texts are "__init__".
 */
static __always_inline bool is_constructor_call(const struct code_head *head,
						const struct interpreter *interpreter)
{
	return code_word(head, interpreter->code_file) == code_word(head, interpreter->code_name) &&
	       !(__u32)code_word(head, interpreter->code_first_line);
}

/* A walk along the frames of a thread; the rest is in the sample, as the BPF stack is small. */
struct walk_of_frames {
	KEPT_MEMORY
	struct sample *sample;
	const struct interpreter *interpreter;
	struct code_key key;
};

/* Read the walk's frame, with its neighbours where it has any. Returns where it lies. */
static __always_inline bool read_frame(struct walk_of_frames *walk, __u64 *at)
{
	const struct interpreter *interpreter = walk->interpreter;
	struct sample *sample = walk->sample;
	__u32 frame_bytes = interpreter->frame_bytes;

	/* A walk that comes back to where it was at a power of two goes in circles. */
	if (!is_user_address(sample->frame) || sample->frame == sample->milestone ||
	    frame_bytes > MAX_FRAME_BYTES)
		return false;
	*at = sample->frame - sample->window;
	if (*at <= sample->newest)
		return true;
	/* Those of 3.10, and those on the thread's own stack, lie alone. */
	if (interpreter->version < PYTHON_3_11 ||
	    sample->frame - sample->record.stack_pointer < NEAR_BYTES) {
		*at = LONE_FRAME;
		return !READ_MEMORY(MEMORY_OF(walk), sample->frames + LONE_FRAME, frame_bytes,
				    sample->frame);
	}
	sample->window = window_of(sample->frame);
	*at = sample->frame - sample->window;
	sample->newest = *at;
	return !READ_MEMORY(MEMORY_OF(walk), sample->frames,
			    (*at & (FRAME_WINDOW_BYTES - 1)) + frame_bytes, sample->window);
}

/* One frame; where it goes back to is the next. Returns 1 when the walk is over. */
static __noinline long walk_frame(__u32 step, struct walk_of_frames *walk)
{
	const struct interpreter *interpreter = walk->interpreter;
	struct sample *sample = walk->sample;
	struct sample_record *record = &sample->record;
	__u32 depth = record->python_count, slot;
	struct python_frame *to = &record->python_frames[depth % MAX_PYTHON_FRAMES];
	__u64 at, previous, code, instruction, tag, *recent;
	__s64 offset;
	__u32 times;
	bool is_entry;
	__u8 owner;

	if (!sample->frame)
		return 1;
	if (!read_frame(walk, &at))
		goto broken;
	if (!(step & (step - 1)))
		sample->milestone = sample->frame;
	previous = frame_word(sample->frames, at + interpreter->frame_previous);
	owner = frame_word(sample->frames, at + interpreter->frame_owner);
	if (interpreter->version >= PYTHON_3_12 && owner >= interpreter->shim_owner) {
		struct python_frame *called =
			&record->python_frames[(depth - 1) % MAX_PYTHON_FRAMES];

		if (depth && called->flags != PYTHON_FRAME_SHIM)
			called->flags = PYTHON_FRAME_ENTRY;
		if (depth < MAX_PYTHON_FRAMES) {
			to->code = sample->frame;
			to->offset = 0;
			to->flags = PYTHON_FRAME_SHIM;
			record->python_count = depth + 1;
		} else if (previous) {
			return 1;
		}
		sample->frame = previous;
		return 0;
	}
	if (depth >= MAX_PYTHON_FRAMES)
		return 1;
	code = frame_word(sample->frames, at + interpreter->frame_code);
	code &= ~(__u64)TAG_BITS;
	instruction = frame_word(sample->frames, at + interpreter->frame_instruction);
	offset = instruction_offset(interpreter, instruction, code);
	if (!is_user_address(code) || offset < 0 || offset >= MAX_CODE_BYTES ||
	    !read_code(MEMORY_OF(walk), &sample->code, interpreter, code))
		goto broken;
	sample->frame = previous;
	if (interpreter->version >= PYTHON_3_12 && is_constructor_call(&sample->code, interpreter))
		return 0;
	is_entry = !previous || interpreter->version < PYTHON_3_11 ||
		   (interpreter->version == PYTHON_3_11 && owner);
	walk->key.code = name_code(&sample->code, interpreter);
	to->code = walk->key.code;
	to->offset = offset;
	to->flags = is_entry ? PYTHON_FRAME_ENTRY : 0;
	record->python_count = depth + 1;
	tag = walk->key.code ^ sample->program_tag;
	slot = tag >> (64 - RECENT_CODE_BITS);
	recent = bpf_map_lookup_elem(&recent_code, &slot);
	if (recent && *recent != tag) {
		__u32 *before = bpf_map_lookup_elem(&sent_code, &walk->key);
		__u32 sent = before ? *before : 0;

		if (sent >= MAX_CODE_SENT) {
			*recent = tag;
			return 0;
		}
		times = send_code(MEMORY_OF(walk), &record->header, &sample->code, interpreter,
				  walk->key.code);
		sent += times;
		if (times)
			bpf_map_update_elem(&sent_code, &walk->key, &sent, BPF_ANY);
	}
	return 0;
broken:
	record->python_status = PYTHON_BROKEN;
	return 1;
}

/*
 * Fill in the Python frames of a thread; in the record are its process and its
 * number. What the walk needs to remember of a frame is in the space for the stack, and
 * the number of frames in the record: the verifier does not follow it there, and so need
 * not walk each step once for every number of frames that may be before it.
 */
LINKAGE __noinline int walk_python(user_memory memory, struct sample *sample)
{
	struct walk_of_frames walk = {.sample = sample};
	struct sample_record *record;

	if (!sample)
		return 0;
	KEEP_MEMORY(&walk, memory);
	record = &sample->record;
	record->python_count = 0;
	record->python_status = PYTHON_NONE;
	walk.key.program_ktime_ns = record->header.program_ktime_ns;
	walk.key.pid = record->header.pid;
	walk.interpreter = bpf_map_lookup_elem(&interpreters, &walk.key.pid);
	if (!walk.interpreter || !walk.interpreter->version ||
	    walk.interpreter->program_ktime_ns != record->header.program_ktime_ns)
		return 0;
	sample->program_tag =
		(walk.key.program_ktime_ns ^ (__u64)walk.key.pid << 32) * 0x9e3779b97f4a7c15ULL;
	sample->frame = find_innermost(MEMORY_OF(&walk), record, walk.interpreter);
	sample->milestone = 0;
	sample->window = 0;
	sample->newest = 0;
	REPEAT(MAX_PYTHON_STEPS, walk_frame, &walk);
	if (sample->frame && record->python_status == PYTHON_COMPLETE)
		record->python_status = PYTHON_CUT;
	if (record->python_status == PYTHON_BROKEN)
		count(COUNTER_LOST_PYTHON);
	return 0;
}

#endif
