// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Where the time of watched threads goes.
 *
 * A thread is off the CPU from switch-out to switch-in. If it left because it had
 * to wait, it is *blocked* until somebody wakes it, and in the *run queue* from
 * then on. If it was preempted, it is in the run queue all the time. The two parts
 * sum to the interval. Who is to blame for the run-queue part is whoever had the
 * CPU: the next task at a preemption, the running task of the target CPU at a
 * wake-up.
 *
 * Every context switch of the host comes through here, so a thread that is not
 * watched must cost no more than one failed hash lookup each way.
 */
#define OTEL_GPU_BPF
#include "core.bpf.h"
#include "events.h"
#include "maps.bpf.h"
#include "tasks.bpf.h"
#include "aggregate.bpf.h"
#include "core_fixes.bpf.h"

static __always_inline void leave_cpu(struct thread *thread, struct task_struct *prev,
				      struct task_struct *next, bool preempt, __u64 now_ktime_ns)
{
	bool voluntary = !preempt && task_state(prev) != 0;

	count(COUNTER_SCHEDULER_SWITCHES);
	count_hits(thread);
	thread->off_ktime_ns = now_ktime_ns;
	thread->waker_pid = 0;
	thread->waker_tid = 0;
	thread->waker_comm[0] = 0;
	if (voluntary) {
		thread->switch_type = SWITCH_VOLUNTARY;
		thread->voluntary_switches++;
		thread->runnable_ktime_ns = 0;
		thread->culprit_pid = 0;
		thread->culprit_tid = 0;
		thread->culprit_comm[0] = 0;
	} else {
		thread->switch_type = SWITCH_INVOLUNTARY;
		thread->involuntary_switches++;
		thread->runnable_ktime_ns = now_ktime_ns;
		thread->culprit_pid = pid_of(next);
		thread->culprit_tid = tid_of(next);
		bpf_probe_read_kernel(thread->culprit_comm, COMM_BYTES, next->comm);
	}
}

/*
 * Inside a call every stall above its floor is worth a span. Outside, waiting is
 * most threads' normal state: only waiting for a CPU counts, or being blocked in a
 * thread that feeds a GPU.
 */
static __always_inline bool is_worth_a_span(const struct thread *thread, __u64 blocked_ns,
					    __u64 run_queue_ns)
{
	if (thread->depth)
		return blocked_ns + run_queue_ns >= settings.call_stall_floor_ns;
	if (run_queue_ns >= settings.stall_floor_ns)
		return true;
	return thread->last_return_ktime_ns && blocked_ns >= settings.stall_floor_ns;
}

static __always_inline void send_stall(struct thread *thread, struct task_struct *task,
				       __u64 runnable_ktime_ns, __u64 now_ktime_ns)
{
	struct process *process = find_process(thread->pid);
	struct open_call *call = NULL;
	struct stall_record *record;

	if (!process || process->flags & PROCESS_NO_SPANS)
		return;
	if (!admit(process, now_ktime_ns)) {
		count(COUNTER_SPANS_WITHHELD_RATE);
		return;
	}
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_STALL, sizeof(*record), now_ktime_ns,
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = thread->off_ktime_ns;
	record->runnable_ktime_ns = runnable_ktime_ns;
	record->call_start_ktime_ns = 0;
	record->root_start_ktime_ns = 0;
	record->call_api = 0;
	record->call_depth = 0;
	if (thread->depth) {
		/* The call has to be sent too, or this span would have no parent. */
		call = &thread->calls[(thread->depth - 1) % MAX_DEPTH];
		call->choices |= CHOICE_STALLED;
		record->call_start_ktime_ns = call->start_ktime_ns;
		record->root_start_ktime_ns = thread->calls[0].start_ktime_ns;
		record->call_api = call->api;
		record->call_depth = thread->depth - 1;
	}
	record->culprit_pid = thread->culprit_pid;
	record->culprit_tid = thread->culprit_tid;
	record->waker_pid = thread->waker_pid;
	record->waker_tid = thread->waker_tid;
	record->cpu = bpf_get_smp_processor_id();
	record->switch_type = thread->switch_type;
	bpf_probe_read_kernel(record->comm, COMM_BYTES, task->comm);
	__builtin_memcpy(record->culprit_comm, thread->culprit_comm, COMM_BYTES);
	__builtin_memcpy(record->waker_comm, thread->waker_comm, COMM_BYTES);
	count(COUNTER_STALLS_CHOSEN);
	bpf_ringbuf_submit(record, wakeup_flags());
}

