/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Chains of waits: what the last thread did while the others waited for each other.
 *
 * Each thread keeps what it last waited for, as links. When one that is watched wakes another
 * one, the other's wait is divided by the links of the waker: where the waker was blocked
 * itself, what it was blocked by is what the other one waited for as well, and so on through
 * any number of threads; where it was in no link, it was on a CPU. The parts become links of the
 * one that was woken.
 */
#ifndef OTEL_GPU_BPF_SCHED_WAIT_CHAINS_H
#define OTEL_GPU_BPF_SCHED_WAIT_CHAINS_H

#include "core/kernel_types.bpf.h"
#include "events.h"
#include "sched/time_accounting.bpf.h"

#define SLICE_GAP_NS 500000
#define LINK_GAP_NS  1000000	/* between waits that are one link, at most */
#define LINK_NS	     1000000000 /* of several waits, at most */
#define SHORT_NS     20000	/* waits are divided from here on */
#define PART_ONE_IN  64		/* of a wait: smaller parts go with another one */

static __always_inline struct wait_link *latest_link(struct thread *thread)
{
	return &thread->links[(thread->next_link - 1) % MAX_LINKS];
}

/* Make the latest link longer by another one of its kind, if that follows it closely. */
static __always_inline bool lengthen(struct wait_link *latest, __u32 end_tid, __u8 state,
				     __s32 system_call, __s32 kernel_stack, __u64 start_ktime_ns,
				     __u64 end_ktime_ns)
{
	if (latest->end_tid != end_tid || latest->state != state ||
	    latest->system_call != system_call || latest->kernel_stack != kernel_stack ||
	    !latest->start_ktime_ns || start_ktime_ns - latest->end_ktime_ns >= LINK_GAP_NS ||
	    end_ktime_ns - latest->start_ktime_ns >= LINK_NS)
		return false;
	latest->last_ktime_ns = start_ktime_ns;
	latest->runnable_ktime_ns = end_ktime_ns;
	latest->end_ktime_ns = end_ktime_ns;
	return true;
}

/* Add a link, or make the latest one longer. */
__weak __noinline int add_link(struct thread *thread, const struct wait_link *link)
{
	struct wait_link *latest, *slot;

	if (!thread || !link)
		return 0;
	latest = latest_link(thread);
	if (lengthen(latest, link->end_tid, link->state, link->system_call, link->kernel_stack,
		     link->start_ktime_ns, link->end_ktime_ns)) {
		latest->blocked_ns += link->blocked_ns;
		latest->run_queue_ns += link->run_queue_ns;
		return 0;
	}
	slot = &thread->links[thread->next_link % MAX_LINKS];
	if (slot->start_ktime_ns)
		thread->links_ktime_ns = slot->end_ktime_ns;
	*slot = *link;
	slot->last_ktime_ns = link->start_ktime_ns;
	slot->runnable_ktime_ns = link->end_ktime_ns;
	thread->next_link++;
	return 0;
}

/* How much of what is divided is between two other moments. */
static __always_inline __u64 overlap(const struct division *division, __u64 from_ktime_ns,
				     __u64 to_ktime_ns)
{
	if (from_ktime_ns < division->from_ktime_ns)
		from_ktime_ns = division->from_ktime_ns;
	if (to_ktime_ns > division->to_ktime_ns)
		to_ktime_ns = division->to_ktime_ns;
	return from_ktime_ns < to_ktime_ns ? to_ktime_ns - from_ktime_ns : 0;
}

/* How much of the time of a link of several waits is in a part of it. */
static __always_inline __u64 share_of(__u64 time_ns, __u64 overlap_ns, __u64 length_ns)
{
	/* The product does not overflow: see LINK_NS. */
	if (overlap_ns >= length_ns || length_ns > 2 * (__u64)LINK_NS)
		return time_ns;
	return time_ns * overlap_ns / length_ns;
}

/*
 * Book what is small as the part at hand, which contains what the last thread did. This function
 * and those below are global functions, so that the verifier follows their branches once, and not for each
 * part.
 */
__weak __noinline int book_part(struct division *division, struct times_key *key,
				struct thread *thread, const struct thread *waker)
{
	struct wait_link *part;
	__u64 time_ns, unbooked_ns;

	if (!division || !key || !thread || !waker)
		return 0;
	part = &thread->part;
	time_ns = division->small_ns;
	unbooked_ns = division->unbooked_ns < time_ns ? division->unbooked_ns : time_ns;
	key->end_pid = part->end_pid;
	key->end_tid = part->end_tid;
	key->end_kernel_stack = part->kernel_stack;
	key->end_system_call = part->system_call;
	key->end_state = part->state;
	key->end_flags = part->flags;
	book(key, waker->comm, unbooked_ns, time_ns, division->ended);
	division->unbooked_ns -= unbooked_ns;
	division->small_ns = 0;
	division->ended = 0;
	part->end_ktime_ns = part->start_ktime_ns + time_ns;
	part->blocked_ns = time_ns;
	add_link(thread, part);
	part->start_ktime_ns = part->end_ktime_ns;
	return 0;
}

static __always_inline void end_by(struct wait_link *link, __u32 pid, __u32 tid,
				   enum thread_state state)
{
	link->end_pid = pid;
	link->end_tid = tid;
	link->state = state;
	link->flags = 0;
	link->kernel_stack = -1;
	link->system_call = -1;
}

