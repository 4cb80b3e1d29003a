/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where in the kernel a thread waited, as the id of a stack.
 *
 * A stack is read when the thread is about to run again: it is still the same, and it is
 * known how long the wait was. Unwinding takes longer than all
 * else that is done at a context switch, so short waits go without, and are distinguished by
 * their system call.
 */
#ifndef OTEL_GPU_BPF_SCHED_KERNEL_STACKS_H
#define OTEL_GPU_BPF_SCHED_KERNEL_STACKS_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"
#include "sched/stack_ids.bpf.h"

#define MEMO_BITS      10
#define MAX_WORDS      192    /* of a kernel stack, from its innermost end */
#define MAX_DESCRIPTOR 0x1000 /* a first argument from here on is not a file descriptor */
#define REPLACE_ONE_IN 16     /* of stacks that another one has the entry of */

#if CAN_RECALL_STACKS

/*
 * Where the stacks of a system call have their return addresses, so that most of them need
 * not be unwound.
 *
 * A return address shows where its function's caller is, and how large the function's frame
 * is. So where the words of a blocked thread's stack that were return addresses once are the
 * same ones again, each of them leads to the next as it did, and it is the same stack. Only
 * the frame of the function that the kernel is entered by varies (with what is known as
 * randomized stack offset), and its own return address is the word below the registers.
 *
 * The unwinder does not report which words these are. Searched from the innermost one on, the
 * addresses are found there or, where old ones still lie about, before; looked for from the
 * other end, there or after. What lies about changes, so after some stacks both agree.
 */
struct stack_memo {
	__u32 stack;
	__u8 frames; /* 0: no stack was seen */
	__u8 others; /* other stacks with this id since */
	__u16 words; /* up to the last of its addresses; 0: it is not known where they are */
	/* By frame but the outermost, in words from the stack pointer: not before, not after. */
	__u8 first[MAX_STACK_FRAMES];
	__u8 last[MAX_STACK_FRAMES];
};

/* By system call and file descriptor. */
static struct stack_memo memos[1 << MEMO_BITS];

/* The innermost words of the kernel stack of a blocked thread. */
struct stack_words {
	__u64 end;   /* where the registers of user space are */
	__u64 entry; /* the word before */
	__u32 count;
	__u32 frames; /* to be looked for, and those found */
	__u32 found;
	__u32 padding;
	__u64 words[MAX_WORDS];
};

/* As stack_walk. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct stack_words);
} stack_words __weak SEC(".maps");

static __always_inline struct stack_memo *memo_of(const struct thread *thread)
{
	__u64 descriptor = thread->argument < MAX_DESCRIPTOR ? thread->argument : MAX_DESCRIPTOR;
	__u64 hash = (__u64)(__u32)thread->system_call << 16 ^ descriptor;

	return &memos[hash * 0x9e3779b97f4a7c15ULL >> (64 - MEMO_BITS)];
}

/* Copy this many words, or all that there are. */
static __always_inline void copy_words(struct stack_words *copy, struct task_struct *task,
				       __u32 count)
{
	__u64 pointer = STACK_POINTER(task), bytes = count * sizeof(__u64);

	/* By way of memory: the verifier allows no arithmetic on typed pointers. */
	*(volatile __u64 *)&copy->end = (__u64)bpf_task_pt_regs(task);
	if (bytes > *(volatile __u64 *)&copy->end - pointer)
		bytes = copy->end - pointer;
	copy->count = 0;
	barrier_var(bytes);
	if (bytes <= sizeof(copy->words) &&
	    !bpf_probe_read_kernel(copy->words, bytes, (void *)pointer) &&
	    !bpf_probe_read_kernel(&copy->entry, sizeof(copy->entry),
				   (void *)(copy->end - sizeof(copy->entry))))
		copy->count = bytes / sizeof(__u64);
}