static __always_inline void enter_cpu(struct thread *thread, struct task_struct *task,
				      __u64 now_ktime_ns)
{
	struct aggregate_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.device = -1,
		.copy_kind = COPY_NONE,
		.api = thread->switch_type,
	};
	__u64 off_ktime_ns = thread->off_ktime_ns;
	__u64 runnable_ktime_ns = thread->runnable_ktime_ns;
	__u64 blocked_ns, run_queue_ns;

	if (!off_ktime_ns) /* first seen running */
		return;
	if (!runnable_ktime_ns) /* woken before we looked: all of it counts as blocked */
		runnable_ktime_ns = now_ktime_ns;
	blocked_ns = runnable_ktime_ns - off_ktime_ns;
	run_queue_ns = now_ktime_ns - runnable_ktime_ns;
	thread->blocked_ns += blocked_ns;
	thread->run_queue_ns += run_queue_ns;
	key.metric = METRIC_OFF_CPU;
	add_duration(&key, blocked_ns + run_queue_ns, 0);
	key.metric = METRIC_RUN_QUEUE;
	add_duration(&key, run_queue_ns, 0);
	if (is_worth_a_span(thread, blocked_ns, run_queue_ns))
		send_stall(thread, task, runnable_ktime_ns, now_ktime_ns);
	thread->off_ktime_ns = 0;
}

SEC("tp_btf/sched_switch")
int sched_switch(__u64 *ctx)
{
	bool preempt = (bool)ctx[0];
	struct task_struct *prev = (struct task_struct *)ctx[1];
	struct task_struct *next = (struct task_struct *)ctx[2];
	__u32 prev_tid = tid_of(prev), next_tid = tid_of(next);
	__u32 cpu = bpf_get_smp_processor_id();
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct thread *thread;
	struct running *here;

	here = bpf_map_lookup_elem(&running, &cpu);
	if (here) {
		here->pid = pid_of(next);
		here->tid = next_tid;
		bpf_probe_read_kernel(here->comm, COMM_BYTES, next->comm);
	}
	thread = prev_tid ? find_thread(prev_tid) : NULL;
	if (thread)
		leave_cpu(thread, prev, next, preempt, now_ktime_ns);
	thread = next_tid ? find_thread(next_tid) : NULL;
	if (thread)
		enter_cpu(thread, next, now_ktime_ns);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int sched_wakeup(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct task_struct *waker;
	__u32 tid = tid_of(task);
	struct thread *thread = tid ? find_thread(tid) : NULL;
	__u32 cpu;
	struct running *there;

	if (!thread || !thread->off_ktime_ns || thread->runnable_ktime_ns)
		return 0;
	thread->runnable_ktime_ns = bpf_ktime_get_ns();
	waker = bpf_get_current_task_btf();
	thread->waker_tid = tid_of(waker);
	thread->waker_pid = pid_of(waker);
	bpf_probe_read_kernel(thread->waker_comm, COMM_BYTES, waker->comm);
	cpu = task->thread_info.cpu;
	there = bpf_map_lookup_elem(&running, &cpu);
	if (there && there->tid && there->tid != tid) {
		thread->culprit_pid = there->pid;
		thread->culprit_tid = there->tid;
		__builtin_memcpy(thread->culprit_comm, there->comm, COMM_BYTES);
	}
	return 0;
}

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
