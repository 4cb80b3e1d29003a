/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * In which span of its own OpenTelemetry SDK a thread is: the thread context of OTEP 4947.
 *
 * A process that publishes it has a thread-local pointer named otel_thread_ctx_v1, which leads to a
 * record of the thread. The agent finds where the pointer lies: at a distance from the thread
 * pointer, or in the storage of a module, which the dynamic thread vector of the thread knows. A
 * record may be read while its thread is interrupted; these programs run on that very thread.
 *
 * What is read is anything that the process likes: it becomes a parent of the process's own spans,
 * and of no other process's.
 */
#ifndef OTEL_GPU_BPF_CORE_THREAD_CONTEXT_H
#define OTEL_GPU_BPF_CORE_THREAD_CONTEXT_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

/* One entry of glibc's vector: where the storage is, and what to free. */
#define VECTOR_ENTRY_BYTES 16
#define MAX_MODULES	   4096
/* The vector's own: storage of a module that the thread has not used yet. */
#define NOT_ALLOCATED (~0ULL)
#if defined(__TARGET_ARCH_x86)
#define VECTOR_OFFSET 8
#else
#define VECTOR_OFFSET 0
#endif

#define PUBLISHED_BYTES 28

/* Not a fault: a process may end, or change its mind, while it is looked at. */
static __always_inline bool try_read(void *to, __u32 size, __u64 from)
{
	return !bpf_probe_read_user(to, size, (const void *)from);
}

static __always_inline bool has_publishers(void)
{
	__u32 none = 0;
	const __u32 *publishers_now = bpf_map_lookup_elem(&publishers, &none);

	return publishers_now && *publishers_now;
}

/* Whether its memory has to be read to know that the current thread is in no span. */
static __always_inline bool is_in_span(const struct thread *thread)
{
	return thread->ranges_address || has_publishers();
}

/* The context that the current thread publishes; false: it is in no span. */
static __always_inline bool read_published(const struct thread *thread,
					   struct published_context *context)
{
	__u32 pid = thread->pid;
	const struct thread_context_place *place;
	__u64 storage, record = 0;

	if (!has_publishers())
		return false;
	place = bpf_map_lookup_elem(&thread_contexts, &pid);
	if (!place || place->program_ktime_ns != thread->program_ktime_ns)
		return false;
	storage = thread_pointer_of(bpf_get_current_task_btf());
	if (place->module) {
		__u64 vector = 0;

		if (place->module >= MAX_MODULES ||
		    !try_read(&vector, sizeof(vector), storage + VECTOR_OFFSET) ||
		    !try_read(&storage, sizeof(storage),
			      vector + place->module * VECTOR_ENTRY_BYTES) ||
		    !storage || storage == NOT_ALLOCATED)
			return false;
	}
	if (!try_read(&record, sizeof(record), storage + place->offset) || !record)
		return false;
	return try_read(context, PUBLISHED_BYTES, record) && context->valid == 1 &&
	       context->span_id;
}

/*
 * The context of the current thread; false: it is in no span. A range of NVTX is further in than the
 * span that it was pushed in, and not than one that began since.
 */
static __noinline int read_context(const struct thread *thread, struct published_context *context)
{
	bool is_published = read_published(thread, context);
	struct published_range range = {};

	if (!thread->ranges_address || !try_read(&range, sizeof(range), thread->ranges_address) ||
	    range.valid != 1 || !range.span_id ||
	    range.within_span_id != (is_published ? context->span_id : 0))
		return is_published;
	__builtin_memcpy(context->trace_id, range.trace_id, sizeof(context->trace_id));
	context->span_id = range.span_id;
	context->trace_flags = range.trace_flags;
	return true;
}

/*
 * In which span a thread is that leaves the CPU, where it will still be when it is back. A call is in
 * one span, so in a call the first wait is enough.
 */
__weak __noinline int note_context(struct thread *thread)
{
	__u64 call_ktime_ns;

	if (!thread)
		return 0;
	call_ktime_ns = thread->depth ? thread->calls[0].start_ktime_ns : 0;
	if (thread->process_flags & PROCESS_NO_SPANS ||
	    (call_ktime_ns && thread->noted_ktime_ns == call_ktime_ns))
		return 0;
	if (!read_context(thread, &thread->context))
		thread->context.span_id = 0;
	thread->noted_ktime_ns = call_ktime_ns;
	return 0;
}

static __always_inline void send_published(void *ring, enum counter full,
					   const struct thread *thread,
					   const struct published_context *context,
					   __u64 start_ktime_ns, __u64 now_ktime_ns)
{
	struct thread_context_record *record = bpf_ringbuf_reserve(ring, sizeof(*record), 0);

	if (!record) {
		count(full);
		return;
	}
	fill_header(&record->header, RECORD_THREAD_CONTEXT, sizeof(*record), now_ktime_ns,
		    thread->program_ktime_ns, thread->pid, thread->tid);
	record->start_ktime_ns = start_ktime_ns;
	__builtin_memcpy(record->trace_id, context->trace_id, sizeof(record->trace_id));
	__builtin_memcpy(record->span_id, &context->span_id, sizeof(record->span_id));
	record->trace_flags = context->trace_flags;
	__builtin_memset(record->padding, 0, sizeof(record->padding));
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

#endif
