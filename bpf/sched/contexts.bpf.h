/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a moment of a thread belongs to: a call, the gap after one, or neither. */
#ifndef OTEL_GPU_BPF_SCHED_CONTEXTS_H
#define OTEL_GPU_BPF_SCHED_CONTEXTS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

static __always_inline bool waits_for_device(__u32 api)
{
	return settings.apis[api < MAX_APIS ? api : 0].family == FAMILY_SYNCHRONIZE;
}

/* Outside of all calls. */
static __always_inline enum call_context context_between(__u64 last_return_ktime_ns)
{
	return last_return_ktime_ns ? CONTEXT_GAP : CONTEXT_OTHER;
}

static __always_inline enum call_context context_of(const struct thread *thread)
{
	__u32 depth = thread->depth;

	if (!depth)
		return context_between(thread->last_return_ktime_ns);
	if (waits_for_device(thread->calls[0].api) ||
	    waits_for_device(thread->calls[(depth - 1) % MAX_DEPTH].api))
		return CONTEXT_SYNCHRONIZE;
	return CONTEXT_CALL;
}

/* The outermost open call, or in a gap the one before it. */
static __always_inline __u32 api_of(const struct thread *thread)
{
	if (thread->depth)
		return thread->calls[0].api;
	return thread->last_return_ktime_ns ? thread->last_api : 0;
}

#endif
