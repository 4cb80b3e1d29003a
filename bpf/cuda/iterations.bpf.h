/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* StepDetectors of threads, and what is sent of them: see struct step_detector. */
#ifndef OTEL_GPU_BPF_CUDA_ITERATIONS_H
#define OTEL_GPU_BPF_CUDA_ITERATIONS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define ITERATION_INTERVAL_NS 1000000
#define ITERATION_BURST_NS    1000000000

/* Shared with the agent, which maps both. Who has one is found without looking for it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_STEP_DETECTORS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct step_detector);
} step_detectors __weak SEC(".maps");

/* Of each area DETECTOR_CALLS. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, DETECTOR_AREAS *DETECTOR_CALLS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct detector_call);
} detector_calls __weak SEC(".maps");

static __always_inline struct step_detector *detector_of(const struct thread *thread)
{
	__u32 index = thread->detector - 1;

	return bpf_map_lookup_elem(&step_detectors, &index);
}

static __noinline int send_iteration(struct step_detector *detector, __u32 index,
				     __u64 end_ktime_ns)
{
	struct iteration_record *record;

	if (!admit_to(&detector->arrival_ktime_ns, end_ktime_ns, ITERATION_INTERVAL_NS,
		      ITERATION_BURST_NS)) {
		count(COUNTER_STEPS_RATE_LIMITED);
		return 0;
	}
	record = RESERVE_EVENT(detector->pid, record);
	if (!record) {
		count(COUNTER_LOST_RING_FULL);
		return 0;
	}
	fill_header(&record->header, RECORD_ITERATION, sizeof(*record), end_ktime_ns,
		    detector->program_ktime_ns, detector->pid, detector->tid);
	record->start_ktime_ns = detector->start_ktime_ns;
	record->detector = index;
	record->padding = 0;
	bpf_get_current_comm(record->comm, COMM_BYTES);
	bpf_ringbuf_submit(record, wakeup_flags());
	return 0;
}

#endif
