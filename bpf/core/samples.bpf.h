/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * User stacks: the data that is available only at the event, from which the agent makes a stack.
 *
 * That is the registers, the Python frames, the return addresses that uretprobes have
 * replaced, and the top of the stack itself: how native frames follow each other is in
 * tables of the executables, which the agent reads.
 *
 * A call's sample is taken when it returns and is chosen: the frames of its callers are as
 * they were at its entry. Each chosen call has its own, as an outer call returns to another
 * place than the ones inside it. A wait shows how long it was only at its end, when another
 * thread is in user space: so its sample is taken at its beginning, kept, and sent if the
 * wait turns out to be worth it.
 */
#ifndef OTEL_GPU_BPF_CORE_SAMPLES_H
#define OTEL_GPU_BPF_CORE_SAMPLES_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "core/user_memory.bpf.h"
#include "events.h"
#include "python/code_objects.bpf.h"
#include "python/frames.bpf.h"

#define SMALL_STACK_BYTES  4096
#define MEDIUM_STACK_BYTES 12288
#define SAMPLE_BUFFERS	   3 /* of a CPU */
#define LONG_CALL_NS	   100000000
#define STALL_SAMPLE_BURST 19 /* beyond the first, of a thread that has long had none */

/* Where a thread is in user space. */
struct place {
	__u64 instruction_pointer;
	__u64 stack_pointer;
	__u64 frame_pointer;
	__u64 link_register;
};

/* Where a sample is made. */
struct sample_buffer {
	__u64 is_taken;
	struct sample sample;
};

/*
 * Samples of calls are made here and sent when it is known how long they are: these few pages
 * are in the CPU's cache, while those of the ring are not, and take time for each line that is
 * touched. A thread may be preempted while it makes one, so there is a second buffer for the
 * thread that comes then, and a third one for a tick that interrupts that; further ones lose
 * theirs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SAMPLE_BUFFERS);
	__type(key, __u32);
	__type(value, struct sample_buffer);
} sample_buffers __weak SEC(".maps");

/*
 * tid -> where it last left the CPU. LRU: there are more threads that wait than long
 * waits. An element that is given to another thread has the other one's token in it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 512);
	__type(key, __u32);
	__type(value, struct sample);
} stall_samples __weak SEC(".maps");

static __always_inline struct place place_of(const struct pt_regs *regs)
{
	struct place place = {
#if defined(__TARGET_ARCH_x86)
		.instruction_pointer = regs->ip,
		.stack_pointer = regs->sp,
		.frame_pointer = regs->bp,
#else
		.instruction_pointer = regs->user_regs.pc,
		.stack_pointer = regs->user_regs.sp,
		.frame_pointer = regs->user_regs.regs[29],
		.link_register = regs->user_regs.regs[30],
#endif
	};

	return place;
}

/*
 * Whether registers are of user space: threads of the kernel have none. Of a program's context,
 * only whole registers may be read.
 */
static __always_inline bool are_of_user(const struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (*(const volatile unsigned long *)&regs->cs & 3) == 3 && regs->ip;
#else
	return !(*(const volatile __u64 *)&regs->user_regs.pstate & 15) && regs->user_regs.pc;
#endif
}

/*
 * How much of the stack there is, at most STACK_COPY_BYTES. The first stack of a process
 * begins below its arguments, that of another thread below what the thread register points
 * to; neither can be in the middle of a stack. Arguments and environment are not copied.
 */
static __always_inline __u32 stack_size(struct task_struct *task, __u64 stack_pointer)
{
	__u64 size = STACK_COPY_BYTES;
	__u64 above = READ_SELDOM(task, mm, start_stack) - stack_pointer;

	if (above < size)
		size = above;
	above = thread_pointer_of(task) - stack_pointer;
	if (above < size)
		size = above;
	return size;
}

/*
 * Copy what is there of a stack. Where a page is missing (swapped out, or never written)
 * the copy ends, so then it is done by pages.
 */
static __always_inline __u32 copy_stack(user_memory memory, __u8 *to, __u32 capacity, __u64 from,
					__u32 size)
{
	__u32 copied = 0;

	/* Callers know that it fits, and so does the compiler: older verifiers do not. */
	barrier_var(size);
	if (size > capacity)
		size = capacity;
	if (!READ_MEMORY(memory, to, size, from))
		return size;
	for (__u32 i = 0; i < capacity / PAGE_BYTES && copied <= capacity - PAGE_BYTES; i++) {
		__u32 chunk = PAGE_BYTES - ((from + copied) & (PAGE_BYTES - 1));

		if (READ_MEMORY(memory, to + copied, chunk, from + copied))
			break;
		copied += chunk;
	}
	return copied < size ? copied : size;
}

