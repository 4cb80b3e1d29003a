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
#include "times.bpf.h"
#include "chains.bpf.h"
#include "thread_context.bpf.h"
#include "account.bpf.h"
#include "stalls.bpf.h"
#include "choices.bpf.h"
#include "gaps.bpf.h"
#include "door.bpf.h"
#include "out_of_memory.bpf.h"
#include "memory.bpf.h"
#include "sizes.bpf.h"
#include "elapsed.bpf.h"
#include "captures.bpf.h"
#include "communicators.bpf.h"
#include "stream_works.bpf.h"
#include "nccl_calls.bpf.h"
#include "rhythm.bpf.h"

/* Of cudaError_t and CUresult alike. */
#define NOT_READY 600

/* cudaDeviceProp begins with name[256] and the 16 bytes of the uuid. */
#define DEVICE_PROPERTIES_UUID_OFFSET 256

static __always_inline __u32 cookie_api(__u64 cookie)
{
	return (__u16)cookie;
}

static __always_inline __u16 cookie_variant(__u64 cookie)
{
	return (__u16)(cookie >> 16);
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
 * one API to another, unless it is the same API again: that one was unwound. Those that a door
 * publishes, it forgets itself.
 */
static __always_inline void drop_unwound(struct thread *thread, struct task_struct *task,
					 __u64 stack_pointer, __u32 api)
{
	struct xol_area *area = thread->depth ? trampoline_of(task) : NULL;

	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		struct open_call *call = innermost(thread);
		bool is_outer = call->stack_pointer > stack_pointer ||
				(call->stack_pointer == stack_pointer && call->api != api);

		if (call->is_published || (is_outer && is_frame_alive(area, call->stack_pointer)))
			break;
		count(COUNTER_LOST_NO_RETURN);
		thread->depth--;
	}
}

/* Whether a call shows that an allocator does not try again. */
static __always_inline bool goes_on_without_memory(__u32 api)
{
	__u8 family = settings.apis[api].family;

	return family == FAMILY_LAUNCH || family == FAMILY_GRAPH_LAUNCH || family == FAMILY_COPY ||
	       family == FAMILY_MEMSET;
}

/*
 * What a network adapter may no longer use. Its handle is freed in the call, and may be another
 * thread's before it returns: so it is taken at the entry, and put back if the call fails.
 */
static __noinline int change_registration(const struct thread *thread, struct open_call *call,
					  bool is_entry)
{
	struct allocation_key key = {
		.image_ktime_ns = thread->image_ktime_ns,
		.address = call->address,
		.pid = thread->pid,
		.layer = LAYER_VERBS,
	};
	struct allocation *known, registration = {.size_bytes = call->size_bytes};

	if (!is_entry) {
		if (registration.size_bytes)
			bpf_map_update_elem(&allocations, &key, &registration, BPF_NOEXIST);
		return 0;
	}
	known = bpf_map_lookup_elem(&allocations, &key);
	if (known) {
		call->size_bytes = known->size_bytes;
		bpf_map_delete_elem(&allocations, &key);
	}
	return 0;
}

