// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* The life of watched processes: their children are watched too. */
#include "core/aggregate.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/paths.bpf.h"
#include "core/rings.bpf.h"
#include "core/samples.bpf.h"
#include "core/stops.bpf.h"
#include "core/tasks.bpf.h"
#include "core/thread_context.bpf.h"
#include "cuda/iterations.bpf.h"
#include "cuda/open_calls.bpf.h"
#include "events.h"
#include "memory/out_of_memory.bpf.h"
#include "sched/intervals.bpf.h"
#include "sched/time_accounting.bpf.h"
#include "sched/waits.bpf.h"

#define SIGNAL_OF_EXIT 0x7f

/*
 * When a fork began: on libc's fork, vfork and posix_spawn. The tracepoint below comes
 * after the kernel has copied the page tables, which is what a fork spends its time on.
 */
SEC("uprobe")
int enter_fork(struct pt_regs *ctx)
{
	struct thread *thread = find_thread(tid_of(bpf_get_current_task_btf()));

	/* posix_spawn may call vfork: the outer one counts. */
	if (thread && !thread->clone_ktime_ns)
		thread->clone_ktime_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline void count_fork(__u32 pid, __u64 program_ktime_ns)
{
	struct aggregate_key key = {
		.program_ktime_ns = program_ktime_ns,
		.pid = pid,
		.device = -1,
		.copy_kind = COPY_NONE,
		.metric = METRIC_FORK,
	};

	add_to_bucket(&key, 0, 0, 0);
}

/* A thread that was made waits for a CPU. */
static __always_inline void await_cpu(struct thread *thread)
{
	if (!thread)
		return;
	thread->runnable_ktime_ns = thread->booked;
	thread->booked |= OFF_CPU;
}

/* A child has the memory of its parent, and may publish before the agent hears of it. */
static __always_inline void inherit_place(__u32 pid, __u64 program_ktime_ns, __u32 child_pid,
					  __u64 child_program_ktime_ns)
{
	const struct thread_context_place *known = bpf_map_lookup_elem(&thread_contexts, &pid);
	struct thread_context_place place;

	if (!known || known->program_ktime_ns != program_ktime_ns)
		return;
	place = *known;
	place.program_ktime_ns = child_program_ktime_ns;
	bpf_map_update_elem(&thread_contexts, &child_pid, &place, BPF_ANY);
}

/* Beside the record of a fork, which goes another way. */
static __noinline int send_fork_context(struct thread *thread, __u64 start_ktime_ns,
					__u64 now_ktime_ns)
{
	struct published_context context = {};

	if (read_context(thread, &context))
		send_published(&lifecycle, COUNTER_LOST_LIFECYCLE_RING_FULL, thread, &context,
			       start_ktime_ns, now_ktime_ns);
	return 0;
}

/*
 * A gap that no call ends is none. What its thread waited for in spans of its application has its
 * place in them, as what a thread does that serves one request behind its last call.
 */
static __noinline int send_last_waits(const struct thread *thread, struct process *process,
				      __u64 now_ktime_ns)
{
	char comm[COMM_BYTES];

	if (thread->depth || process->flags & PROCESS_NO_SPANS)
		return 0;
	bpf_get_current_comm(comm, sizeof(comm));
	for (int i = 0; i < MAX_INTERVALS; i++) {
		const struct interval *kept = &thread->intervals[i];

		if (!kept->start_ktime_ns || !kept->context.span_id ||
		    kept->end_ktime_ns - kept->start_ktime_ns < settings.stall_floor_ns)
			continue;
		if (!admit(process, 0, now_ktime_ns)) {
			count(COUNTER_SPANS_RATE_LIMITED);
			continue;
		}
		send_wait_context(thread, &kept->context, kept->start_ktime_ns, kept->end_ktime_ns);
		send_interval(thread, kept, 0, comm);
	}
	return 0;
}

/* What its trace begins with: the outermost call around it, or itself. */
static __always_inline __u64 start_of_fork(const struct thread *thread, __u64 now_ktime_ns)
{
	if (thread->depth)
		return thread->calls[0].start_ktime_ns;
	return thread->clone_ktime_ns ? thread->clone_ktime_ns : now_ktime_ns;
}

SEC(TRACEPOINT "sched_process_fork")
int sched_process_fork(__u64 *ctx)
{
	struct task_struct *parent = (struct task_struct *)ctx[0];
	struct task_struct *child = (struct task_struct *)ctx[1];
	__u32 pid = pid_of(parent), child_pid = pid_of(child), child_tid = tid_of(child);
	struct process *process = find_process(pid), *child_process = find_process(child_pid);
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct fork_record *record;
	struct thread *thread;

	if (!process || !child_tid)
		return 0;
	if (child_pid == pid) { /* a thread */
		await_cpu(watch_thread(process, child, pid, child_tid));
		return 0;
	}
	/* A pid whose exit was not seen may still be there. */
	if (child_process)
		forget_process(child_process, child_pid);
	child_process = watch_process(child_pid, process->flags | PROCESS_FORKED);
	if (!child_process)
		return 0;
	inherit_place(pid, process->program_ktime_ns, child_pid, child_process->program_ktime_ns);
	await_cpu(watch_thread(child_process, child, child_pid, child_tid));
	count_fork(pid, process->program_ktime_ns);

	thread = find_thread(tid_of(parent));
	if (thread)
		send_fork_context(thread, start_of_fork(thread, now_ktime_ns), now_ktime_ns);
	record = RESERVE_LIFECYCLE(pid, record);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_FORK, sizeof(*record), now_ktime_ns,
		    process->program_ktime_ns, pid, tid_of(parent));
	record->start_ktime_ns = now_ktime_ns;
	record->child_program_ktime_ns = child_process->program_ktime_ns;
	record->call_start_ktime_ns = 0;
	record->root_start_ktime_ns = 0;
	record->child_pid = child_pid;
	record->padding = 0;
	bpf_probe_read_kernel(record->comm, COMM_BYTES, child->comm);
	if (thread) {
		if (thread->clone_ktime_ns)
			record->start_ktime_ns = thread->clone_ktime_ns;
		if (thread->depth) {
			record->call_start_ktime_ns =
				thread->calls[(thread->depth - 1) % MAX_DEPTH].start_ktime_ns;
			record->root_start_ktime_ns = thread->calls[0].start_ktime_ns;
		}
		thread->clone_ktime_ns = 0;
	}
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* The thread ends, or becomes another program. */
static __noinline int leave_detector(struct thread *thread)
{
	struct step_detector *detector = detector_of(thread);

	if (!detector)
		return 0;
	if (detector->is_over && detector->start_mask)
		send_iteration(detector, thread->detector - 1, thread->step_return_ktime_ns);
	detector->last_return_ktime_ns = thread->step_return_ktime_ns;
	detector->has_ended = 1;
	return 0;
}

SEC(TRACEPOINT "sched_process_exec")
int sched_process_exec(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 old_tid = (__u32)ctx[1];
	struct linux_binprm *binprm = (struct linux_binprm *)ctx[2];
	__u32 pid = pid_of(task), tid = tid_of(task);
	struct process *process = find_process(pid);
	struct file_key file = {};
	struct exec_record *record;
	struct thread *thread;
	__u64 old_program_ktime_ns;
	bool is_new;

	if (!process)
		return 0;
	old_program_ktime_ns = process->program_ktime_ns;
	change_program(process, pid, bpf_ktime_get_ns());
	/* Open calls ended with the old program; a thread that was not the leader took its tid. */
	thread = find_thread(old_tid);
	if (!settings.pid_namespace_inode && old_tid != tid && thread)
		forget_thread(old_tid);
	thread = find_thread(tid);
	if (thread) {
		leave_detector(thread);
		pass_on_cpu(thread, process->program_ktime_ns, 0);
		end_account(thread);
	}
	thread = watch_thread(process, task, pid, tid);
	/* However long the thread has been there, its program is new. */
	if (thread)
		thread->device = 0;
	file.inode = READ_KERNEL(binprm, file, f_inode, i_ino);
	file.device = READ_KERNEL(binprm, file, f_inode, i_sb, s_dev);
	is_new = !bpf_map_lookup_elem(&known_executables, &file);

	record = RESERVE_LIFECYCLE(pid, record);
	if (!record) {
		/* The agent would not let it go on again, so it must not stop either. */
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_EXEC, sizeof(*record), process->program_ktime_ns,
		    process->program_ktime_ns, pid, tid);
	record->old_program_ktime_ns = old_program_ktime_ns;
	record->inode = file.inode;
	record->device = file.device;
	record->stopped = is_new && stop_for_probes(task, process, &record->header);
	bpf_probe_read_kernel(record->comm, COMM_BYTES, task->comm);
	__builtin_memset(record->path, 0, PATH_BYTES);
	/* What it was started as can be /proc/self/exe, a link or a script. */
	if (!copy_path(record->path, READ_KERNEL(binprm, file)))
		bpf_probe_read_kernel_str(record->path, PATH_BYTES, READ_KERNEL(binprm, filename));
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/*
 * A signal ends the process while this thread is in a call: that is sent, as one that failed. Since
 * Linux kernel 6.16, the memory is still there to be sampled.
 */
static __noinline int send_killed_call(struct thread *thread, struct task_struct *task,
				       __u32 signal, __u64 now_ktime_ns)
{
	struct open_call *call = call_at(thread, 0);
	struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 user_stack = 0;

	if (thread->process_flags & PROCESS_NO_SPANS)
		return 0;
	thread->depth = 1;
	call->choices = CHOICE_FAILED;
	call->status = STATUS_KILLED | signal;
	if (are_of_user(registers))
		user_stack = sample_call(registers, thread, now_ktime_ns);
	send_call(thread, call, user_stack, now_ktime_ns);
	return 0;
}

SEC(TRACEPOINT "sched_process_exit")
int sched_process_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 pid = pid_of(task), tid = tid_of(task);
	struct thread *thread = find_thread(tid);
	struct process *process = find_process(pid);
	struct exit_record *record;
	__u64 program_ktime_ns;
	__u32 signal;

	if (thread && process)
		send_last_waits(thread, process, bpf_ktime_get_ns());
	if (thread) {
		/* Memory of the preload library that was not read by now cannot be read any more. */
		if (thread->depth &&
		    (thread->preload_slot == NO_SLOT ||
		     thread->calls[(thread->depth - 1) % MAX_DEPTH].is_published != PUBLISHED))
			count(COUNTER_LOST_EXIT_INSIDE_CALL);
		send_failed_call(thread);
		signal = READ_KERNEL(task, exit_code) & SIGNAL_OF_EXIT;
		if (thread->depth && signal)
			send_killed_call(thread, task, signal, bpf_ktime_get_ns());
		leave_detector(thread);
		pass_on_cpu(thread, bpf_ktime_get_ns(), 0);
		end_account(thread);
		forget_thread(tid);
	}
	process = find_process(pid);
	if (!process || READ_SELDOM(task, signal, live.counter))
		return 0;
	program_ktime_ns = process->program_ktime_ns;
	bpf_map_delete_elem(&thread_contexts, &pid);
	/* Two last threads may both come here; one of them deletes. */
	if (!forget_process(process, pid))
		return 0;
	bpf_map_delete_elem(&preloaded, &pid);
	record = RESERVE_LIFECYCLE(pid, record);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_EXIT, sizeof(*record), bpf_ktime_get_ns(),
		    program_ktime_ns, pid, tid);
	record->start_boot_ns = READ_KERNEL(task, start_boottime);
	record->exit_code = READ_KERNEL(task, exit_code);
	record->padding = 0;
	bpf_probe_read_kernel(record->comm, COMM_BYTES, task->comm);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}