/* The return addresses that were replaced above a place, innermost first. Returns how many. */
static __always_inline __u32 save_returns(struct saved_return *to, struct task_struct *task,
					  __u64 stack_pointer)
{
	struct return_instance *instance;
	__u32 returns = 0;

	if (!bpf_core_field_exists(task->utask) || !READ_SELDOM(task, utask))
		return 0;
	instance = READ_SELDOM(task, utask, return_instances);
	for (int i = 0; i < MAX_RETURNS && instance; i++) {
		struct saved_return *saved = &to[returns % MAX_RETURNS];

		saved->stack_address = READ_SELDOM(instance, stack);
		saved->return_address = READ_SELDOM(instance, orig_ret_vaddr);
		/*
		 * The one that returns now is below, and still there on some kernels: the next one is
		 * written over it. Without a branch, as the verifier would follow both each time.
		 */
		returns += (stack_pointer - 1 - saved->stack_address) >> 63;
		instance = READ_SELDOM(instance, next);
	}
	return returns;
}

#if !defined(OTEL_GPU_OTHER_THREADS)

/*
 * Everything but the copy of the stack, of the current thread. Returns how many bytes that
 * is: the stack goes behind them.
 */
__weak __noinline __u64 fill_sample(struct sample *sample, const struct place *place,
				    const struct thread *thread, __u64 token)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sample_record *record;
	__u32 frames, returns;

	if (!sample || !place || !thread)
		return 0;
	record = &sample->record;
	fill_header(&record->header, RECORD_SAMPLE, 0, token, thread->program_ktime_ns, thread->pid,
		    thread->tid);
	record->instruction_pointer = place->instruction_pointer;
	record->stack_pointer = place->stack_pointer;
	record->frame_pointer = place->frame_pointer;
	record->link_register = place->link_register;
	walk_python(CURRENT_MEMORY, sample);
	frames = record->python_count;
	if (frames > MAX_PYTHON_FRAMES)
		frames = MAX_PYTHON_FRAMES;
	returns = save_returns((struct saved_return *)&record->python_frames[frames], task,
			       place->stack_pointer);
	record->return_count = returns;
	count(COUNTER_SAMPLES);
	return __builtin_offsetof(struct sample_record, python_frames) +
	       frames * sizeof(struct python_frame) + returns * sizeof(struct saved_return);
}

/* Complete a sample with a stack, which can have parts missing, and send it. */
static __always_inline bool send_small(struct sample *sample, __u64 head_bytes, __u64 stack_pointer,
				       __u32 stack_bytes)
{
	__u32 size;

	if (head_bytes > sizeof(struct sample_record))
		return false;
	size = copy_stack(CURRENT_MEMORY, (__u8 *)sample + head_bytes, SMALL_STACK_BYTES,
			  stack_pointer, stack_bytes);
	sample->record.stack_bytes = size;
	size += head_bytes;
	sample->record.header.size = size;
	if (size > sizeof(struct sample_record) + SMALL_STACK_BYTES)
		return false;
	return !bpf_ringbuf_output(&events, sample, size, BPF_RB_NO_WAKEUP);
}

/*
 * The same with a larger stack, which is better copied once than twice. Records that are
 * written in place have fixed sizes, so there are two: what is behind the stack holds whatever
 * was there before, which goes to the agent only, as samples are not recorded.
 */
static __always_inline bool send_large(struct sample *sample, __u64 head_bytes, __u64 stack_pointer,
				       __u32 stack_bytes, const __u32 capacity)
{
	const __u32 size = sizeof(struct sample_record) + capacity;
	struct sample_record *record;

	if (head_bytes > sizeof(struct sample_record))
		return false;
	record = bpf_ringbuf_reserve(&events, size, 0);
	if (!record)
		return false;
	sample->record.header.size = size;
	bpf_probe_read_kernel(record, head_bytes, sample);
	record->stack_bytes = copy_stack(CURRENT_MEMORY, (__u8 *)record + head_bytes, capacity,
					 stack_pointer, stack_bytes);
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return true;
}

/* NULL: none is free. The caller releases it before the program ends. */
static __always_inline struct sample_buffer *take_sample_buffer(void)
{
	for (__u32 i = 0; i < SAMPLE_BUFFERS; i++) {
		__u32 key = i;
		struct sample_buffer *buffer = bpf_map_lookup_elem(&sample_buffers, &key);

		if (buffer && !__sync_lock_test_and_set(&buffer->is_taken, 1))
			return buffer;
	}
	return NULL;
}