/* Whether the program counts this call, which is about to begin or has just ended. */
__weak __noinline int goes_through_door(struct thread *thread, __u32 api)
{
	const struct door_slot *view;
	const __u64 *image_ktime_ns;
	__u32 pid, depth;

	if (!thread)
		return false;
	view = view_of(thread);
	pid = thread->pid;
	if (!thread->door_slot || api >= MAX_APIS || !settings.apis[api].door)
		return false;
	image_ktime_ns = bpf_map_lookup_elem(&doors, &pid);
	if (!image_ktime_ns || *image_ktime_ns != thread->image_ktime_ns)
		return false;
	if (!look_at_slot(thread))
		return true;
	depth = view->depth;
	/* Deeper ones are counted, and not published. */
	if (depth >= MAX_DEPTH)
		return true;
	return depth && view->calls[(depth - 1) % MAX_DEPTH].api == api;
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
	bool is_published;

	/* Who only uses the network is not watched for that. */
	if (!thread && (api < MAX_APIS && settings.apis[api].layer == LAYER_VERBS) &&
	    !find_process(pid_of(task)))
		return 0;
	if (!thread)
		thread = meet_thread(task, tid);
	barrier_var(api); /* or the check may be lost on what is used below */
	if (!thread || api >= MAX_APIS || goes_through_door(thread, api))
		return 0;
	thread->entries++;
	if (thread->off_ktime_ns)
		notice_running(thread, task, bpf_ktime_get_ns());
	stack_pointer = stack_pointer_at_entry(ctx);
	sync_door(thread);
	drop_unwound(thread, task, stack_pointer, api);
	/* The door published it a moment ago. */
	is_published = thread->depth && innermost(thread)->is_published == PUBLISHED &&
		       innermost(thread)->api == api;
	if (!is_published && thread->depth >= MAX_DEPTH) {
		count(COUNTER_LOST_DEPTH_EXCEEDED);
		return 0;
	}
	call = is_published ? innermost(thread) : call_at(thread, thread->depth);
	call->variant = cookie_variant(cookie);
	call->stack_pointer = stack_pointer;
	call->device = thread->device;
	if (!is_published) {
		call->api = api;
		call->is_published = 0;
		call->choices = 0;
		call->blocked_ns = thread->blocked_ns;
		call->run_queue_ns = thread->run_queue_ns;
		call->voluntary_switches = thread->voluntary_switches;
		call->involuntary_switches = thread->involuntary_switches;
	} else {
		call->is_published = PUBLISHED_AND_PROBED;
	}
	read_arguments(ctx, &settings.apis[api], call);
	if (settings.apis[api].size_form)
		read_size(ctx, &settings.apis[api], call);
	if (settings.apis[api].layer == LAYER_NCCL)
		read_nccl_call(ctx, &settings.apis[api], call);
	if (settings.apis[api].family == FAMILY_DEREGISTER)
		change_registration(thread, call, true);
	if (is_published)
		return 0;
	/* Last, so that our own work does not count as the call's. */
	call->start_ktime_ns = bpf_ktime_get_ns();
	if (!thread->depth) {
		call->start_ktime_ns = pass_on_cpu(thread, call->start_ktime_ns, 0);
		thread->sampled = is_sampled(thread);
		if (thread->failed.ktime_ns && goes_on_without_memory(api))
			send_failed_call(thread);
		finish_gap(thread, api, call->start_ktime_ns);
		forget_intervals(thread);
		/* The door follows what it counts. */
		if (settings.finds_steps && !thread->door_slot)
			note_rhythm(thread, call);
	}
	thread->depth++;
	return 0;
}

/* What a success says about memory and devices. Returns the bytes that it moved. */
static __noinline __u64 learn_from_success(struct thread *thread,
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
	if (api->physical)
		return change_physical(thread, api->physical, call);
	switch (api->family) {
	case FAMILY_ALLOCATE:
	case FAMILY_HOST_ALLOCATE:
	case FAMILY_REGISTER:
		/* A node of a graph is no memory. */
		if (!is_captured(thread, call->stream))
			allocation.size_bytes = call->size_bytes;
		allocation.device = call->device;
		if (api->family == FAMILY_ALLOCATE)
			allocation.ktime_ns = call->start_ktime_ns;
		if (bpf_map_update_elem(&allocations, &key, &allocation, BPF_ANY))
			count(COUNTER_LOST_ALLOCATIONS_FULL);
		return allocation.size_bytes;
	case FAMILY_FREE:
	case FAMILY_HOST_FREE:
		known = bpf_map_lookup_elem(&allocations, &key);
		if (known && known->size_bytes && is_captured(thread, call->stream))
			break; /* the graph will free it */
		if (known) {
			call->size_bytes = known->size_bytes;
			/* Memory goes back to where it came from. */
			call->device = known->device;
			if (api->family == FAMILY_FREE)
				keep_freed_segment(thread, key.address, known);
			bpf_map_delete_elem(&allocations, &key);
		} else if (key.address) { /* to free nothing is allowed */
			count(COUNTER_LOST_UNKNOWN_FREE);
		}
		break;
	case FAMILY_DEREGISTER:
		if (!call->size_bytes && key.address)
			count(COUNTER_LOST_UNKNOWN_FREE);
		break;
	case FAMILY_SET_DEVICE:
		thread->device = (__s32)call->function;
		call->device = thread->device;
		break;
	case FAMILY_MEMORY_INFO:
		read_user(&thread->device_free_bytes, sizeof(__u64), call->address);
		read_user(&thread->device_total_bytes, sizeof(__u64), call->function);
		thread->device_ktime_ns = call->start_ktime_ns;
		call->address = 0;
		call->function = 0; /* is of launches */
		break;
	case FAMILY_ELAPSED_TIME:
		note_elapsed_time(thread, call);
		break;
	case FAMILY_GET_DEVICE:
		read_user(&device, sizeof(device), call->function);
		thread->device = device;
		call->device = device;
		break;
	}
	return call->size_bytes;
}