/* The known stack whose words this CPU has copied. Negative: there is none. */
__weak __noinline __s64 find_in_words(const struct thread *thread)
{
	__u32 zero = 0, id, outermost;
	struct stack_words *copy = bpf_map_lookup_elem(&stack_words, &zero);
	struct kernel_stack *known;
	struct stack_memo *memo;

	if (!thread || !copy)
		return -1;
	memo = memo_of(thread);
	id = memo->stack;
	outermost = memo->frames - 1;
	barrier_var(outermost);
	known = bpf_map_lookup_elem(&stacks, &id);
	if (!known || outermost >= MAX_STACK_FRAMES || known->addresses[outermost] != copy->entry)
		return -1;
	/* Another CPU can write the entry now. The addresses are those of one stack. */
	for (__u32 i = 0; i < MAX_STACK_FRAMES && i < outermost; i++) {
		__u32 at = memo->last[i];

		if (at >= MAX_WORDS || at >= copy->count || copy->words[at] != known->addresses[i])
			return -1;
	}
	return id;
}

/* The same without a copy: each word is read where it is. */
static __always_inline __s64 find_in_place(const struct thread *thread, struct task_struct *task)
{
	/* By way of memory, as above. */
	volatile __u64 registers = (__u64)bpf_task_pt_regs(task);
	__u64 pointer = STACK_POINTER(task), end = registers;
	struct stack_memo *memo = memo_of(thread);
	__u32 id = memo->stack, outermost = memo->frames - 1;
	struct kernel_stack *known = bpf_map_lookup_elem(&stacks, &id);

	barrier_var(outermost);
	if (!known || outermost >= MAX_STACK_FRAMES ||
	    known->addresses[outermost] != word_at(end - sizeof(__u64)))
		return -1;
	for (__u32 i = 0; i < MAX_STACK_FRAMES && i < outermost; i++) {
		__u64 address = pointer + memo->last[i] * sizeof(__u64);

		if (address >= end || known->addresses[i] != word_at(address))
			return -1;
	}
	return id;
}

/* Compare a word with the first frame that was not found. Returns 1 when all were. */
static __noinline long match_inner(__u32 at, struct stack_memo *memo)
{
	__u32 zero = 0, frame;
	struct stack_words *copy = bpf_map_lookup_elem(&stack_words, &zero);
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero);

	if (!copy || !walk || at >= MAX_WORDS || at >= copy->count)
		return 1;
	frame = copy->found;
	if (frame >= MAX_STACK_FRAMES || frame >= copy->frames)
		return 1;
	if (copy->words[at] == walk->addresses[frame]) {
		if (memo->first[frame] < at)
			memo->first[frame] = at;
		copy->found = frame + 1;
	}
	return 0;
}

/* The same from the other end, for the last one. */
static __noinline long match_outer(__u32 number, struct stack_memo *memo)
{
	__u32 zero = 0, at = MAX_WORDS - 1 - number, frame;
	struct stack_words *copy = bpf_map_lookup_elem(&stack_words, &zero);
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero);

	if (!copy || !walk || at >= MAX_WORDS)
		return 1;
	frame = copy->frames - copy->found - 1;
	barrier_var(frame);
	if (frame >= MAX_STACK_FRAMES)
		return 1;
	if (at < copy->count && copy->words[at] == walk->addresses[frame]) {
		if (memo->last[frame] > at)
			memo->last[frame] = at;
		copy->found++;
	}
	return 0;
}

