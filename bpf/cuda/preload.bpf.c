// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Probes of the preload library, which counts hot calls in the program without a trap. It calls empty
 * functions that have these probes: at the first call of each thread, after which nothing else counts
 * its hot calls; and for calls and gaps that may become spans.
 */
#include "../preload/layout.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/samples.bpf.h"
#include "core/stops.bpf.h"
#include "core/tasks.bpf.h"
#include "cuda/gaps.bpf.h"
#include "cuda/open_calls.bpf.h"
#include "cuda/preload.bpf.h"
#include "cuda/recorded_calls.bpf.h"
#include "events.h"
#include "nccl/completions.bpf.h"
#include "sched/stalls.bpf.h"
#include "sched/time_accounting.bpf.h"

/* The agent has to open what the program counts in, before that is gone. */
static __always_inline void report_preload(struct task_struct *task, struct thread *thread,
					   __u64 memory)
{
	struct preload_record *record = RESERVE_LIFECYCLE(thread->pid, record);
	struct process *process = find_process(thread->pid);

	if (!record) {
		/* The agent would not let it go on again, so it must not stop either. */
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_PRELOAD, sizeof(*record), bpf_ktime_get_ns(),
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->memory = memory;
	record->stopped = stop_for_probes(task, process, &record->header);
	record->padding = 0;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/* Whether no calls would be reported, as the agent has not written its settings yet. */
static __always_inline bool comes_too_early(const struct thread *thread, __u64 memory)
{
	const struct process *process = find_process(thread->pid);
	__u32 generation;

	return process && process->flags & PROCESS_STOP_ON_LOAD &&
	       !bpf_probe_read_user(&generation, sizeof(generation),
				    (const void *)(memory + PRELOAD_CONTROL_OFFSET)) &&
	       !generation;
}

/* What the thread has published in another slot is seen for the last time: that will be another's. */
static __noinline int begin_thread(struct task_struct *task, __u64 slot, __u64 memory)
{
	__u32 tid = tid_of(task), pid;
	struct thread *thread = find_thread(tid);
	const __u64 *known_ktime_ns;
	bool is_known;

	if (!thread)
		thread = meet_thread(task, tid);
	if (!thread)
		return 0;
	/* Until now it was in no call that the library knows of. */
	if (!thread->preload_slot)
		pass_on_cpu(thread, bpf_ktime_get_ns(), 0);
	sync_preload(thread);
	thread->preload_slot = slot;
	pid = thread->pid;
	known_ktime_ns = bpf_map_lookup_elem(&preloaded, &pid);
	is_known =
		known_ktime_ns && (*known_ktime_ns & ~PRELOAD_REFUSED) == thread->program_ktime_ns;
	if (!memory) {
		if (!is_known || !(*known_ktime_ns & PRELOAD_REFUSED))
			report_preload(task, thread, 0);
		return 0;
	}
	if (!thread->preload_slot)
		thread->preload_slot = NO_SLOT;
	/* To stop a process takes a moment, in which its other threads go on. */
	if (is_known && (*known_ktime_ns & PRELOAD_REFUSED || !comes_too_early(thread, memory)))
		return 0;
	if (!is_known &&
	    bpf_map_update_elem(&preloaded, &pid, &thread->program_ktime_ns, BPF_ANY)) {
		count(COUNTER_LOST_PROCESSES_FULL);
		return 0;
	}
	report_preload(task, thread, memory);
	return 0;
}

/* The thread was off the CPU, or the account was read, since the library read its clock. */
static __always_inline __u64 not_before_booked(const struct thread *thread, __u64 ktime_ns)
{
	__u64 booked_ktime_ns = thread->booked & ~OFF_CPU;

	return ktime_ns < booked_ktime_ns ? booked_ktime_ns : ktime_ns;
}

/* What happened since an outermost call was over is not of it. */
static __always_inline void leave_out_gap(const struct thread *thread, struct open_call *call)
{
	call->blocked_ns += thread->blocked_ns - thread->gap_blocked_ns;
	call->run_queue_ns += thread->run_queue_ns - thread->gap_run_queue_ns;
	call->voluntary_switches += thread->voluntary_switches - thread->gap_voluntary_switches;
	call->involuntary_switches +=
		thread->involuntary_switches - thread->gap_involuntary_switches;
}

/* Read the innermost call that the library reports. Returns when it ended; 0: it is another one. */
static __noinline __u64 read_reported(struct thread *thread, __u64 address)
{
	struct preload_call reported = {};
	struct open_call *call;
	__u64 end_ktime_ns;

	if (bpf_probe_read_user(&reported, sizeof(reported), (const void *)address)) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	call = innermost(thread);
	if (!thread->depth || !call->is_published || call->api != reported.api ||
	    call->start_ktime_ns != reported.start_ktime_ns) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	call->size_bytes = reported.size_bytes;
	call->address = reported.address;
	call->stream = reported.stream;
	call->function = reported.function;
	call->status = reported.status;
	call->device = reported.device;
	call->copy_kind = reported.copy_kind;
	__builtin_memcpy(call->grid, reported.grid, sizeof(call->grid));
	__builtin_memcpy(call->block, reported.block, sizeof(call->block));
	thread->sampled = !!(reported.choices & CHOICE_SAMPLED);
	end_ktime_ns = call->start_ktime_ns + since(call->start_ktime_ns, reported.end_ktime_ns);
	if (!thread->may_be_reported)
		return not_before_booked(thread, end_ktime_ns);
	leave_out_gap(thread, call);
	return end_ktime_ns;
}

/* The innermost call of a thread. */
static __always_inline void send_if_chosen(struct pt_regs *ctx, struct thread *thread)
{
	const volatile struct api_descriptor *api;
	struct open_call *call;
	__u64 end_ktime_ns = read_reported(thread, PT_REGS_PARM1(ctx));
	__u8 choices;

	if (!end_ktime_ns)
		return;
	call = innermost(thread);
	api = &settings.apis[call->api < MAX_APIS ? call->api : 0];
	if (!call->status && api->stream_work && thread->depth == 1 && has_collectives(thread))
		after_stream_call(thread->tid, end_ktime_ns);
	if (call->status == NOT_READY && api->family == FAMILY_QUERY)
		call->status = 0; /* an answer */
	if (api->stream_work)
		call->function = 0; /* is of launches */
	choices = choose(thread, call, call->status, end_ktime_ns - call->start_ktime_ns);
	if (!choices)
		return;
	call->choices = choices;
	if (may_send(thread, choices, end_ktime_ns))
		send_call(thread, call, sample_call(ctx, thread, end_ktime_ns), end_ktime_ns);
	else
		count(COUNTER_SPANS_RATE_LIMITED);
}

/* A thread that is here has come back to its CPU, before anything that it publishes since. */
static __always_inline struct thread *reporting_thread(struct task_struct *task)
{
	struct thread *thread = find_thread(tid_of(task));

	if (!thread)
		return NULL;
	if (thread->off_ktime_ns)
		notice_running(thread, task, bpf_ktime_get_ns());
	sync_preload(thread);
	return thread;
}

/* A call that the preload library has counted, and that may be worth more. */
static __always_inline void after_reported_call(struct pt_regs *ctx, struct thread *thread)
{
	/* An outermost one is over already, but for this. */
	if (thread->may_be_reported)
		thread->depth = 1;
	send_if_chosen(ctx, thread);
	if (thread->may_be_reported)
		thread->depth = 0;
}

/* A gap between two calls that the preload library knows is long. */
static __always_inline void after_reported_gap(struct thread *thread, __u64 address)
{
	struct preload_gap gap = {};

	if (bpf_probe_read_user(&gap, sizeof(gap), (const void *)address)) {
		count(COUNTER_LOST_READ_FAULT);
		return;
	}
	if (!thread->depth && gap.start_ktime_ns &&
	    thread->last_return_ktime_ns == gap.start_ktime_ns)
		choose_gap(thread, gap.next_api % MAX_APIS,
			   not_before_booked(thread, gap.end_ktime_ns));
}

/* The cookie is of enum preload_probe, by which the arguments are known. */
SEC("uprobe")
int at_preload(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 probe = bpf_get_attach_cookie(ctx);
	struct thread *thread;

	if (probe == PRELOAD_PROBE_THREAD)
		return begin_thread(task, PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
	thread = reporting_thread(task);
	/* Calls of a thread that has not reported itself yet are for the agent before us. */
	if (!thread || !thread->preload_slot)
		return 0;
	if (probe == PRELOAD_PROBE_CALL)
		after_reported_call(ctx, thread);
	else
		after_reported_gap(thread, PT_REGS_PARM1(ctx));
	return 0;
}