/* Follow one of the waker's links. Returns whether what is small is now a part. */
__weak __noinline int follow_link(struct division *division, struct thread *thread,
				  const struct thread *waker, __u32 number)
{
	__u64 length_ns, overlap_ns, blocked_ns, waited_ns;
	const struct wait_link *link;
	struct wait_link *part;

	if (!division || !thread || !waker)
		return 0;
	link = &waker->links[number % MAX_LINKS];
	length_ns = link->end_ktime_ns - link->start_ktime_ns;
	overlap_ns = overlap(division, link->start_ktime_ns, link->end_ktime_ns);
	if (!link->start_ktime_ns || !overlap_ns)
		return 0;
	if (division->from_ktime_ns >= link->last_ktime_ns) {
		blocked_ns = overlap(division, link->last_ktime_ns, link->runnable_ktime_ns);
		waited_ns = overlap_ns - blocked_ns;
	} else {
		blocked_ns = share_of(link->blocked_ns, overlap_ns, length_ns);
		waited_ns = share_of(link->run_queue_ns, overlap_ns, length_ns);
	}
	if (blocked_ns > division->left_ns)
		blocked_ns = division->left_ns;
	division->left_ns -= blocked_ns;
	if (waited_ns > division->left_ns)
		waited_ns = division->left_ns;
	division->left_ns -= waited_ns;
	division->run_queue_ns += waited_ns;
	division->small_ns += blocked_ns;
	if (!blocked_ns || division->small_ns < division->floor_ns)
		return 0;
	part = &thread->part;
	part->end_pid = link->end_pid;
	part->end_tid = link->end_tid;
	part->kernel_stack = link->kernel_stack;
	part->system_call = link->system_call;
	part->state = link->state;
	part->flags = link->flags;
	return 1;
}

/* Divide a wait that another watched thread ended. The thread runs here: no other CPU does this. */
__weak __noinline int divide_wait(struct thread *thread, const struct thread *waker,
				  __u64 runnable_ktime_ns, __u64 unbooked_ns)
{
	struct division *division;
	struct wait_link *part;
	struct times_key key;
	struct wait_link *slices;
	__u64 start_ktime_ns, slices_run_queue_ns = 0;

	if (!thread || !waker)
		return 0;
	division = &thread->division;
	__builtin_memset(division, 0, sizeof(*division));
	division->unbooked_ns = unbooked_ns;
	division->ended = 1;
	key = key_of_wait(thread);
	key.who_pid = waker->pid;
	key.who_tid = waker->tid;
	part = &thread->part;
	start_ktime_ns = thread->off_ktime_ns;
	/* One that is not woken now may be off a CPU already for something else. */
	if (start_ktime_ns && runnable_ktime_ns > start_ktime_ns)
		division->left_ns = runnable_ktime_ns - start_ktime_ns;
	if (thread->slices_ns) {
		start_ktime_ns = thread->slices_start_ktime_ns;
		division->left_ns += thread->slices_ns;
		thread->slices_ns = 0;
		/* The links of this wait take the place of the one of its slices. */
		thread->next_link--;
		slices = &thread->links[thread->next_link % MAX_LINKS];
		slices_run_queue_ns = slices->run_queue_ns;
		slices->start_ktime_ns = 0;
	}
	division->floor_ns = division->left_ns / PART_ONE_IN;
	part->start_ktime_ns = start_ktime_ns;
	part->run_queue_ns = 0;
	division->from_ktime_ns = start_ktime_ns;
	division->to_ktime_ns = runnable_ktime_ns;
	if (division->left_ns >= SHORT_NS) {
		__u64 since_ktime_ns = waker->links_ktime_ns;

		if (since_ktime_ns > runnable_ktime_ns)
			since_ktime_ns = runnable_ktime_ns;
		if (since_ktime_ns > start_ktime_ns) {
			division->small_ns = since_ktime_ns - start_ktime_ns;
			/* Between slices it was not blocked. */
			if (division->small_ns > division->left_ns)
				division->small_ns = division->left_ns;
			division->left_ns -= division->small_ns;
			if (division->small_ns >= division->floor_ns) {
				end_by(part, 0, 0, STATE_NONE);
				book_part(division, &key, thread, waker);
			}
		}
		for (__u32 i = 0; i < MAX_LINKS; i++) {
			if (follow_link(division, thread, waker, waker->next_link + i))
				book_part(division, &key, thread, waker);
		}
		division->small_ns += division->run_queue_ns;
		if (division->small_ns && division->small_ns >= division->floor_ns) {
			end_by(part, waker->pid, waker->tid, STATE_RUN_QUEUE);
			book_part(division, &key, thread, waker);
		}
	}
	if (division->ended) { /* no part yet */
		division->left_ns += division->small_ns;
		division->small_ns = 0;
	} else if (division->left_ns < division->floor_ns) {
		division->small_ns += division->left_ns;
		division->left_ns = 0;
	}
	if (division->small_ns)
		book_part(division, &key, thread, waker);
	if (division->left_ns) {
		end_by(part, waker->pid, waker->tid, STATE_ON_CPU);
		division->small_ns = division->left_ns;
		book_part(division, &key, thread, waker);
	}
	latest_link(thread)->run_queue_ns += slices_run_queue_ns;
	return 0;
}

#endif
