/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * When a program learns that collectives are done: it records an event behind them on their stream
 * and asks for that, or waits for the stream. Nothing is added to a program that has no collectives
 * but one comparison, in calls about streams and events.
 *
 * What a stream or event stands for is up to which collective each communicator is done when it is.
 * What other threads queue while a call waits is not part of what it waits for.
 */
#ifndef OTEL_GPU_BPF_NCCL_COMPLETIONS_H
#define OTEL_GPU_BPF_NCCL_COMPLETIONS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/tasks.bpf.h"
#include "cuda/stream_captures.bpf.h"
#include "events.h"
#include "nccl/communicators.bpf.h"

/* Both LRU: what is forgotten is known to be done a little later, by another call. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct stream_key);
	__type(value, struct stream_works);
} stream_works __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct stream_key);
	__type(value, struct stream_works);
} event_works __weak SEC(".maps");

static const struct stream_works no_works = {};

/*
 * In the place of what there was of that communicator, or of what is there longest. A global function,
 * so that the verifier walks its loop once.
 */
__weak __noinline int put_work(struct stream_works *works, const struct collective_work *work)
{
	struct collective_work *place = NULL;
	__u64 oldest_ktime_ns = ~0ull;

	if (!works || !work)
		return 0;
	for (int i = 0; i < MAX_STREAM_WORK; i++) {
		struct collective_work *one = &works->works[i];

		if (one->handle == work->handle && one->generation == work->generation) {
			if (one->number < work->number)
				*one = *work;
			return 0;
		}
		if (!one->handle) {
			oldest_ktime_ns = 0;
			place = one;
		} else if (one->ktime_ns < oldest_ktime_ns) {
			oldest_ktime_ns = one->ktime_ns;
			place = one;
		}
	}
	if (place)
		*place = *work;
	return 0;
}

__attribute__((unused)) static __noinline int
queue_work(const struct thread *thread, __u64 stream, const struct communicator_key *communicator,
	   __u64 number, __u64 now_ktime_ns)
{
	struct stream_key key = stream_key_of(thread, stream);
	struct stream_works *works = bpf_map_lookup_elem(&stream_works, &key);
	struct collective_work work = {
		.handle = communicator->handle,
		.number = number,
		.ktime_ns = now_ktime_ns,
		.generation = communicator->generation,
	};

	if (!works) {
		bpf_map_update_elem(&stream_works, &key, &no_works, BPF_ANY);
		works = bpf_map_lookup_elem(&stream_works, &key);
	}
	if (works)
		put_work(works, &work);
	return 0;
}

/* Whether the process has communicators; looked up when some process has got its first one. */
static __always_inline bool has_collectives(struct thread *thread)
{
	__u32 zero = 0, *epoch = bpf_map_lookup_elem(&collectives_epoch, &zero);
	struct process *process;

	if (!epoch || !*epoch)
		return false;
	if (thread->collectives_epoch != *epoch) {
		thread->collectives_epoch = *epoch;
		process = find_process(thread->pid);
		thread->has_communicators = process && process->flags & PROCESS_HAS_COMMUNICATORS;
	}
	return thread->has_communicators;
}

/* The program has learned that the collectives of a communicator are done up to a number. */
__weak __noinline int complete_collectives(__u32 tid, __u64 handle, __u32 generation, __u64 number,
					   __u64 now_ktime_ns)
{
	struct thread *thread = find_thread(tid);
	struct communicator_key key = {.handle = handle, .generation = generation};
	struct kept_communicator *kept;
	struct communicator *communicator;
	__u64 before = 0, waited_ns = 0, completions = 0;
	bool is_news = false;

	if (!thread)
		return 0;
	key.program_ktime_ns = thread->program_ktime_ns;
	key.pid = thread->pid;
	kept = bpf_map_lookup_elem(&communicators, &key);
	if (!kept)
		return 0;
	communicator = &kept->communicator;
	/* Several threads may ask at once. */
	for (int i = 0; i < ATOMIC_TRIES && !is_news; i++) {
		before = *(volatile __u64 *)&communicator->completed;
		if (number <= before)
			return 0;
		is_news = __sync_val_compare_and_swap(&communicator->completed, before, number) ==
			  before;
	}
	if (!is_news)
		return 0;
	communicator->completed_ktime_ns = now_ktime_ns;
	for (__u32 i = 0; i < RECENT_COLLECTIVES; i++) {
		__u64 one = number - i;
		struct collective *recent = &communicator->recent[one % RECENT_COLLECTIVES];

		if (one <= before)
			break;
		if (recent->number != one || recent->called_ktime_ns > now_ktime_ns)
			continue;
		waited_ns += now_ktime_ns - recent->called_ktime_ns;
		completions++;
	}
	__sync_fetch_and_add(&communicator->waited_ns, waited_ns);
	__sync_fetch_and_add(&communicator->completions, completions);
	return 0;
}

/*
 * All that a stream or event stood for, when the call began, is done now. It stays in the map, as
 * most are used again, and to take a new entry costs more than all else here.
 */
