// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Dumps threads one after the other, without stopping them or waiting for them. So calls that hung
 * before the agent started can be seen, too.
 *
 * A thread that is off the CPU is inside the kernel, where its registers of user space are kept.
 * One that is on another CPU has its registers there; those that the kernel has are of its last
 * way in, which was a tick of the clock at the latest. The agent knows which is which.
 *
 * What is found is what reading the iterator returns, and not in a ring: so there
 * is space for every thread. Only code objects take the usual way.
 *
 * Only in the object for kernels with BTF: what iterates over tasks needs it.
 */
#define OTEL_GPU_OTHER_THREADS
#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "python/frames.bpf.h"
#include "sched/stack_ids.bpf.h"

struct seq_file;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_iter_meta {
	struct seq_file *seq;
};

#pragma clang attribute pop

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

/* Who is looked at next -> its program_ktime_ns; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct thread_dump_key);
	__type(value, __u64);
} threads_to_dump SEC(".maps");

struct dump_buffer {
	struct thread_dump_record dump;
	struct sample sample;
	__u8 more[THREAD_DUMP_COPY_BYTES - STALL_COPY_BYTES];
};

/* Only the agent runs it, for one thread at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dump_buffer);
} dump_buffers SEC(".maps");

static __always_inline __u64 *find_wanted(__u32 pid, __u32 tid)
{
	struct thread_dump_key key = {.pid = pid, .tid = 0};
	__u64 *program_ktime_ns = bpf_map_lookup_elem(&threads_to_dump, &key);

	if (program_ktime_ns)
		return program_ktime_ns;
	key.tid = tid;
	return bpf_map_lookup_elem(&threads_to_dump, &key);
}

/* What it does, and since when. */
static __always_inline void dump_state(struct thread_dump_record *dump, struct task_struct *task)
{
	struct task_struct *self = bpf_get_current_task_btf();

	dump->task_state = task_state(task);
	dump->state = dump->task_state ? STATE_BLOCKED : STATE_RUN_QUEUE;
	if (READ_KERNEL(task, on_cpu)) {
		dump->state = STATE_ON_CPU;
		dump->flags |= THREAD_DUMP_LATE;
	}
	if (!bpf_core_field_exists(task->sched_info.last_arrival))
		return;
	dump->clock_behind_ns = dump->header.ktime_ns - READ_KERNEL(self, sched_info.last_arrival);
	dump->since_clock_ns = dump->state == STATE_RUN_QUEUE
				       ? READ_KERNEL(task, sched_info.last_queued)
				       : READ_KERNEL(task, sched_info.last_arrival);
	/* It left the CPU when it had run for as long as that turn took. */
	if (dump->state == STATE_BLOCKED && dump->since_clock_ns)
		dump->since_clock_ns += READ_KERNEL(task, se.sum_exec_runtime) -
					READ_KERNEL(task, se.prev_sum_exec_runtime);
}

static __always_inline void dump_calls(struct thread_dump_record *dump, __u32 tid)
{
	struct thread *thread = find_thread(tid);
	__u32 depth;

	if (!thread || thread->program_ktime_ns != dump->header.program_ktime_ns)
		return;
	dump->flags |= THREAD_DUMP_FOLLOWED;
	depth = thread->depth;
	for (__u32 i = 0; i < MAX_DEPTH && i < depth; i++) {
		dump->stack_pointers[i] = thread->calls[i].stack_pointer;
		dump->open_calls = i + 1;
	}
}

static __always_inline __s32 dump_kernel_stack(struct task_struct *task)
{
	__u32 buffer = ITERATOR_BUFFER;
	struct kernel_stack *walk = bpf_map_lookup_elem(&stack_walk, &buffer);
	__u32 frames = walk ? unwind(task, walk) : 0;
	__s64 stack = frames ? find_known_stack(frames, buffer) : -1;

	return stack < 0 ? -1 : stack;
}

static __always_inline __s32 system_call_of(const struct pt_regs *registers)
{
#if defined(__TARGET_ARCH_x86)
	__s64 number = registers->orig_ax;
#else
	__s64 number = registers->syscallno;
#endif

	return number < 0 ? -1 : number;
}

