// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * CUDA calls: entry, return, and what a call was.
 *
 * One program serves the entry of every API, one the return. The attach cookie says
 * which API (its row in the probe table) and which exported spelling; the row says
 * where the arguments are. Runtime calls make driver calls inside, so a thread has a
 * stack of open calls.
 *
 * A call is identified by the stack pointer at its entry. Returns therefore find
 * their entry even when calls in between never return (longjmp, a C++ exception), were
 * nested too deep to be kept, or began before the probes stood. The stack grows down: an
 * open call whose stack pointer is below the one of a new entry is gone.
 */
#define OTEL_GPU_BPF
#include "core.bpf.h"
#include "events.h"
#include "maps.bpf.h"
#include "tasks.bpf.h"
#include "aggregate.bpf.h"
#include "arguments.bpf.h"
#include "code.bpf.h"
#include "python.bpf.h"
#include "samples.bpf.h"
#include "account.bpf.h"
#include "stalls.bpf.h"

/* cudaDeviceProp begins with name[256] and the 16 bytes of the uuid. */
#define DEVICE_PROPERTIES_UUID_OFFSET 256
/* In CUlaunchConfig and cudaLaunchConfig_t alike, after six dimensions and a size. */
#define LAUNCH_CONFIG_STREAM_OFFSET 32

static __always_inline __u32 cookie_api(__u64 cookie)
{
	return (__u16)cookie;
}

static __always_inline __u16 cookie_variant(__u64 cookie)
{
	return (__u16)(cookie >> 16);
}

static __always_inline void read_user(void *to, __u32 size, __u64 address)
{
	if (bpf_probe_read_user(to, size, (void *)address))
		count(COUNTER_LOST_READ_FAULT);
}

static __always_inline struct open_call *call_at(struct thread *thread, __u32 index)
{
	return &thread->calls[index % MAX_DEPTH];
}

static __always_inline struct open_call *innermost(struct thread *thread)
{
	return call_at(thread, thread->depth - 1);
}

/*
 * Forget open calls whose frames are gone. Equal stack pointers are a tail call from
 * one API to another, unless it is the same API again: that one was unwound.
 */
static __always_inline void drop_unwound(struct thread *thread, struct task_struct *task,
					 __u64 stack_pointer, __u32 api)
{
	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		struct open_call *call = innermost(thread);
		bool is_outer = call->stack_pointer > stack_pointer ||
				(call->stack_pointer == stack_pointer && call->api != api);

		if (is_outer && is_frame_alive(task, call->stack_pointer))
			break;
		count(COUNTER_LOST_NO_RETURN);
		thread->depth--;
	}
}

static __always_inline void read_launch(const struct arguments *arguments,
					const volatile struct api_descriptor *api,
					struct open_call *call)
{
	const __u64 *slots = arguments->registers;

	switch (api->launch_shape) {
	case LAUNCH_DIM3:
		call->grid[0] = slots[1];
		call->grid[1] = slots[1] >> 32;
		call->grid[2] = slots[2];
		call->block[0] = slots[3];
		call->block[1] = slots[3] >> 32;
		call->block[2] = slots[4];
		break;
	case LAUNCH_SCALARS:
		call->grid[0] = slots[1];
		call->grid[1] = slots[2];
		call->grid[2] = slots[3];
		call->block[0] = slots[4];
		call->block[1] = slots[5];
		call->block[2] = read_slot(arguments, 7);
		break;
	case LAUNCH_CONFIG:
		read_user(call->grid, sizeof(call->grid), slots[0]);
		read_user(call->block, sizeof(call->block), slots[0] + sizeof(call->grid));
		read_user(&call->stream, sizeof(call->stream),
			  slots[0] + LAUNCH_CONFIG_STREAM_OFFSET);
		break;
	}
}

static __always_inline void read_arguments(struct pt_regs *ctx,
					   const volatile struct api_descriptor *api,
					   struct open_call *call)
{
	struct arguments arguments;

	take_arguments(ctx, &arguments);
	call->size_bytes = 0;
	call->address = 0;
	call->stream = 0;
	call->function = 0;
	call->copy_kind = api->fixed_copy_kind;
	__builtin_memset(call->grid, 0, sizeof(call->grid));
	__builtin_memset(call->block, 0, sizeof(call->block));
	if (api->size_slot)
		call->size_bytes = read_slot(&arguments, api->size_slot) << (api->size_shift & 7);
	if (api->height_slot)
		call->size_bytes *= read_slot(&arguments, api->height_slot);
	if (api->address_slot)
		call->address = read_slot(&arguments, api->address_slot);
	if (api->stream_slot)
		call->stream = read_slot(&arguments, api->stream_slot);
	if (api->function_slot)
		call->function = read_slot(&arguments, api->function_slot);
	if (api->copy_kind_slot) {
		__u32 kind = read_slot(&arguments, api->copy_kind_slot);

		call->copy_kind = kind <= COPY_DEFAULT ? kind : COPY_NONE;
	}
	/* Device calls have no function: its place keeps the argument until the return. */
	if (api->device_slot)
		call->function = read_slot(&arguments, api->device_slot);
	if (api->launch_shape)
		read_launch(&arguments, api, call);
}