static __noinline int send_device(struct thread *thread, const volatile struct api_descriptor *api,
				  struct open_call *call, __u64 now_ktime_ns)
{
	struct device_record *record;
	__u64 uuid = call->address;

	if (api->family != FAMILY_DEVICE_UUID && api->family != FAMILY_DEVICE_PROPERTIES)
		return 0;
	record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
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
	return 0;
}

/* A launch names a kernel by a handle, or by an address of the host. */
static __noinline int note_handle(const struct thread *thread, struct open_call *call, __u8 family,
				  __s32 status, __u64 now_ktime_ns)
{
	__u64 argument = call->function;
	struct handle_record *record;

	call->function = call->address;
	call->address = 0;
	if (status)
		return 0;
	record = bpf_ringbuf_reserve(&lifecycle, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_HANDLE, sizeof(*record), now_ktime_ns,
		    thread->image_ktime_ns, thread->pid, thread->tid);
	record->handle = call->function;
	record->same_as = family == FAMILY_KERNEL_ALIAS ? argument : 0;
	__builtin_memset(record->name, 0, sizeof(record->name));
	if (family == FAMILY_KERNEL &&
	    bpf_probe_read_user_str(record->name, sizeof(record->name), (void *)argument) < 0)
		count(COUNTER_LOST_READ_FAULT);
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/*
 * A call that was refused memory. In a program whose framework reports what it hands out, it is
 * not known yet whether that was the last attempt.
 */
static __noinline void note_failure(struct thread *thread, const struct open_call *call,
				    __u64 now_ktime_ns)
{
	struct device_key device = device_key_of(thread, call->device);
	struct device_memory *memory = bpf_map_lookup_elem(&device_memories, &device);

	thread->failed.ktime_ns = now_ktime_ns;
	thread->failed.asked_bytes = call->size_bytes;
	thread->failed.root_start_ktime_ns = call->start_ktime_ns;
	thread->failed.device = call->device;
	thread->failed.api = call->api;
	if (!memory)
		send_failed_call(thread);
}

/* A call that makes calls of another library asks for something else than they do. */
static __always_inline bool is_nested(struct thread *thread,
				      const volatile struct api_descriptor *api)
{
	__u32 around, layer;

	if (thread->depth < 2)
		return false;
	around = call_at(thread, thread->depth - 2)->api;
	layer = settings.apis[around < MAX_APIS ? around : 0].layer;
	/* The runtime and the driver are one in this. */
	return layer < LAYER_NCCL ? api->layer < LAYER_NCCL : api->layer == layer;
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
		.nested = is_nested(thread, api),
	};

	add_duration(&key, duration_ns, size_bytes);
	if (api->family == FAMILY_COPY && !status && !key.nested && !call->has_no_size) {
		key.metric = METRIC_COPY_SIZE;
		key.api = 0;
		add_size(&key, size_bytes);
	}
}

/* Once for an outermost call, before the first thing of it that is sent. */
static __noinline int send_context(struct thread *thread, __u64 start_ktime_ns, __u64 now_ktime_ns)
{
	struct published_context context = {};

	if (thread->context_ktime_ns == start_ktime_ns)
		return 0;
	thread->context_ktime_ns = start_ktime_ns;
	if (read_context(thread, &context))
		send_published(&events, COUNTER_LOST_RING_FULL, thread, &context, start_ktime_ns,
			       now_ktime_ns);
	return 0;
}