/* Returns how many bytes the sample takes. */
static __always_inline __u32 dump_user(struct dump_buffer *buffer, struct task_struct *task,
				       const struct pt_regs *registers)
{
	struct place place = place_of(registers);
	struct sample *sample = &buffer->sample;
	struct sample_record *record = &sample->record;
	__u32 frames, returns, head_bytes, stack_bytes;

	record->instruction_pointer = place.instruction_pointer;
	record->stack_pointer = place.stack_pointer;
	record->frame_pointer = place.frame_pointer;
	record->link_register = place.link_register;
	walk_python(task, sample);
	frames = record->python_count;
	if (frames > MAX_PYTHON_FRAMES)
		frames = MAX_PYTHON_FRAMES;
	returns = save_returns((struct saved_return *)&record->python_frames[frames], task,
			       place.stack_pointer);
	record->return_count = returns;
	/* From there the verifier knows no more than the bound: one state goes on, and not one of each. */
	returns = *(volatile __u32 *)&record->return_count;
	if (returns > MAX_RETURNS)
		returns = MAX_RETURNS;
	head_bytes = __builtin_offsetof(struct sample_record, python_frames) +
		     frames * sizeof(struct python_frame) + returns * sizeof(struct saved_return);
	if (head_bytes > sizeof(struct sample_record))
		return 0;
	stack_bytes = copy_stack(task, (__u8 *)sample + head_bytes, THREAD_DUMP_COPY_BYTES,
				 place.stack_pointer, stack_size(task, place.stack_pointer));
	record->stack_bytes = stack_bytes;
	return head_bytes + stack_bytes;
}

SEC("iter.s/task")
int dump_thread(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct pt_regs *registers;
	struct sample_record *record;
	struct thread_dump_record *dump;
	struct dump_buffer *buffer;
	__u64 *program_ktime_ns;
	__u32 zero = 0, pid, tid, bytes;

	if (!task)
		return 0;
	pid = pid_of(task);
	tid = tid_of(task);
	program_ktime_ns = pid && tid ? find_wanted(pid, tid) : NULL;
	buffer = bpf_map_lookup_elem(&dump_buffers, &zero);
	/* A thread of the kernel, or one that has ended, has no memory. */
	if (!program_ktime_ns || !buffer || !READ_SELDOM(task, mm))
		return 0;
	dump = &buffer->dump;
	record = &buffer->sample.record;
	__builtin_memset(dump, 0, sizeof(*dump));
	__builtin_memset(record, 0, __builtin_offsetof(struct sample_record, python_frames));
	fill_header(&dump->header, RECORD_THREAD_DUMP, 0, bpf_ktime_get_ns(), *program_ktime_ns,
		    pid, tid);
	fill_header(&record->header, RECORD_SAMPLE, 0, dump->header.ktime_ns, *program_ktime_ns,
		    pid, tid);
	READ_COMM(dump->comm, task);
	dump_state(dump, task);
	dump_calls(dump, tid);
	registers = (struct pt_regs *)bpf_task_pt_regs(task);
	dump->system_call = -1;
	dump->kernel_stack = -1;
	if (dump->state != STATE_ON_CPU) {
		dump->kernel_stack = dump_kernel_stack(task);
		dump->system_call = system_call_of(registers);
	}
	bytes = __builtin_offsetof(struct sample_record, python_frames);
	if (are_of_user(registers))
		bytes = dump_user(buffer, task, registers);
	else
		dump->flags |= THREAD_DUMP_NO_USER;
	/* It came to a CPU, or left it, during the dump: its registers are older or newer. */
	if (READ_KERNEL(task, on_cpu))
		dump->flags |= THREAD_DUMP_LATE;
	record->header.size = bytes;
	bytes += sizeof(*dump);
	dump->header.size = bytes;
	if (bytes <= sizeof(*buffer))
		bpf_seq_write(READ_KERNEL(ctx->meta, seq), buffer, bytes);
	return 0;
}