static __always_inline bool is_launch(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_LAUNCH || api->family == FAMILY_GRAPH_LAUNCH;
}

static __always_inline void send_gap(struct thread *thread, __u32 next_api, __u32 choices,
				     __u64 now_ktime_ns)
{
	struct gap_record *record;
	char comm[COMM_BYTES];

	bpf_get_current_comm(comm, sizeof(comm));
	send_intervals(thread, 0, comm);
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_GAP, sizeof(*record), now_ktime_ns,
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = thread->last_return_ktime_ns;
	record->blocked_ns = thread->blocked_ns - thread->gap_blocked_ns;
	record->run_queue_ns = thread->run_queue_ns - thread->gap_run_queue_ns;
	record->device = thread->device;
	record->voluntary_switches = thread->voluntary_switches - thread->gap_voluntary_switches;
	record->involuntary_switches =
		thread->involuntary_switches - thread->gap_involuntary_switches;
	record->previous_api = thread->last_api;
	record->next_api = next_api;
	record->choices = choices;
	record->padding = 0;
	__builtin_memcpy(record->comm, comm, COMM_BYTES);
	count(COUNTER_GAPS_CHOSEN);
	bpf_ringbuf_submit(record, wakeup_flags());
}

/* Whoever has children that were sent is not held back. */
static __always_inline bool may_send(struct thread *thread, __u8 choices, __u64 now_ktime_ns)
{
	struct process *process = find_process(thread->pid);

	return !process || admit(process, now_ktime_ns) ||
	       choices & (CHOICE_PARENT | CHOICE_STALLED);
}

/* The gap ends that began when the thread's last outermost call returned. */
static __always_inline void finish_gap(struct thread *thread, __u32 next_api, __u64 now_ktime_ns)
{
	__u64 gap_ns = end_gap(thread, now_ktime_ns);
	struct aggregate_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.device = thread->device,
		.copy_kind = COPY_NONE,
		.metric = METRIC_LAUNCH_GAP,
	};
	struct threshold_key series = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.copy_kind = COPY_NONE,
	};
	__u64 *threshold_ns;

	if (!gap_ns)
		return;
	if (is_launch(&settings.apis[next_api < MAX_APIS ? next_api : 0]))
		add_duration(&key, gap_ns, 0);
	if (gap_ns < settings.call_stall_floor_ns || thread->process_flags & PROCESS_NO_SPANS)
		return;
	threshold_ns = bpf_map_lookup_elem(&thresholds, &series);
	if (gap_ns < (threshold_ns ? *threshold_ns : settings.stall_floor_ns))
		return;
	if (may_send(thread, CHOICE_SLOW, now_ktime_ns))
		send_gap(thread, next_api, CHOICE_SLOW, now_ktime_ns);
	else
		count(COUNTER_SPANS_WITHHELD_RATE);
}

static __always_inline bool is_sampled(struct thread *thread)
{
	if (!settings.sample_one_in)
		return false;
	if (thread->until_sample) {
		thread->until_sample--;
		return false;
	}
	thread->until_sample = settings.sample_one_in - 1;
	return true;
}

/* The first call of a thread that is not known yet, or of a process under watch_all. */
static __always_inline struct thread *meet_thread(struct task_struct *task, __u32 tid)
{
	__u32 pid = pid_of(task);
	struct process *process = find_process(pid);

	if (!process && settings.watch_all && pid && pid != settings.agent_pid)
		process = watch_process(pid, settings.default_process_flags);
	return process ? watch_thread(process, pid, tid) : NULL;
}

SEC("uprobe")
int enter_call(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 tid = tid_of(task);
	struct thread *thread = find_thread(tid);
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 api = cookie_api(cookie);
	struct open_call *call;
	__u64 stack_pointer;

	if (!thread)
		thread = meet_thread(task, tid);
	if (!thread || api >= MAX_APIS)
		return 0;
	thread->entries++;
	if (thread->off_ktime_ns)
		notice_running(thread, task, bpf_ktime_get_ns());
	stack_pointer = stack_pointer_at_entry(ctx);
	drop_unwound(thread, task, stack_pointer, api);
	if (thread->depth >= MAX_DEPTH) {
		count(COUNTER_LOST_DEPTH_EXCEEDED);
		return 0;
	}
	call = call_at(thread, thread->depth);
	call->api = api;
	call->variant = cookie_variant(cookie);
	call->stack_pointer = stack_pointer;
	call->choices = 0;
	call->device = thread->device;
	call->blocked_ns = thread->blocked_ns;
	call->run_queue_ns = thread->run_queue_ns;
	call->voluntary_switches = thread->voluntary_switches;
	call->involuntary_switches = thread->involuntary_switches;
	read_arguments(ctx, &settings.apis[api], call);
	/* Last, so that our own work does not count as the call's. */
	call->start_ktime_ns = bpf_ktime_get_ns();
	if (!thread->depth) {
		thread->sampled = is_sampled(thread);
		finish_gap(thread, api, call->start_ktime_ns);
		forget_intervals(thread);
	}
	thread->depth++;
	return 0;
}

