/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rhythms of threads, and what is sent of them: see struct rhythm. */
#ifndef OTEL_GPU_BPF_CUDA_ITERATIONS_H
#define OTEL_GPU_BPF_CUDA_ITERATIONS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define ROUND_INTERVAL_NS 1000000
#define ROUND_BURST_NS	  1000000000

/* Shared with the agent, which maps both. Who has one is found without looking for it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_RHYTHMS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct rhythm);
} rhythms __weak SEC(".maps");

/* Of each area RHYTHM_CALLS. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RHYTHM_AREAS *RHYTHM_CALLS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct rhythm_call);
} rhythm_calls __weak SEC(".maps");

static __always_inline struct rhythm *rhythm_of(const struct thread *thread)
{
	__u32 index = thread->rhythm - 1;

	return bpf_map_lookup_elem(&rhythms, &index);
}

static __noinline int send_round(struct rhythm *rhythm, __u32 index, __u64 end_ktime_ns)
{
	struct round_record *record;

	if (!admit_to(&rhythm->arrival_ktime_ns, end_ktime_ns, ROUND_INTERVAL_NS, ROUND_BURST_NS)) {
		count(COUNTER_ROUNDS_WITHHELD);
		return 0;
	}
	record = RESERVE_EVENT(rhythm->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_ROUND, sizeof(*record), end_ktime_ns,
		    rhythm->program_ktime_ns, rhythm->pid, rhythm->tid);
	record->start_ktime_ns = rhythm->start_ktime_ns;
	record->rhythm = index;
	record->padding = 0;
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}

#endif