/* Send a sample of the current thread. Returns its token, 0: it is lost. */
__weak __noinline __u64 send_sample(const struct place *place, const struct thread *thread,
				    __u64 token)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct sample_buffer *buffer;
	bool is_sent = false;
	__u32 stack_bytes;
	__u64 head_bytes;

	if (!place || !thread || !READ_SELDOM(task, mm))
		return 0;
	stack_bytes = stack_size(task, place->stack_pointer);
	buffer = may_send_samples() ? take_sample_buffer() : NULL;
	if (buffer) {
		head_bytes = fill_sample(&buffer->sample, place, thread, token);
		if (stack_bytes <= SMALL_STACK_BYTES)
			is_sent = send_small(&buffer->sample, head_bytes, place->stack_pointer,
					     stack_bytes);
		else if (stack_bytes <= MEDIUM_STACK_BYTES)
			is_sent = send_large(&buffer->sample, head_bytes, place->stack_pointer,
					     stack_bytes, MEDIUM_STACK_BYTES);
		else
			is_sent = send_large(&buffer->sample, head_bytes, place->stack_pointer,
					     stack_bytes, STACK_COPY_BYTES);
		*(volatile __u64 *)&buffer->is_taken = 0;
	}
	if (!is_sent)
		count(COUNTER_LOST_SAMPLE);
	return is_sent ? token : 0;
}

/* The sample of a call that returns and is chosen. Returns its token, 0: there is none. */
static __always_inline __u64 sample_call(struct pt_regs *ctx, const struct thread *thread,
					 __u64 now_ktime_ns)
{
	struct place place;

	if (!(settings.sample_moments & SAMPLE_CALLS))
		return 0;
	place = place_of(ctx);
	return send_sample(&place, thread, now_ktime_ns);
}

__weak __noinline __u64 keep_stall_sample(const struct place *place, const struct thread *thread,
					  __u64 token)
{
	static const struct sample empty = {};
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid, stack_bytes;
	__u64 head_bytes;
	struct sample *sample;

	if (!place || !thread || !READ_SELDOM(task, mm))
		return 0;
	tid = thread->tid;
	sample = bpf_map_lookup_elem(&stall_samples, &tid);
	if (!sample) {
		bpf_map_update_elem(&stall_samples, &tid, &empty, BPF_ANY);
		sample = bpf_map_lookup_elem(&stall_samples, &tid);
	}
	if (!sample) {
		count(COUNTER_LOST_SAMPLE);
		return 0;
	}
	/* Without a token until it is whole: the agent may read it at any time. */
	head_bytes = fill_sample(sample, place, thread, 0);
	if (head_bytes > sizeof(struct sample_record))
		return 0;
	stack_bytes = copy_stack(CURRENT_MEMORY, (__u8 *)sample + head_bytes, STALL_COPY_BYTES,
				 place->stack_pointer, stack_size(task, place->stack_pointer));
	sample->record.stack_bytes = stack_bytes;
	sample->record.header.size = head_bytes + stack_bytes;
	sample->record.header.ktime_ns = token;
	return token;
}

/*
 * Keep where a thread is that leaves the CPU: the current one. It waits for something, or
 * it is in a call that seems to hang, which may well be busy with looking whether it is done.
 */
static __always_inline void sample_stall(struct thread *thread, struct task_struct *task,
					 __u64 now_ktime_ns)
{
	bool waits = thread->switch_type == SWITCH_VOLUNTARY;
	struct pt_regs *registers;
	struct place place;

	thread->user_stack = 0;
	if (!(settings.sample_moments & SAMPLE_STALLS) || thread->process_flags & PROCESS_NO_SPANS)
		return;
	if (!waits &&
	    (!thread->depth || since(thread->calls[0].start_ktime_ns, now_ktime_ns) < LONG_CALL_NS))
		return;
	if (!admit_to(&thread->stall_samples_arrival_ktime_ns, now_ktime_ns,
		      settings.stall_samples_interval_ns,
		      STALL_SAMPLE_BURST * settings.stall_samples_interval_ns)) {
		count(COUNTER_SAMPLES_RATE_LIMITED);
		return;
	}
	registers = (struct pt_regs *)bpf_task_pt_regs(task);
	if (!are_of_user(registers))
		return;
	place = place_of(registers);
	thread->user_stack = keep_stall_sample(&place, thread, now_ktime_ns);
}

/* Send the sample of a wait that has just ended. Returns its token, 0: there is none. */
__weak __noinline __u64 send_stall_sample(const struct thread *thread)
{
	struct sample *sample;
	__u32 tid, size;

	if (!thread || !thread->user_stack)
		return 0;
	tid = thread->tid;
	sample = bpf_map_lookup_elem(&stall_samples, &tid);
	if (!sample || sample->record.header.ktime_ns != thread->user_stack ||
	    sample->record.header.tid != tid)
		return 0;
	size = sample->record.header.size;
	if (size > sizeof(*sample) || !may_send_samples() ||
	    bpf_ringbuf_output(&events, sample, size, wakeup_flags())) {
		count(COUNTER_LOST_SAMPLE);
		return 0;
	}
	return thread->user_stack;
}

/*
 * The sample of an interval that is kept: the one that it has if it goes on, else that of
 * the wait that has just ended, if it is long enough to be looked at.
 */
__weak __noinline __u64 sample_of_interval(const struct thread *thread, __u64 user_stack,
					   __u64 duration_ns)
{
	if (!thread || user_stack || duration_ns < settings.call_stall_floor_ns)
		return user_stack;
	return send_stall_sample(thread);
}

#endif

#endif