/* What a success tells about memory and devices. Returns the bytes that it moved. */
static __always_inline __u64 learn_from_success(struct thread *thread,
						const volatile struct api_descriptor *api,
						struct open_call *call)
{
	struct allocation_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.layer = api->layer,
	};
	struct allocation allocation = {}, *known;
	__s32 device = -1;

	if (api->address_is_output) {
		__u64 address = 0;

		read_user(&address, sizeof(address), call->address);
		call->address = address;
	}
	key.address = call->address;
	switch (api->family) {
	case FAMILY_ALLOCATE:
	case FAMILY_HOST_ALLOCATE:
		allocation.size_bytes = call->size_bytes;
		allocation.device = call->device;
		bpf_map_update_elem(&allocations, &key, &allocation, BPF_ANY);
		break;
	case FAMILY_FREE:
	case FAMILY_HOST_FREE:
		known = bpf_map_lookup_elem(&allocations, &key);
		if (known) {
			call->size_bytes = known->size_bytes;
			/* Memory goes back to where it came from. */
			call->device = known->device;
			bpf_map_delete_elem(&allocations, &key);
		}
		break;
	case FAMILY_SET_DEVICE:
		thread->device = (__s32)call->function;
		call->device = thread->device;
		break;
	case FAMILY_GET_DEVICE:
		read_user(&device, sizeof(device), call->function);
		thread->device = device;
		call->device = device;
		break;
	}
	return call->size_bytes;
}

static __always_inline void send_device(struct thread *thread,
					const volatile struct api_descriptor *api,
					struct open_call *call, __u64 now_ktime_ns)
{
	struct device_record *record;
	__u64 uuid = call->address;

	if (api->family != FAMILY_DEVICE_UUID && api->family != FAMILY_DEVICE_PROPERTIES)
		return;
	record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_DEVICE, sizeof(*record), now_ktime_ns,
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->device = (__s32)call->function;
	record->has_name = api->family == FAMILY_DEVICE_PROPERTIES;
	__builtin_memset(record->uuid, 0, sizeof(record->uuid));
	__builtin_memset(record->name, 0, sizeof(record->name));
	if (record->has_name) {
		if (bpf_probe_read_user_str(record->name, sizeof(record->name),
					    (void *)call->address) < 0)
			count(COUNTER_LOST_READ_FAULT);
		uuid += DEVICE_PROPERTIES_UUID_OFFSET;
	}
	read_user(record->uuid, sizeof(record->uuid), uuid);
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void count_call(struct thread *thread,
				       const volatile struct api_descriptor *api,
				       struct open_call *call, __s32 status, __u64 duration_ns,
				       __u64 size_bytes)
{
	struct aggregate_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.status = status,
		.device = call->device,
		.metric = METRIC_CALL_DURATION,
		.api = call->api,
		.copy_kind = call->copy_kind,
		.nested = thread->depth > 1,
	};

	add_duration(&key, duration_ns, size_bytes);
	if (api->family == FAMILY_COPY && !status && thread->depth == 1) {
		key.metric = METRIC_COPY_SIZE;
		key.api = 0;
		add_size(&key, size_bytes);
	}
}

/* No threshold is below the floor, so few calls have to look theirs up. */
static __always_inline bool is_slow(const struct thread *thread, const struct open_call *call,
				    __u64 duration_ns)
{
	struct threshold_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.pid = thread->pid,
		.api = call->api,
		.copy_kind = call->copy_kind,
	};
	__u64 *threshold_ns;

	if (duration_ns < settings.slow_floor_ns)
		return false;
	threshold_ns = bpf_map_lookup_elem(&thresholds, &key);
	return !threshold_ns || duration_ns >= *threshold_ns;
}

static __always_inline __u8 choose(struct thread *thread, struct open_call *call, __s32 status,
				   __u64 duration_ns)
{
	__u8 choices = call->choices;

	if (thread->process_flags & PROCESS_NO_SPANS)
		return 0;
	if (status)
		choices |= CHOICE_FAILED;
	if (is_slow(thread, call, duration_ns))
		choices |= CHOICE_SLOW;
	if (thread->sampled)
		choices |= CHOICE_SAMPLED;
	if (thread->process_flags & PROCESS_FULL)
		choices |= CHOICE_FULL;
	return choices;
}

