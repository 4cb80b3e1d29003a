/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The thread state of a thread, from which a walk of its Python frames begins.
 *
 * See python/frames.bpf.h for what the interpreter keeps, and how far it is trusted.
 */
#ifndef OTEL_GPU_BPF_PYTHON_THREAD_STATES_H
#define OTEL_GPU_BPF_PYTHON_THREAD_STATES_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/tasks.bpf.h"
#include "core/user_memory.bpf.h"
#include "events.h"
#include "python/code_objects.bpf.h"

#define PYTHON_3_11	 0x030b
#define PYTHON_3_12	 0x030c

#define MAX_THREAD_STEPS 520 /* thread states, and interpreters that have them */

/* glibc and musl on arm64 point the thread register behind struct pthread. */
#if defined(__TARGET_ARCH_x86)
#define MAX_PTHREAD_BYTES 0
#else
#define MAX_PTHREAD_BYTES 4096
#endif

struct python_thread {
	__u64 program_ktime_ns;
	__u64 address;
};

/* tid -> its thread state, where it was last. LRU: what is forgotten is found again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct python_thread);
} python_threads __weak SEC(".maps");

/* The innermost frame of a thread state, 0: it has none. False: it cannot be read. */
static __always_inline bool
read_innermost(user_memory memory, const struct interpreter *interpreter, __u64 state, __u64 *frame)
{
	if (!read_word(memory, frame, state + interpreter->thread_frame))
		return false;
	if (interpreter->version != PYTHON_3_11 && interpreter->version != PYTHON_3_12)
		return true;
	return read_word(memory, frame, *frame + interpreter->c_frame_frame);
}

static __always_inline bool is_thread_state(user_memory memory,
					    const struct interpreter *interpreter, __u64 state,
					    __u64 thread_pointer)
{
	__u64 thread_id;

	return read_word(memory, &thread_id, state + interpreter->thread_id) && thread_id &&
	       thread_pointer - thread_id <= MAX_PTHREAD_BYTES;
}

/*
 * Before Linux kernel commit ab5cfac139ab ("bpf: verify callbacks as if they are called unknown
 * number of times") (in v6.7), the verifier looks at a callback as it is called for the first
 * time, and what it does not reach then is dropped. So nothing that begins with 0 may be known
 * to begin so. The record has no frames yet.
 */
static __always_inline __u64 unknown_zero(const struct sample_record *record)
{
	return *(const volatile __u32 *)&record->python_count;
}

/* A search through the thread states of all interpreters. */
struct thread_search {
	KEPT_MEMORY
	const struct interpreter *interpreter;
	__u64 thread_pointer;
	__u64 interpreter_state; /* the next one to look at */
	__u64 state;		 /* the next one to look at; 0: none left of this interpreter */
	__u64 found;
	__u64 frame;
	__u64 is_broken;
	__u64 is_ambiguous;
};

/* One interpreter or thread state. Returns 1 when the search is over. */
static __noinline long search_thread_state(__u32 step, struct thread_search *search)
{
	const struct interpreter *interpreter = search->interpreter;
	__u64 current = search->interpreter_state, state = search->state;

	search->is_broken = 1;
	if (!state) {
		search->is_broken = 0;
		if (!current)
			return 1;
		search->is_broken = !read_word(MEMORY_OF(search), &search->state,
					       current + interpreter->interpreter_threads) ||
				    !read_word(MEMORY_OF(search), &search->interpreter_state,
					       current + interpreter->interpreter_next);
		return search->is_broken;
	}
	if (is_thread_state(MEMORY_OF(search), interpreter, state, search->thread_pointer)) {
		__u64 frame = 0;

		if (!read_innermost(MEMORY_OF(search), interpreter, state, &frame))
			return 1;
		search->is_broken = 0;
		search->is_ambiguous = frame && search->frame;
		if (search->is_ambiguous)
			return 1;
		if (frame || !search->found)
			search->found = state;
		if (frame) {
			/* The thread may have another one, of another interpreter. */
			search->frame = frame;
			search->state = 0;
			return 0;
		}
	}
	search->is_broken =
		!read_word(MEMORY_OF(search), &search->state, state + interpreter->thread_next);
	return search->is_broken;
}

/*
 * Find the thread state of the thread with this thread register, best one that has
 * frames: memory of a freed one may still resemble it. Returns its innermost frame; 0
 * if there is none, and python_status has the reason. A thread that has frames of several interpreters, as one
 * called the other, is PYTHON_BROKEN: which of them are the inner ones is not known.
 */
LINKAGE __noinline __u64 search_thread_states(user_memory memory, struct sample_record *record,
					      const struct interpreter *interpreter,
					      __u64 thread_pointer)
{
	struct thread_search search = {
		.interpreter = interpreter,
		.thread_pointer = thread_pointer,
	};
	struct python_thread found = {};
	__u32 tid;

	if (!record || !interpreter)
		return 0;
	KEEP_MEMORY(&search, memory);
	record->python_status = PYTHON_NO_THREAD;
	search.state = unknown_zero(record);
	search.found = unknown_zero(record);
	search.frame = unknown_zero(record);
	search.is_ambiguous = unknown_zero(record);
	/*
	 * A program that is being loaded has not touched its interpreter yet, and what was not
	 * touched is not in its memory. Who runs Python has touched it.
	 */
	if (!read_word(memory, &search.interpreter_state,
		       interpreter->start + interpreter->runtime_interpreters))
		return 0;
	record->python_status = PYTHON_BROKEN;
	REPEAT(MAX_THREAD_STEPS, search_thread_state, &search);
	if (search.is_broken || search.is_ambiguous)
		return 0;
	record->python_status = search.found ? PYTHON_COMPLETE : PYTHON_NO_THREAD;
	tid = record->header.tid;
	found.program_ktime_ns = record->header.program_ktime_ns;
	found.address = search.found;
	if (search.frame)
		bpf_map_update_elem(&python_threads, &tid, &found, BPF_ANY);
	return search.frame;
}

/*
 * Whether there is one interpreter alone, so that a thread has one state alone. What is read goes
 * into a word of the caller's, as the BPF stack is small.
 */
static __always_inline bool is_lone(user_memory memory, const struct interpreter *interpreter,
				    __u64 *word)
{
	return read_word(memory, word, interpreter->start + interpreter->runtime_interpreters) &&
	       read_word(memory, word, *word + interpreter->interpreter_next) && !*word;
}

static __always_inline __u64 find_innermost(user_memory memory, struct sample_record *record,
					    const struct interpreter *interpreter)
{
	struct task_struct *task = TASK_OF(memory);
	__u64 thread_pointer = thread_pointer_of(task), frame = 0;
	__u32 tid = record->header.tid;
	struct python_thread *known = bpf_map_lookup_elem(&python_threads, &tid);

	if (known && known->program_ktime_ns == record->header.program_ktime_ns &&
	    is_thread_state(memory, interpreter, known->address, thread_pointer) &&
	    is_lone(memory, interpreter, &frame) &&
	    read_innermost(memory, interpreter, known->address, &frame) && frame) {
		record->python_status = PYTHON_COMPLETE;
		return frame;
	}
	return search_thread_states(memory, record, interpreter, thread_pointer);
}

#endif
