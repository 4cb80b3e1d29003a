/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Streams that are being captured into a graph: what is asked of them is not done now, and not seen
 * when the graph is replayed. The default stream cannot be captured.
 *
 * A stream that waits for an event of a captured stream joins the capture. That is followed in
 * programs that have collectives, whose streams join that way.
 */
#ifndef OTEL_GPU_BPF_CUDA_STREAM_CAPTURES_H
#define OTEL_GPU_BPF_CUDA_STREAM_CAPTURES_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "events.h"

static __always_inline struct stream_key stream_key_of(const struct thread *thread, __u64 stream)
{
	struct stream_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.stream = stream,
		.pid = thread->pid,
	};

	return key;
}

/* What a stream is part of now; NULL: of none. */
static __always_inline struct capture *find_capture(const struct thread *thread, __u64 stream)
{
	struct stream_key key = stream_key_of(thread, stream);
	struct capture *capture, *origin;

	if (!stream)
		return NULL;
	capture = bpf_map_lookup_elem(&captures, &key);
	if (!capture || capture->origin == stream)
		return capture;
	key.stream = capture->origin;
	origin = bpf_map_lookup_elem(&captures, &key);
	return origin && origin->ktime_ns == capture->ktime_ns ? capture : NULL;
}

static __always_inline bool is_captured(const struct thread *thread, __u64 stream)
{
	return find_capture(thread, stream) != NULL;
}

/* A capture ends also where that fails. */
__attribute__((unused)) static __noinline void
note_capture(const struct thread *thread, const struct open_call *call, __u8 change, __s32 status)
{
	struct stream_key key = stream_key_of(thread, call->stream);
	struct capture capture = {.origin = call->stream, .ktime_ns = call->start_ktime_ns};

	if (change == CAPTURE_ENDS)
		bpf_map_delete_elem(&captures, &key);
	else if (!status && bpf_map_update_elem(&captures, &key, &capture, BPF_ANY))
		count(COUNTER_LOST_ALLOCATIONS_FULL);
}

#endif
