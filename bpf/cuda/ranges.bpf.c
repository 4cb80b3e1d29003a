// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Ranges that programs mark with NVTX: at their end, a library of ours in the program calls an empty
 * function (preload/libotel_gpu_nvtx.c), where a probe is.
 *
 * What is read is anything that the process likes: it is about the process itself.
 */
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

/* A library that keeps to its rate never leaves out this many between two reports. */
#define MAX_LEFT_OUT (1 << 30)
/* Between the program's reading of its clock and the probe; clocks of other time namespaces are hours off. */
#define MAX_DELAY_NS 1000000000

/* A thread reports where it publishes its present range. */
SEC("uprobe")
int note_ranges(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct process *process = find_process(pid_of(task));
	struct thread *thread = find_thread(tid_of(task));

	if (!thread && process)
		thread = watch_thread(process, task, pid_of(task), tid_of(task));
	if (thread)
		thread->ranges_address = PT_REGS_PARM1(ctx);
	return 0;
}

SEC("uprobe")
int report_range(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = pid_of(task);
	struct process *process = find_process(pid);
	__u64 now_ktime_ns = bpf_ktime_get_ns(), shift_ns;
	struct reported_range reported = {};
	struct range_record *record;
	struct thread *thread;

	if (!process || process->flags & PROCESS_NO_SPANS)
		return 0;
	if (bpf_probe_read_user(&reported, sizeof(reported), (const void *)PT_REGS_PARM1(ctx))) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	/* The thread can be watched only since then. */
	thread = find_thread(tid_of(task));
	if (thread)
		thread->ranges_address = reported.published_address;
	if (reported.left_out && reported.left_out < MAX_LEFT_OUT)
		count_many(COUNTER_RANGES_RATE_LIMITED, reported.left_out);
	shift_ns = now_ktime_ns - reported.now_ns;
	if (shift_ns < MAX_DELAY_NS)
		shift_ns = 0;
	if (reported.start_ns > reported.end_ns || reported.end_ns > reported.now_ns ||
	    reported.now_ns - reported.start_ns > now_ktime_ns ||
	    !admit(process, 0, now_ktime_ns)) {
		count(COUNTER_LOST_RANGE);
		return 0;
	}
	record = RESERVE_EVENT(pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_RANGE, sizeof(*record), reported.end_ns + shift_ns,
		    process->program_ktime_ns, pid, tid_of(task));
	record->start_ktime_ns = reported.start_ns + shift_ns;
	__builtin_memcpy(record->trace_id, reported.trace_id, sizeof(record->trace_id));
	__builtin_memcpy(record->span_id, &reported.span_id, sizeof(record->span_id));
	__builtin_memcpy(record->parent_span_id, &reported.parent_span_id,
			 sizeof(record->parent_span_id));
	record->start_tid = reported.start_tid;
	record->trace_flags = reported.trace_flags;
	record->range_kind = reported.range_kind;
	__builtin_memset(record->padding, 0, sizeof(record->padding));
	__builtin_memcpy(record->name, reported.name, sizeof(record->name));
	__builtin_memcpy(record->domain, reported.domain, sizeof(record->domain));
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}