/* Learn from this CPU's stack, which was unwound, where stacks like it have their addresses. */
__weak __noinline int learn_words(const struct thread *thread, __u32 stack, __u32 frames)
{
	__u32 zero = 0;
	struct stack_words *copy = bpf_map_lookup_elem(&stack_words, &zero);
	struct stack_memo *memo, learnt;
	__u16 words = 0;

	if (!thread || !copy || frames >= MAX_STACK_FRAMES)
		return 0;
	memo = memo_of(thread);
	learnt = *memo;
	if (learnt.frames != frames || learnt.stack != stack) {
		/* Stacks that share an entry must not take turns in learning. */
		if (learnt.frames && ++memo->others % REPLACE_ONE_IN)
			return 0;
		__builtin_memset(&learnt, 0, sizeof(learnt));
		__builtin_memset(learnt.last, 0xff, sizeof(learnt.last));
		learnt.stack = stack;
		learnt.frames = frames;
	}
	copy->frames = frames - 1;
	copy->found = 0;
	REPEAT(MAX_WORDS, match_inner, &learnt);
	if (copy->found != copy->frames)
		return 0;
	copy->found = 0;
	REPEAT(MAX_WORDS, match_outer, &learnt);
	for (__u32 i = 0; i < MAX_STACK_FRAMES && i < copy->frames; i++) {
		words = learnt.last[i] + 1;
		if (learnt.first[i] != learnt.last[i]) {
			words = 0;
			break;
		}
	}
	learnt.words = words;
	*memo = learnt;
	return 0;
}

#endif

/*
 * Negative: none. An id is a hash of the stack, and compared: it never means another.
 *
 * The source is what the stack is had from; see core/kernel_memory.bpf.h. Inlined, since a kernel
 * that cannot read in place must not see the code that does.
 */
static __always_inline long find_kernel_stack(const struct thread *thread, void *source,
					      bool in_place)
{
	__u32 zero = 0, frames;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero);
	long stack;

	if (!walk)
		return -1;
#if CAN_RECALL_STACKS
	struct stack_words *copy = bpf_map_lookup_elem(&stack_words, &zero);
	struct stack_memo *memo = memo_of(thread);
	bool may_recall = thread->system_call >= 0;

	if (!copy)
		return -1;
	if (may_recall && memo->words) {
		if (in_place) {
			stack = find_in_place(thread, source);
		} else {
			copy_words(copy, source, memo->words);
			stack = find_in_words(thread);
		}
		if (stack >= 0)
			return stack;
	}
#endif
	frames = unwind(source, walk);
	if (!frames)
		return -1;
	stack = find_known_stack(frames, SWITCH_BUFFER);
#if CAN_RECALL_STACKS
	if (may_recall && stack >= 0) {
		copy_words(copy, source, MAX_WORDS);
		learn_words(thread, stack, frames);
	}
#endif
	return stack;
}

#if defined(OTEL_GPU_NO_BTF)

/* The thread leaves the CPU: without BTF, only the current thread's stack can be had. */
static __always_inline void note_stack_early(struct thread *thread, void *ctx)
{
	if (thread->switch_type == SWITCH_VOLUNTARY)
		thread->kernel_stack = find_kernel_stack(thread, ctx, false);
}

/* The thread is about to run: short waits go without a stack here too. */
static __always_inline void note_stack(struct thread *thread, struct task_struct *task,
				       __u64 now_ktime_ns, bool in_place)
{
	if (now_ktime_ns - thread->off_ktime_ns < STACK_FLOOR_NS)
		thread->kernel_stack = -1;
	else if (thread->switch_type == SWITCH_VOLUNTARY && thread->kernel_stack < 0)
		count(COUNTER_LOST_STACK);
}

#else

static __always_inline void note_stack_early(struct thread *thread, void *ctx)
{
}

/* The thread is about to run on this CPU. */
static __always_inline void note_stack(struct thread *thread, struct task_struct *task,
				       __u64 now_ktime_ns, bool in_place)
{
	long stack;

	if (thread->switch_type != SWITCH_VOLUNTARY ||
	    now_ktime_ns - thread->off_ktime_ns < STACK_FLOOR_NS)
		return;
	stack = find_kernel_stack(thread, task, in_place);
	if (stack < 0)
		count(COUNTER_LOST_STACK);
	thread->kernel_stack = stack < 0 ? -1 : stack;
}

#endif

#endif
