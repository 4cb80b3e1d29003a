// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Blocks of device memory that PyTorch's allocator hands out and takes back.
 *
 * It reports each of them to a function of libc10.so, and its totals with it, while it holds its
 * lock: so the reports of one device come one after the other. A probe at the function's entry sees
 * all of that; it has no return worth waiting for.
 *
 * Where a block was allocated is named by a key. Python frames name it where there are any. Else
 * the chain of frame pointers does: the agent, which knows the unwind tables, finds out from the
 * first sample whether that chain is the whole stack, and so always is where it is the same. If it
 * is not, each block has a key of its own. A sample is sent for a key that is new.
 */
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "memory/block_stacks.bpf.h"
#include "memory/out_of_memory.bpf.h"
#include "memory/poisson.bpf.h"

#define DEVICE_OF_CUDA	 1
#define MAX_MEMORY_BYTES (1ULL << 48) /* of a device; more is a lie */

/* Blocks that have a stack, or stand for others. Full is counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct block_key);
	__type(value, struct block);
} blocks __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct holder_key);
	__type(value, struct held);
} holders __weak SEC(".maps");

/* A device as it is passed: type, and number. */
static __always_inline bool is_about_cuda(__u64 device)
{
	return (device & 0xff) == DEVICE_OF_CUDA;
}

static __always_inline __s32 index_of_device(__u64 device)
{
	return (__s8)(device >> 8);
}

static __noinline struct held *find_holder(const struct holder_key *key)
{
	static const struct held nothing = {};
	struct held *held = bpf_map_lookup_elem(&holders, key);

	if (held)
		return held;
	/* BPF_NOEXIST: another CPU may have begun it. */
	bpf_map_update_elem(&holders, key, &nothing, BPF_NOEXIST);
	return bpf_map_lookup_elem(&holders, key);
}

static __always_inline bool is_exact(__u64 size_bytes)
{
	return settings.block_mode == BLOCKS_ALL || size_bytes >= settings.large_bytes;
}

/* Add a block to what its stack holds, or take it away again. */
static __always_inline void add_to_holder(struct held *held, const struct block *block, __s64 sign)
{
	struct holder *holder = &held->holder;

	__sync_fetch_and_add(&holder->live_bytes, sign * (__s64)block->weight_bytes);
	__sync_fetch_and_add(&holder->live_blocks, sign * (__s64)block->weight_blocks);
	if (is_exact(block->size_bytes))
		__sync_fetch_and_add(&holder->large_live_bytes, sign * (__s64)block->size_bytes);
	if (sign < 0)
		return;
	__sync_fetch_and_add(&holder->allocated_bytes, block->weight_bytes);
	__sync_fetch_and_add(&holder->allocated_blocks, block->weight_blocks);
}

static __always_inline void release_block(const struct block_key *key, const struct block *block)
{
	struct holder_key holder = {
		.program_ktime_ns = key->program_ktime_ns,
		.stack = block->stack,
		.pid = key->pid,
		.device = block->device,
	};
	struct held *held = bpf_map_lookup_elem(&holders, &holder);

	if (held)
		add_to_holder(held, block, -1);
}

/*
 * Keep a block, for the stack with this key. Returns the key if the stack has to be sent
 * now; else 0.
 */
static __noinline __u64 hold_block(struct pt_regs *ctx, const struct thread *thread,
				   struct device_memory *memory, __u64 stack)
{
	struct memory_totals *totals = &memory->totals;
	struct block_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.address = PT_REGS_PARM1(ctx),
		.pid = thread->pid,
	};
	struct block block = {
		.size_bytes = PT_REGS_PARM2(ctx),
		.ktime_ns = totals->last_ktime_ns,
		.device = index_of_device(PT_REGS_PARM5(ctx)),
	};
	struct holder_key holder = {
		.program_ktime_ns = key.program_ktime_ns,
		.pid = key.pid,
		.device = block.device,
	};
	struct block *lost = bpf_map_lookup_elem(&blocks, &key);
	bool is_admitted = false;
	struct held *held;

	if (lost)
		release_block(&key, lost); /* its free was missed */
	block.weight_bytes = block.size_bytes;
	block.weight_blocks = 1;
	if (!is_exact(block.size_bytes)) {
		block.weight_bytes = weight_of(block.size_bytes, settings.sample_bytes);
		block.weight_blocks = round_by_chance(block.weight_bytes, block.size_bytes);
	}
	if (stack == STACK_OF_ONE) {
		is_admitted = admit_stack(key.pid, block.ktime_ns);
		stack = is_admitted ? STACK_OF_ONE | mix(block.ktime_ns, thread->tid) : 0;
	}
	if (!stack)
		totals->rate_limited_bytes += block.size_bytes;
	holder.stack = stack;
	held = find_holder(&holder);
	if (!held) {
		count(COUNTER_LOST_HOLDERS_FULL);
		holder.stack = 0;
		held = find_holder(&holder);
	}
	block.stack = holder.stack;
	if (bpf_map_update_elem(&blocks, &key, &block, BPF_ANY)) {
		count(COUNTER_LOST_BLOCKS_FULL);
		totals->unsampled_bytes += block.size_bytes;
		return 0;
	}
	if (!held)
		return 0;
	add_to_holder(held, &block, 1);
	if (!holder.stack || held->is_sent ||
	    !(is_admitted || admit_stack(key.pid, block.ktime_ns)))
		return 0;
	held->is_sent = 1;
	return holder.stack;
}

