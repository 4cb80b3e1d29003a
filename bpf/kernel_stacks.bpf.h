/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Where in the kernel a thread waited, as the id of a stack.
 *
 * A stack is looked at when the thread is about to run again: it has not moved
 * meanwhile, and then it is known how long the wait was. Unwinding takes longer than all
 * else that is done at a context switch, so short waits go without, and are told apart by
 * their system call.
 */
#ifndef OTEL_GPU_KERNEL_STACKS_BPF_H
#define OTEL_GPU_KERNEL_STACKS_BPF_H

#define STACK_FLOOR_NS 20000
#define GUESS_BITS     12
#define GUESS_TWICE    128 /* it was so twice in a row */

/*
 * How many frames the next stack has without its outermost one; 0: unknown. Only a guess, by
 * system call and its first argument: which file, which futex.
 */
static __u8 guesses[1 << GUESS_BITS];

static __always_inline __u8 *guess_of(const struct thread *thread)
{
	__u64 hash = thread->argument ^ (__u64)thread->system_call << 48 ^ (__u64)thread->pid << 24;

	return &guesses[hash * 0x9e3779b97f4a7c15ULL >> (64 - GUESS_BITS)];
}

/*
 * Find this CPU's stack among the known ones, or add it. Negative: it is not there. A global
 * function, so that the verifier walks its loops once, and not from each place that calls it.
 */
__weak __noinline __s64 find_known_stack(__u32 frames, __u32 add)
{
	__u32 zero = 0;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero), *known;
	__u64 hash = 0;
	__u32 id;

	if (!walk)
		return -1;
	for (__u32 i = 0; i < MAX_STACK_FRAMES && i < frames; i++)
		hash = (hash ^ walk->addresses[i]) * 0x9e3779b97f4a7c15ULL;
	id = hash >> 33;
	known = bpf_map_lookup_elem(&stacks, &id);
	if (!known && add) {
		for (__u32 i = 0; i < MAX_STACK_FRAMES; i++) {
			if (i >= frames)
				walk->addresses[i] = 0;
		}
		/* BPF_NOEXIST: another CPU may have found the same. */
		bpf_map_update_elem(&stacks, &id, walk, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&stacks, &id);
	}
	if (!known)
		return -1;
	for (__u32 i = 0; i < MAX_STACK_FRAMES; i++) {
		if (i >= frames)
			return known->addresses[i] ? -1 : (long)id;
		if (known->addresses[i] != walk->addresses[i])
			return -1;
	}
	return id;
}

/* Returns how many frames there are, or the limit; 0: there is no stack. */
static __always_inline __u32 unwind(void *source, struct kernel_stack *walk, __u32 limit)
{
	long bytes = WALK_KERNEL_STACK(source, walk, limit * sizeof(__u64));

	return bytes > 0 ? bytes / sizeof(__u64) : 0;
}

/* With so many frames and the outermost one. Negative: it is not so; frames are those it has. */
static __always_inline long find_as_guessed(void *source, struct kernel_stack *walk, __u32 inner,
					    __u64 entry, __u32 *frames)
{
	barrier_var(inner); /* or the verifier does not see that it is checked */
	if (inner >= MAX_STACK_FRAMES)
		return -1;
	*frames = unwind(source, walk, inner);
	if (*frames != inner)
		return -1;
	*frames = 0; /* there may be more */
	walk->addresses[inner] = entry;
	return find_known_stack(inner + 1, false);
}

/*
 * Negative: none. An id is a hash of the stack, and compared: it never means another.
 *
 * Most of the time is the unwinder's: so much for each frame, and as much as for three of
 * them to see that there are no more. In a system call the outermost frame need not be
 * unwound. It is the code that enters the kernel, and where the function that it calls
 * returns to is the word below the registers that it saved. System calls do not nest, so
 * nobody else calls that function: where a known stack has it and that word as its last
 * two frames, every stack that goes as far as the function ends like that. So a stack that
 * is as deep as the last one is not unwound any further; another one is, to its end. On
 * machines where that word is something else, every stack is.
 *
 * The source is what the stack is had from; see kernel_memory.bpf.h.
 */
static __noinline long find_kernel_stack(const struct thread *thread, void *source)
{
	__u32 zero = 0, inner = 0, frames = 0;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &zero);
	bool may_guess = CAN_STOP_UNWINDING && thread->system_call >= 0;
	__u8 *guess = guess_of(thread);
	__u64 entry = 0; /* where the outermost frame goes on */
	long stack;

	if (!walk)
		return -1;
	if (may_guess) {
		inner = *guess & GUESS_TWICE ? *guess & ~GUESS_TWICE : 0;
		bpf_probe_read_kernel(&entry, sizeof(entry),
				      (void *)bpf_task_pt_regs(source) - sizeof(entry));
	}
	if (inner) {
		stack = find_as_guessed(source, walk, inner, entry, &frames);
		if (stack >= 0)
			return stack;
	}
	if (!frames)
		frames = unwind(source, walk, MAX_STACK_FRAMES);
	inner = frames - 1;
	barrier_var(inner);
	if (inner >= MAX_STACK_FRAMES)
		return -1;
	if (may_guess && walk->addresses[inner] == entry)
		*guess = (*guess & ~GUESS_TWICE) == inner ? inner | GUESS_TWICE : inner;
	return find_known_stack(inner + 1, true);
}

#if defined(OTEL_GPU_NO_BTF)

/* The thread leaves the CPU: without BTF, only the current thread's stack can be had. */
static __always_inline void note_stack_early(struct thread *thread, void *ctx)
{
	if (thread->switch_type == SWITCH_VOLUNTARY)
		thread->kernel_stack = find_kernel_stack(thread, ctx);
}

/* The thread is about to run: short waits go without a stack here too. */
static __always_inline void note_stack(struct thread *thread, struct task_struct *task,
				       __u64 now_ktime_ns)
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
				       __u64 now_ktime_ns)
{
	long stack;

	if (thread->switch_type != SWITCH_VOLUNTARY ||
	    now_ktime_ns - thread->off_ktime_ns < STACK_FLOOR_NS)
		return;
	stack = find_kernel_stack(thread, task);
	if (stack < 0)
		count(COUNTER_LOST_STACK);
	thread->kernel_stack = stack < 0 ? -1 : stack;
}

#endif

#endif
