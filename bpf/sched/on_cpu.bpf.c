// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Samples of watched threads that are on a CPU: where their work is done.
 *
 * Each CPU has a clock that ticks while the agent watches anything. A tick interrupts whatever
 * runs there, in user space or in the kernel, and one in N ticks of watched threads is sampled:
 * the agent sets N so that all CPUs together stay inside a budget. The ticks are chosen at
 * random: a program that repeats itself must not be sampled at the same place each time.
 *
 * A tick may interrupt the other programs, but for those of the scheduler, whose interrupts are
 * off. So it shares no per-CPU buffer with them, and changes no thread.
 */
#include "../preload/layout.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/samples.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/contexts.bpf.h"

/* What is sent where the kernel was interrupted: the agent gives the stack an id. */
struct kernel_cpu_sample {
	struct cpu_sample_record record;
	struct kernel_stack stack;
};

#define CPU_SAMPLE_BURST 100 /* beyond the rate, until the agent has set how many are sampled */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu_sampling);
} cpu_sampling __weak SEC(".maps");

/* When a tick of each CPU last met a watched thread. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} last_tick_ktime_ns __weak SEC(".maps");

/* Rate limit of the host: theoretical arrival time. */
static __u64 cpu_sample_arrival_ktime_ns;

/* The current thread if it is watched; one that is met here first is from now on. */
static __always_inline struct thread *watched_thread(struct task_struct *task, bool is_in_user)
{
	__u32 tid = tid_of(task), pid;
	struct thread *thread = tid ? find_thread(tid) : NULL;
	struct process *process;

	/* One that exits stays in the kernel, and is forgotten already. */
	if (thread || !tid || !is_in_user)
		return thread;
	pid = pid_of(task);
	process = find_process(pid);
	return process ? watch_thread(process, task, pid, tid) : NULL;
}

/* What the moment of a sample belongs to. */
struct moment {
	__u64 root_start_ktime_ns;
	__u32 api;
	__u32 context;
};

/*
 * A thread that counts its calls publishes them. Nothing that is known of it is changed: this may
 * have interrupted a program that reads the same.
 */
static __noinline int read_published_calls(const struct thread *thread, struct moment *moment)
{
	const struct preload_slot *slot = (const void *)thread->preload_slot;
	struct preload_open_call outermost = {}, innermost = {};
	__u64 last_return_ktime_ns = 0;
	__u32 depth = 0, last_api = 0;

	if (!moment || bpf_probe_read_user(&depth, sizeof(depth), &slot->depth) ||
	    bpf_probe_read_user(&last_api, sizeof(last_api), &slot->last_api) ||
	    bpf_probe_read_user(&last_return_ktime_ns, sizeof(last_return_ktime_ns),
				&slot->last_return_ktime_ns))
		return 0;
	if (depth && bpf_probe_read_user(&outermost, sizeof(outermost), &slot->calls[0]))
		return 0;
	if (!depth || (depth == 1 && last_return_ktime_ns > outermost.start_ktime_ns)) {
		/* What only probes know of may have returned later. */
		if (thread->last_return_ktime_ns > last_return_ktime_ns) {
			last_return_ktime_ns = thread->last_return_ktime_ns;
			last_api = thread->last_api;
		}
		moment->root_start_ktime_ns = 0;
		moment->api = last_return_ktime_ns ? last_api % MAX_APIS : 0;
		moment->context = context_between(last_return_ktime_ns);
		return 0;
	}
	if (bpf_probe_read_user(&innermost, sizeof(innermost),
				&slot->calls[(depth - 1) % MAX_DEPTH]))
		return 0;
	moment->root_start_ktime_ns = outermost.start_ktime_ns;
	moment->api = outermost.api % MAX_APIS;
	moment->context = waits_for_device(outermost.api) || waits_for_device(innermost.api)
				  ? CONTEXT_SYNCHRONIZE
				  : CONTEXT_CALL;
	return 0;
}

static __always_inline struct moment moment_of(const struct thread *thread)
{
	struct moment moment = {
		.root_start_ktime_ns = thread->depth ? thread->calls[0].start_ktime_ns : 0,
		.api = api_of(thread),
		.context = context_of(thread),
	};

	/* Unless all that is published is inside a call that only probes know of. */
	if (thread->preload_slot && !(thread->depth && !thread->calls[0].is_published))
		read_published_calls(thread, &moment);
	return moment;
}