/* Send where the blocks of a key are allocated. False: it is lost, which is counted. */
static __noinline bool send_block_stack(struct pt_regs *ctx, const struct thread *thread,
					__u64 now_ktime_ns, __u64 stack)
{
	struct place place = caller_of(ctx);
	__u64 token = send_sample(&place, thread, now_ktime_ns);
	struct block_stack_record *record;

	if (!token)
		return false;
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_SAMPLE);
		return false;
	}
	fill_header(&record->header, RECORD_BLOCK_STACK, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->stack = stack;
	record->user_stack = token;
	record->device = index_of_device(PT_REGS_PARM5(ctx));
	record->padding = 0;
	bpf_ringbuf_submit(record, wakeup_flags());
	count(COUNTER_BLOCK_STACKS);
	return true;
}

/* The next block of this stack will have it sent. */
static __noinline void forget_sent(struct pt_regs *ctx, const struct thread *thread, __u64 stack)
{
	struct holder_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.stack = stack,
		.pid = thread->pid,
		.device = index_of_device(PT_REGS_PARM5(ctx)),
	};
	struct held *held = bpf_map_lookup_elem(&holders, &key);

	if (held)
		held->is_sent = 0;
}

/* Whether a block has a stack: each, or a sample in proportion to bytes. */
static __noinline bool choose_block(struct device_memory *memory, __u64 size_bytes)
{
	if (is_exact(size_bytes))
		return true;
	memory->until_sample_bytes -= size_bytes;
	if (memory->until_sample_bytes > 0) {
		memory->totals.unsampled_bytes += size_bytes;
		return false;
	}
	memory->until_sample_bytes = next_interval(settings.sample_bytes);
	return true;
}

static __noinline int free_block(struct pt_regs *ctx, const struct thread *thread,
				 struct device_memory *memory)
{
	__u64 size_bytes = -(__u64)PT_REGS_PARM2(ctx);
	struct block_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.address = PT_REGS_PARM1(ctx),
		.pid = thread->pid,
	};
	struct block *known = bpf_map_lookup_elem(&blocks, &key), block;
	struct device_key device;

	if (!known) {
		if (is_exact(size_bytes))
			memory->totals.before_freed_bytes += size_bytes;
		return 0;
	}
	block = *known;
	if (memory->failed_ktime_ns) {
		device = device_key_of(thread, block.device);
		keep_freed(&device, &key, &block);
	}
	release_block(&key, &block);
	bpf_map_delete_elem(&blocks, &key);
	return 0;
}

/* Compare what was reported with what was seen. What was missed is corrected, and counted once. */
static __always_inline void take_totals(struct memory_totals *totals, __s64 change_bytes,
					__u64 allocated_bytes, __u64 reserved_bytes)
{
	__s64 missed_bytes;

	if (change_bytes > 0) {
		totals->allocations++;
		totals->handed_out_bytes += change_bytes;
	} else if (change_bytes < 0) {
		totals->frees++;
		totals->taken_back_bytes -= change_bytes;
	}
	missed_bytes = allocated_bytes - totals->before_bytes - totals->handed_out_bytes +
		       totals->taken_back_bytes;
	if (missed_bytes) {
		totals->unequal++;
		totals->before_bytes += missed_bytes;
	}
	totals->allocated_bytes = allocated_bytes;
	totals->reserved_bytes = reserved_bytes;
	if (totals->peak_allocated_bytes < allocated_bytes)
		totals->peak_allocated_bytes = allocated_bytes;
	if (totals->peak_reserved_bytes < reserved_bytes)
		totals->peak_reserved_bytes = reserved_bytes;
}

/* Once in a tick: to read the clock takes longer than to count. */
static __always_inline void note_time(struct device_memory *memory)
{
	__u64 tick = bpf_jiffies64();

	if (memory->tick == tick)
		return;
	memory->tick = tick;
	memory->totals.last_ktime_ns = bpf_ktime_get_ns();
}

/*
 * The first report of a device. A child whose parent had memory cannot use CUDA: what it frees it
 * has inherited, and it is the parent's.
 */