static __always_inline void complete_works(__u32 tid, struct stream_works *works,
					   __u64 start_ktime_ns, __u64 now_ktime_ns)
{
	for (int i = 0; i < MAX_STREAM_WORK; i++) {
		struct collective_work *work = &works->works[i];
		__u64 handle = work->handle;

		if (!handle || work->ktime_ns > start_ktime_ns)
			continue;
		work->handle = 0;
		complete_collectives(tid, handle, work->generation, work->number, now_ktime_ns);
	}
}

static __always_inline void record_event(const struct thread *thread, const struct open_call *call)
{
	struct stream_key event = stream_key_of(thread, call->function);
	struct stream_key stream = stream_key_of(thread, call->stream);
	struct capture *capture = find_capture(thread, call->stream);
	struct stream_works *works = bpf_map_lookup_elem(&stream_works, &stream);
	struct stream_works *known = bpf_map_lookup_elem(&event_works, &event);

	if (!known && (capture || works)) {
		bpf_map_update_elem(&event_works, &event, &no_works, BPF_ANY);
		known = bpf_map_lookup_elem(&event_works, &event);
	}
	if (!known)
		return;
	__builtin_memset(known, 0, sizeof(*known));
	if (capture)
		known->capture = *capture;
	else if (works)
		__builtin_memcpy(known->works, works->works, sizeof(known->works));
}

static __always_inline void await_event(const struct thread *thread, const struct open_call *call)
{
	struct stream_key event = stream_key_of(thread, call->function);
	struct stream_key stream = stream_key_of(thread, call->stream);
	struct stream_works *works = bpf_map_lookup_elem(&event_works, &event), *own;

	if (!works)
		return;
	if (works->capture.origin) {
		stream.stream = works->capture.origin;
		if (!bpf_map_lookup_elem(&captures, &stream))
			return;
		stream.stream = call->stream;
		if (works->capture.origin != call->stream && call->stream)
			bpf_map_update_elem(&captures, &stream, &works->capture, BPF_ANY);
		return;
	}
	own = bpf_map_lookup_elem(&stream_works, &stream);
	if (!own) {
		bpf_map_update_elem(&stream_works, &stream, works, BPF_ANY);
		return;
	}
	for (int i = 0; i < MAX_STREAM_WORK; i++) {
		if (works->works[i].handle)
			put_work(own, &works->works[i]);
	}
}

/* All that the process had queued on the device when the call began. */
static __always_inline void complete_device(const struct thread *thread,
					    const struct open_call *call, __u64 now_ktime_ns)
{
	struct stream_key process = stream_key_of(thread, 0);
	struct communicator_list *list = bpf_map_lookup_elem(&process_communicators, &process);

	if (!list)
		return;
	for (int i = 0; i < MAX_DEVICE_COMMUNICATORS; i++) {
		struct communicator_key *key = &list->keys[i];
		struct kept_communicator *kept;
		__u64 called;

		if (!key->handle)
			continue;
		kept = bpf_map_lookup_elem(&communicators, key);
		if (!kept || kept->communicator.device != call->device)
			continue;
		called = kept->communicator.called;
		if (kept->communicator.recent[called % RECENT_COLLECTIVES].called_ktime_ns <=
		    call->start_ktime_ns)
			complete_collectives(thread->tid, key->handle, key->generation, called,
					     now_ktime_ns);
	}
}

/* At the return of the innermost open call of a thread, which succeeded. */
__weak __noinline int after_stream_call(__u32 tid, __u64 now_ktime_ns)
{
	struct thread *thread = find_thread(tid);
	struct stream_works *works;
	struct stream_key key;
	struct open_call *call;

	if (!thread || !thread->depth)
		return 0;
	call = &thread->calls[(thread->depth - 1) % MAX_DEPTH];
	switch (settings.apis[call->api < MAX_APIS ? call->api : 0].stream_work) {
	case WORK_RECORDED:
		record_event(thread, call);
		break;
	case WORK_AWAITED:
		await_event(thread, call);
		break;
	case WORK_EVENT_OVER:
		key = stream_key_of(thread, call->function);
		works = bpf_map_lookup_elem(&event_works, &key);
		if (works)
			complete_works(tid, works, call->start_ktime_ns, now_ktime_ns);
		break;
	case WORK_STREAM_OVER:
		key = stream_key_of(thread, call->stream);
		works = bpf_map_lookup_elem(&stream_works, &key);
		if (works)
			complete_works(tid, works, call->start_ktime_ns, now_ktime_ns);
		break;
	case WORK_DEVICE_OVER:
		complete_device(thread, call, now_ktime_ns);
		break;
	case WORK_EVENT_GONE:
		key = stream_key_of(thread, call->function);
		bpf_map_delete_elem(&event_works, &key);
		break;
	case WORK_STREAM_GONE:
		key = stream_key_of(thread, call->stream);
		bpf_map_delete_elem(&stream_works, &key);
		break;
	}
	return 0;
}

#endif
