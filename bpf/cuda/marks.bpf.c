// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Reports of programs about their own work, by calls of empty functions in a library of ours
 * (preload/libotel_gpu_marks.c), where probes are.
 *
 * What is read is anything that the process likes: it is about the process itself.
 */
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define STEP_INTERVAL_NS 1000000
#define STEP_BURST_NS	 1000000000
/* Longer than a thread waits for a CPU, shorter than what time namespaces are for. */
#define OTHER_CLOCK_NS 10000000000ULL

/* A step of this thread has ended. */
SEC("uprobe")
int report_step(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = pid_of(task);
	struct process *process = find_process(pid);
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct step_record *record;
	struct reported_step reported = {};
	__u64 shift_ns;

	if (!process)
		return 0;
	if (bpf_probe_read_user(&reported, sizeof(reported), (const void *)PT_REGS_PARM1(ctx))) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	/* In a time namespace it is by a fixed time; else it is what the thread did not get to run. */
	shift_ns = now_ktime_ns - reported.now_ktime_ns;
	if (shift_ns < OTHER_CLOCK_NS)
		shift_ns = 0;
	if (reported.start_ktime_ns > reported.end_ktime_ns ||
	    reported.end_ktime_ns > reported.now_ktime_ns ||
	    reported.now_ktime_ns - reported.start_ktime_ns > now_ktime_ns ||
	    !admit_to(&process->step_arrival_ktime_ns, now_ktime_ns, STEP_INTERVAL_NS,
		      STEP_BURST_NS)) {
		count(COUNTER_LOST_STEP);
		return 0;
	}
	record = RESERVE_EVENT(pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_STEP, sizeof(*record), reported.end_ktime_ns + shift_ns,
		    process->program_ktime_ns, pid, tid_of(task));
	record->start_ktime_ns = reported.start_ktime_ns + shift_ns;
	record->number = reported.number;
	record->loader_wait_ns = reported.loader_wait_ns;
	__builtin_memcpy(record->trace_id, reported.trace_id, sizeof(record->trace_id));
	__builtin_memcpy(record->span_id, reported.span_id, sizeof(record->span_id));
	record->trace_flags = reported.trace_flags;
	record->source = STEP_REPORTED;
	record->confidence_percent = 100;
	record->step_kind = reported.step_kind;
	__builtin_memset(record->padding, 0, sizeof(record->padding));
	__builtin_memcpy(record->name, reported.name, sizeof(record->name));
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}