static __always_inline void fill_cpu_sample(struct cpu_sample_record *record, __u32 size,
					    const struct thread *thread, __u64 now_ktime_ns,
					    __u64 weight_ns, __u64 user_stack)
{
	struct moment moment = moment_of(thread);

	fill_header(&record->header, RECORD_CPU_SAMPLE, size, now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->user_stack = user_stack;
	record->weight_ns = weight_ns;
	record->root_start_ktime_ns = moment.root_start_ktime_ns;
	record->kernel_stack = -1;
	record->cpu = bpf_get_smp_processor_id();
	record->api = moment.api;
	record->context = moment.context;
	__builtin_memset(record->padding, 0, sizeof(record->padding));
	bpf_get_current_comm(record->comm, COMM_BYTES);
}

static __always_inline bool send_from_user(const struct thread *thread, __u64 now_ktime_ns,
					   __u64 weight_ns, __u64 user_stack)
{
	struct cpu_sample_record *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);

	if (!record)
		return false;
	fill_cpu_sample(record, sizeof(*record), thread, now_ktime_ns, weight_ns, user_stack);
	bpf_ringbuf_submit(record, wakeup_flags());
	return true;
}

/* The same with the stack of the kernel, which was interrupted. */
static __always_inline bool send_from_kernel(struct bpf_perf_event_data *ctx,
					     const struct thread *thread, __u64 now_ktime_ns,
					     __u64 weight_ns, __u64 user_stack)
{
	struct kernel_cpu_sample *sample = bpf_ringbuf_reserve(&events, sizeof(*sample), 0);
	__s64 bytes;
	__u32 frames;

	if (!sample)
		return false;
	bytes = bpf_get_stack(ctx, &sample->stack, sizeof(sample->stack), 0);
	frames = bytes > 0 ? bytes / sizeof(__u64) : 0;
	if (!frames)
		count(COUNTER_LOST_STACK);
	for (__u32 i = 0; i < MAX_STACK_FRAMES; i++) {
		if (i >= frames)
			sample->stack.addresses[i] = 0;
	}
	fill_cpu_sample(&sample->record, sizeof(*sample), thread, now_ktime_ns, weight_ns,
			user_stack);
	bpf_ringbuf_submit(sample, wakeup_flags());
	return true;
}

/*
 * How many ticks one stands for. The clock makes up for none that it missed, and where a hypervisor
 * keeps a CPU from running it misses many: those were this thread's which would have come since the
 * one before, while it was here.
 */
static __always_inline __u64 ticks_of(const struct thread *thread, __u64 now_ktime_ns,
				      __u64 period_ns)
{
	__u32 zero = 0;
	__u64 *last_ktime_ns = bpf_map_lookup_elem(&last_tick_ktime_ns, &zero);
	__u64 here_ktime_ns = *(volatile __u64 *)&thread->booked;
	__u64 ticks;

	if (!last_ktime_ns)
		return 1;
	if (here_ktime_ns < *last_ktime_ns)
		here_ktime_ns = *last_ktime_ns;
	*last_ktime_ns = now_ktime_ns;
	ticks = since(here_ktime_ns, now_ktime_ns) / period_ns;
	return ticks > 1 ? ticks : 1;
}

SEC("perf_event")
int cpu_tick(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pt_regs *registers = (struct pt_regs *)&ctx->regs;
	bool is_in_user = are_of_user(registers);
	struct thread *thread = watched_thread(task, is_in_user);
	bool is_in_kernel = !is_in_user, is_sent;
	__u64 now_ktime_ns, period_ns, weight_ns, user_stack = 0;
	__u32 one_in, zero = 0;
	const struct cpu_sampling *sampling;
	struct place place;

	if (!thread)
		return 0;
	sampling = bpf_map_lookup_elem(&cpu_sampling, &zero);
	one_in = sampling && sampling->one_in ? sampling->one_in : 1;
	period_ns = sampling && sampling->period_ns ? sampling->period_ns : settings.tick_period_ns;
	now_ktime_ns = bpf_ktime_get_ns();
	weight_ns = period_ns * ticks_of(thread, now_ktime_ns, period_ns) * one_in;
	if ((one_in > 1 && bpf_get_prandom_u32() % one_in) ||
	    !admit_to(&cpu_sample_arrival_ktime_ns, now_ktime_ns, settings.cpu_sample_interval_ns,
		      CPU_SAMPLE_BURST * settings.cpu_sample_interval_ns)) {
		count(COUNTER_CPU_SAMPLES_RATE_LIMITED);
		return 0;
	}
	if (is_in_user) {
		place = place_of(registers);
	} else {
		registers = (struct pt_regs *)bpf_task_pt_regs(task);
		is_in_user = are_of_user(registers);
		place = place_of(registers);
	}
	if (is_in_user)
		user_stack = send_sample(&place, thread, now_ktime_ns);
	if (is_in_kernel)
		is_sent = send_from_kernel(ctx, thread, now_ktime_ns, weight_ns, user_stack);
	else
		is_sent = send_from_user(thread, now_ktime_ns, weight_ns, user_stack);
	count(is_sent ? COUNTER_CPU_SAMPLES : COUNTER_LOST_CPU_SAMPLE);
	return 0;
}

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