static __noinline int send_call(struct thread *thread, struct open_call *call, __u64 user_stack,
				__u64 now_ktime_ns)
{
	__u8 choices = call->choices;
	__u32 depth = thread->depth - 1;
	struct open_call *parent = depth ? call_at(thread, depth - 1) : NULL;
	struct cuda_call_record *record;
	char comm[COMM_BYTES];

	bpf_get_current_comm(comm, sizeof(comm));
	send_context(thread, call_at(thread, 0)->start_ktime_ns, now_ktime_ns);
	if (!depth)
		send_intervals(thread, call->start_ktime_ns, now_ktime_ns, 0, comm);
	record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
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
	record->status = call->status;
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
	return 0;
}

/* A call inside may say what the arguments of the one around it do not. */
static __noinline int settle_size(struct thread *thread, const volatile struct api_descriptor *api,
				  const struct open_call *call)
{
	__u32 depth = thread->depth;
	struct open_call *parent;

	if (depth < 2) {
		if (call->has_no_size)
			count(COUNTER_LOST_SIZE);
		return 0;
	}
	parent = call_at(thread, depth - 2);
	if (parent->has_no_size && !call->has_no_size && parent->api < MAX_APIS &&
	    settings.apis[parent->api].family == api->family) {
		parent->size_bytes = call->size_bytes;
		parent->has_no_size = 0;
	}
	return 0;
}

