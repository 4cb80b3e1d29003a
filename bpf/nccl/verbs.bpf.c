// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Asynchronous events of network adapters: what ibv_get_async_event() returns.
 *
 * A thread waits in that call for as long as all is well, so its time as a call does not matter. The
 * first one may have begun before the probes stood, and then its return is not seen. But each event
 * is acknowledged, and whose return was not seen is counted then.
 */
#include "core/aggregate.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

/* struct ibv_async_event: what it is about, and enum ibv_event_type. */
#define EVENT_TYPE_OFFSET 8
#define EVENT_TYPES	  32
#define MAX_EVENT_WAITS	  4096
#define EVENT_INTERVAL_NS 10000000
#define EVENT_BURST_NS	  1000000000

/* CQ_ERR, QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR, PATH_MIG_ERR, DEVICE_FATAL, PORT_ERR, SRQ_ERR, WQ_FATAL */
#define FAILURES                                                                                   \
	(1u << 0 | 1u << 1 | 1u << 2 | 1u << 3 | 1u << 7 | 1u << 8 | 1u << 10 | 1u << 14 | 1u << 19)

/* Where a thread that waits will find its event. The one that waits for longest goes, if it must. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_EVENT_WAITS);
	__type(key, __u64);
	__type(value, __u64);
} event_waits SEC(".maps");

struct event_owner {
	__u64 program_ktime_ns;
	__u32 pid;
	__u32 padding;
};

/* How many events of a program were counted, and are not acknowledged yet. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_EVENT_WAITS);
	__type(key, struct event_owner);
	__type(value, __u32);
} taken_events SEC(".maps");

static __always_inline struct process *find_own_process(struct event_owner *owner)
{
	__u32 pid = pid_of(bpf_get_current_task_btf());
	struct process *process = find_process(pid);

	owner->program_ktime_ns = process ? process->program_ktime_ns : 0;
	owner->pid = pid;
	owner->padding = 0;
	return process;
}

/*
 * As a call that took no time and failed. It has a rate of its own: the calls that fail because of
 * it would keep it from being sent.
 */
static __noinline int send_event(struct process *process, const struct event_owner *owner,
				 __u32 api, __u32 type)
{
	__u64 now_ktime_ns = bpf_ktime_get_ns();
	struct cuda_call_record *record;

	if (process->flags & PROCESS_NO_SPANS)
		return 0;
	if (!admit_to(&process->event_arrival_ktime_ns, now_ktime_ns, EVENT_INTERVAL_NS,
		      EVENT_BURST_NS)) {
		count(COUNTER_SPANS_RATE_LIMITED);
		return 0;
	}
	record = RESERVE_EVENT(owner->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	fill_header(&record->header, RECORD_CUDA_CALL, sizeof(*record), now_ktime_ns,
		    owner->program_ktime_ns, owner->pid, tid_of(bpf_get_current_task_btf()));
	record->start_ktime_ns = now_ktime_ns;
	record->root_start_ktime_ns = now_ktime_ns;
	record->status = VERBS_EVENT_STATUS + type;
	record->device = -1;
	record->weight = 1;
	record->cpu = bpf_get_smp_processor_id();
	record->api = api;
	record->copy_kind = COPY_NONE;
	record->choices = CHOICE_FAILED;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	count(COUNTER_SPANS_CHOSEN);
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}

static __noinline int note_event(struct process *process, const struct event_owner *owner,
				 __u64 event, __u32 api)
{
	struct aggregate_key key = {
		.program_ktime_ns = owner->program_ktime_ns,
		.pid = owner->pid,
		.device = -1,
		.metric = METRIC_ASYNC_EVENT,
		.api = api,
	};
	struct aggregate *aggregate;
	__u32 type = 0;

	if (bpf_probe_read_user(&type, sizeof(type), (void *)(event + EVENT_TYPE_OFFSET))) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	/* One of a later version is counted without a type. */
	key.copy_kind = type < EVENT_TYPES ? type : COPY_NONE;
	aggregate = find_aggregate(&key);
	if (aggregate)
		__sync_fetch_and_add(&aggregate->buckets[0], 1);
	if (type < EVENT_TYPES && FAILURES & 1u << type)
		send_event(process, owner, api, type);
	return 0;
}

SEC("uprobe")
int enter_event_wait(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), event = PT_REGS_PARM2(ctx);
	struct event_owner owner;

	if (find_own_process(&owner)) {
		count(COUNTER_PROBE_ENTRIES);
		bpf_map_update_elem(&event_waits, &thread, &event, BPF_ANY);
	}
	return 0;
}

SEC("uretprobe")
int exit_event_wait(struct pt_regs *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid();
	__u64 *event = bpf_map_lookup_elem(&event_waits, &thread);
	struct event_owner owner;
	struct process *process = find_own_process(&owner);
	__u32 none = 0, *taken;

	if (!process)
		return 0;
	count(COUNTER_PROBE_RETURNS);
	if (!event) {
		count(COUNTER_LOST_NO_ENTRY);
		return 0;
	}
	/* Where it does not block, there often is none. */
	if (!(__s32)PT_REGS_RC(ctx)) {
		note_event(process, &owner, *event, (__u16)bpf_get_attach_cookie(ctx));
		/* BPF_NOEXIST: another thread may be first. */
		bpf_map_update_elem(&taken_events, &owner, &none, BPF_NOEXIST);
		taken = bpf_map_lookup_elem(&taken_events, &owner);
		if (taken)
			__sync_fetch_and_add(taken, 1);
	}
	bpf_map_delete_elem(&event_waits, &thread);
	return 0;
}

/* The cookie contains the API that waited for it. */
SEC("uprobe")
int acknowledge_event(struct pt_regs *ctx)
{
	struct event_owner owner;
	struct process *process = find_own_process(&owner);
	__u32 *taken;

	if (!process)
		return 0;
	count(COUNTER_PROBE_ENTRIES);
	taken = bpf_map_lookup_elem(&taken_events, &owner);
	if (taken && *taken)
		__sync_fetch_and_add(taken, -1);
	else
		note_event(process, &owner, PT_REGS_PARM1(ctx), (__u16)bpf_get_attach_cookie(ctx));
	return 0;
}
