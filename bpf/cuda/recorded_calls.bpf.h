/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which calls become spans: for what they are, or by chance, within a rate. */
#ifndef OTEL_GPU_BPF_CUDA_RECORDED_CALLS_H
#define OTEL_GPU_BPF_CUDA_RECORDED_CALLS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

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

/* No threshold is below the floor, so few calls have to read theirs. */
static __always_inline bool is_slow(const struct thread *thread, const struct open_call *call,
				    __u64 duration_ns)
{
	struct threshold_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
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

static __always_inline bool may_send(struct thread *thread, __u8 choices, __u64 now_ktime_ns)
{
	return admit(find_process(thread->pid), choices, now_ktime_ns);
}

#endif