static __noinline struct device_memory *meet_device(const struct device_key *key,
						    __s64 before_bytes)
{
	struct process *process = find_process(key->pid);
	struct device_memory memory = {
		.is_inherited = before_bytes && process && process->flags & PROCESS_FORKED,
		.until_sample_bytes = next_interval(settings.sample_bytes),
	};

	if (!memory.is_inherited)
		memory.totals.before_bytes = before_bytes;
	bpf_map_update_elem(&device_memories, key, &memory, BPF_NOEXIST);
	return bpf_map_lookup_elem(&device_memories, key);
}

static __always_inline struct thread *reporting_thread(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = tid_of(task);
	struct thread *thread = find_thread(tid);

	return thread ? thread : meet_thread(task, tid);
}

/* Take in the totals of a report. NULL: there is nothing else to learn of it. */
static __noinline struct device_memory *take_report(struct pt_regs *ctx,
						    const struct thread *thread)
{
	__u64 allocated_bytes = PT_REGS_PARM3(ctx), reserved_bytes = PT_REGS_PARM4(ctx);
	__s64 change_bytes = PT_REGS_PARM2(ctx);
	__u64 size_bytes = change_bytes < 0 ? -(__u64)change_bytes : change_bytes;
	struct device_key key = device_key_of(thread, index_of_device(PT_REGS_PARM5(ctx)));
	struct device_memory *memory = bpf_map_lookup_elem(&device_memories, &key);

	if (size_bytes > MAX_MEMORY_BYTES || allocated_bytes > MAX_MEMORY_BYTES ||
	    reserved_bytes > MAX_MEMORY_BYTES) {
		if (memory)
			memory->totals.unequal++;
		return NULL;
	}
	if (!memory)
		memory = meet_device(&key, allocated_bytes - change_bytes);
	if (!memory) {
		count(COUNTER_LOST_HOLDERS_FULL);
		return NULL;
	}
	if (memory->is_inherited)
		return NULL;
	take_totals(&memory->totals, change_bytes, allocated_bytes, reserved_bytes);
	note_time(memory);
	return settings.block_mode < BLOCKS_LARGE || !change_bytes ? NULL : memory;
}

SEC("uprobe")
int report_block(struct pt_regs *ctx)
{
	__s64 change_bytes = PT_REGS_PARM2(ctx);
	struct device_memory *memory;
	struct thread *thread;
	__u64 stack;

	if (!is_about_cuda(PT_REGS_PARM5(ctx)))
		return 0;
	thread = reporting_thread();
	if (!thread)
		return 0;
	thread->entries++;
	if (change_bytes > 0)
		thread->failed.ktime_ns = 0; /* a second attempt was not in vain */
	memory = take_report(ctx, thread);
	if (!memory)
		return 0;
	if (change_bytes < 0)
		return free_block(ctx, thread, memory);
	if (!choose_block(memory, change_bytes))
		return 0;
	memory->totals.last_ktime_ns = bpf_ktime_get_ns();
	stack = hold_block(ctx, thread, memory, key_of_place(ctx, thread));
	if (stack && !send_block_stack(ctx, thread, memory->totals.last_ktime_ns, stack))
		forget_sent(ctx, thread, stack);
	return 0;
}

SEC("uprobe")
int report_out_of_memory(struct pt_regs *ctx)
{
	__u64 allocated_bytes = PT_REGS_PARM2(ctx), reserved_bytes = PT_REGS_PARM3(ctx);
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct device_memory *memory;
	struct device_key device;
	struct thread *thread;
	struct place place;

	if (!is_about_cuda(PT_REGS_PARM4(ctx)))
		return 0;
	thread = reporting_thread();
	if (!thread)
		return 0;
	thread->failed.ktime_ns = 0; /* that was this one */
	device = device_key_of(thread, index_of_device(PT_REGS_PARM4(ctx)));
	memory = bpf_map_lookup_elem(&device_memories, &device);
	if ((memory && memory->is_inherited) || !admit_failure(now_ktime_ns))
		return 0;
	if (memory)
		memory->failed_ktime_ns = now_ktime_ns;
	place = caller_of(ctx);
	thread->failed.ktime_ns = now_ktime_ns;
	thread->failed.asked_bytes = PT_REGS_PARM1(ctx);
	thread->failed.root_start_ktime_ns = thread->depth ? thread->calls[0].start_ktime_ns : 0;
	thread->failed.user_stack =
		settings.sample_moments ? send_sample(&place, thread, now_ktime_ns) : 0;
	thread->failed.device = device.device;
	thread->failed.api = 0;
	send_failure(thread, allocated_bytes, reserved_bytes, OUT_OF_MEMORY_FRAMEWORK);
	thread->failed.ktime_ns = 0;
	return 0;
}