static __always_inline bool only_asks(const volatile struct api_descriptor *api)
{
	return api->family == FAMILY_QUERY || api->family == FAMILY_ELAPSED_TIME ||
	       api->layer == LAYER_VERBS;
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
	if (goes_through_door(thread, cookie_api(bpf_get_attach_cookie(ctx)) % MAX_APIS))
		return 0;
	thread->returns++;
	notice_running(thread, bpf_get_current_task_btf(), now_ktime_ns);
	/* The account was read a moment later: the call lasts until then. */
	if (now_ktime_ns < (thread->booked & ~OFF_CPU))
		now_ktime_ns = thread->booked & ~OFF_CPU;
	if (!thread->depth) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	/* Frames below a returning one never returned themselves. */
	for (int i = 0; i < MAX_DEPTH && thread->depth; i++) {
		if (innermost(thread)->stack_pointer >= stack_pointer)
			break;
		if (!innermost(thread)->is_published)
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
	if (api->returns_pointer) {
		status = PT_REGS_RC(ctx) ? 0 : -1;
		call->address = PT_REGS_RC(ctx);
	}
	if (!status && api->stream_work && thread->depth == 1 && has_collectives(thread))
		after_stream_call(thread->tid, now_ktime_ns);
	if (status == NOT_READY && api->family == FAMILY_QUERY)
		status = 0; /* an answer */
	if (api->layer == LAYER_NCCL) {
		if (status == IN_PROGRESS)
			status = 0;
		after_nccl_call(thread->tid, status, now_ktime_ns);
	}
	if (api->stream_work)
		call->function = 0; /* is of launches */
	if (status && (api->address_is_output || api->family == FAMILY_ELAPSED_TIME))
		call->address = 0; /* where it would have been put */
	if (status && api->family == FAMILY_DEREGISTER)
		change_registration(thread, call, false);
	if (!status)
		settle_size(thread, api, call);
	if (api->stream_capture)
		note_capture(thread, call, api->stream_capture, status);
	if (!status) {
		size_bytes = learn_from_success(thread, api, call);
		send_device(thread, api, call, now_ktime_ns);
	}
	if (api->family == FAMILY_KERNEL || api->family == FAMILY_KERNEL_ALIAS)
		note_handle(thread, call, api->family, status, now_ktime_ns);
	if (status == OUT_OF_MEMORY && api->family == FAMILY_ALLOCATE && !is_nested(thread, api) &&
	    admit_failure(now_ktime_ns)) {
		/* Another token than that of the call, whose sample goes with its span. */
		thread->failed.user_stack = sample_call(ctx, thread, now_ktime_ns - 1);
		send_context(thread, call_at(thread, 0)->start_ktime_ns, now_ktime_ns);
		note_failure(thread, call, now_ktime_ns);
	}
	duration_ns = since(call->start_ktime_ns, now_ktime_ns);
	count_call(thread, api, call, status, duration_ns, size_bytes);
	choices = choose(thread, call, status, duration_ns);
	if (choices) {
		call->choices = choices;
		call->status = status;
		if (may_send(thread, choices, now_ktime_ns))
			send_call(thread, call, sample_call(ctx, thread, now_ktime_ns),
				  call->start_ktime_ns + duration_ns);
		else
			count(COUNTER_SPANS_WITHHELD_RATE);
	}
	if (thread->depth == 1) {
		now_ktime_ns = pass_on_cpu(thread, now_ktime_ns, 0);
		/* Whoever only asks, as a watchdog does, or prepares transfers, feeds no device. */
		if (thread->last_return_ktime_ns || !only_asks(api))
			begin_gap(thread, call->api, now_ktime_ns);
		note_gap_context(thread);
		if (thread->in_rhythm)
			thread->rhythm_return_ktime_ns = now_ktime_ns;
		thread->in_rhythm = 0;
	}
	thread->depth--;
	return 0;
}

/* The thread was off the CPU, or the account was read, since the door looked at its clock. */
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

/* Read what the door shows of the innermost call. Returns when it ended; 0: it is another one. */
static __noinline __u64 read_shown(struct thread *thread, __u64 address)
{
	struct door_call shown = {};
	struct open_call *call;
	__u64 end_ktime_ns;

	if (bpf_probe_read_user(&shown, sizeof(shown), (const void *)address)) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	call = innermost(thread);
	if (!thread->depth || !call->is_published || call->api != shown.api ||
	    call->start_ktime_ns != shown.start_ktime_ns) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	call->size_bytes = shown.size_bytes;
	call->address = shown.address;
	call->stream = shown.stream;
	call->function = shown.function;
	call->status = shown.status;
	call->device = shown.device;
	call->copy_kind = shown.copy_kind;
	__builtin_memcpy(call->grid, shown.grid, sizeof(call->grid));
	__builtin_memcpy(call->block, shown.block, sizeof(call->block));
	thread->sampled = !!(shown.choices & CHOICE_SAMPLED);
	end_ktime_ns = call->start_ktime_ns + since(call->start_ktime_ns, shown.end_ktime_ns);
	if (!thread->may_be_shown)
		return not_before_booked(thread, end_ktime_ns);
	leave_out_gap(thread, call);
	return end_ktime_ns;
}

/* The innermost call of a thread. */
static __always_inline void show(struct pt_regs *ctx, struct thread *thread)
{
	const volatile struct api_descriptor *api;
	struct open_call *call;
	__u64 end_ktime_ns = read_shown(thread, PT_REGS_PARM1(ctx));
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
		count(COUNTER_SPANS_WITHHELD_RATE);
}

/* A thread that is here has come back to its CPU, before anything that it publishes since. */
static __always_inline struct thread *thread_at_door(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = find_thread(tid_of(task));

	if (!thread)
		return NULL;
	if (thread->off_ktime_ns)
		notice_running(thread, task, bpf_ktime_get_ns());
	sync_door(thread);
	return thread;
}

/* A call that the door has counted, and that may be worth more. */
SEC("uprobe")
int show_call(struct pt_regs *ctx)
{
	struct thread *thread = thread_at_door();

	if (!thread)
		return 0;
	/* An outermost one is over already, but for this. */
	if (thread->may_be_shown)
		thread->depth = 1;
	show(ctx, thread);
	if (thread->may_be_shown)
		thread->depth = 0;
	return 0;
}

/* A gap between two calls that the door knows is long. */
SEC("uprobe")
int show_gap(struct pt_regs *ctx)
{
	struct thread *thread = thread_at_door();
	struct door_gap gap = {};

	if (!thread)
		return 0;
	if (bpf_probe_read_user(&gap, sizeof(gap), (const void *)PT_REGS_PARM1(ctx))) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	if (!thread->depth && gap.start_ktime_ns &&
	    thread->last_return_ktime_ns == gap.start_ktime_ns)
		choose_gap(thread, gap.next_api % MAX_APIS,
			   not_before_booked(thread, gap.end_ktime_ns));
	return 0;
}