static __always_inline void send_call(struct thread *thread, struct open_call *call, __u8 choices,
				      __s32 status, __u64 user_stack, __u64 now_ktime_ns)
{
	__u32 depth = thread->depth - 1;
	struct open_call *parent = depth ? call_at(thread, depth - 1) : NULL;
	struct cuda_call_record *record;
	char comm[COMM_BYTES];

	bpf_get_current_comm(comm, sizeof(comm));
	if (!depth)
		send_intervals(thread, call->start_ktime_ns, comm);
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_CUDA_CALL, sizeof(*record), now_ktime_ns,
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = call->start_ktime_ns;
	record->parent_start_ktime_ns = parent ? parent->start_ktime_ns : 0;
	record->root_start_ktime_ns = call_at(thread, 0)->start_ktime_ns;
	record->blocked_ns = thread->blocked_ns - call->blocked_ns;
	record->run_queue_ns = thread->run_queue_ns - call->run_queue_ns;
	record->size_bytes = call->size_bytes;
	record->address = call->address;
	record->stream = call->stream;
	record->function = call->function;
	record->user_stack = user_stack;
	record->status = status;
	record->device = call->device;
	record->weight = choices == CHOICE_SAMPLED ? settings.sample_one_in : 1;
	record->voluntary_switches = thread->voluntary_switches - call->voluntary_switches;
	record->involuntary_switches = thread->involuntary_switches - call->involuntary_switches;
	record->cpu = bpf_get_smp_processor_id();
	__builtin_memcpy(record->grid, call->grid, sizeof(record->grid));
	__builtin_memcpy(record->block, call->block, sizeof(record->block));
	record->api = call->api;
	record->variant = call->variant;
	record->copy_kind = call->copy_kind;
	record->choices = choices;
	record->depth = depth;
	record->padding = 0;
	__builtin_memcpy(record->comm, comm, COMM_BYTES);
	count(COUNTER_SPANS_CHOSEN);
	/* Spans inside spans: the outer call has to be sent too. */
	if (parent)
		parent->choices |= CHOICE_PARENT;
	bpf_ringbuf_submit(record, wakeup_flags());
}

SEC("uretprobe")
int exit_call(struct pt_regs *ctx)
{
	/* First, so that our own work does not count as the call's. */
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct thread *thread = find_thread(tid_of(bpf_get_current_task_btf()));
	__u64 stack_pointer = stack_pointer_at_return(ctx);
	const volatile struct api_descriptor *api;
	struct open_call *call;
	__u64 duration_ns, size_bytes = 0;
	__s32 status;
	__u8 choices;

	if (!thread) /* not watched; or no room for it, which its entry has counted */
		return 0;
	thread->returns++;
	notice_running(thread, bpf_get_current_task_btf(), now_ktime_ns);
	if (!thread->depth) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	/* Frames below a returning one never returned themselves. */
	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		if (innermost(thread)->stack_pointer >= stack_pointer)
			break;
		count(COUNTER_LOST_NO_RETURN);
		thread->depth--;
	}
	call = innermost(thread);
	if (!thread->depth || call->stack_pointer != stack_pointer ||
	    call->api != cookie_api(bpf_get_attach_cookie(ctx))) {
		/* A call nested too deep was counted when it began. */
		if (thread->depth < MAX_DEPTH)
			count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	api = &settings.apis[call->api < MAX_APIS ? call->api : 0];
	status = PT_REGS_RC(ctx);
	if (status && api->address_is_output)
		call->address = 0; /* where it would have been put */
	if (!status) {
		size_bytes = learn_from_success(thread, api, call);
		send_device(thread, api, call, now_ktime_ns);
	}
	duration_ns = now_ktime_ns - call->start_ktime_ns;
	count_call(thread, api, call, status, duration_ns, size_bytes);
	choices = choose(thread, call, status, duration_ns);
	if (choices) {
		if (may_send(thread, choices, now_ktime_ns))
			send_call(thread, call, choices, status,
				  sample_call(ctx, thread, now_ktime_ns), now_ktime_ns);
		else
			count(COUNTER_SPANS_WITHHELD_RATE);
	}
	if (thread->depth == 1) {
		__u64 off_cpu_ns = thread->blocked_ns - call->blocked_ns + thread->run_queue_ns -
				   call->run_queue_ns;

		if (duration_ns > off_cpu_ns)
			add_on_cpu(thread, context_of(thread), duration_ns - off_cpu_ns);
		begin_gap(thread, call->api, now_ktime_ns);
	}
	thread->depth--;
	return 0;
}
