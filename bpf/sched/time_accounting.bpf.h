/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The time account: every nanosecond of a watched thread belongs to a state (on a CPU, in a
 * run queue, blocked) and a context (inside a call, in a gap between two).
 *
 * Time is booked while it passes: by the thread when its state changes, and for all threads
 * when the account is read. Each of them takes what passed since then by moving
 * "booked" on, so that nothing is booked twice, and the states of a thread sum to the time that
 * it exists. The same word contains whether the thread is off a CPU, so that no time is booked
 * as another state. A program that comes after one that booked until a later time goes on from
 * that time.
 *
 * On-CPU time is collected in the thread, and booked when the account is read (without BTF,
 * when the thread leaves the CPU): calls can follow each other a million times a second. So are
 * waits that are of the same kind as the last ones.
 */
#ifndef OTEL_GPU_BPF_SCHED_TIME_ACCOUNTING_H
#define OTEL_GPU_BPF_SCHED_TIME_ACCOUNTING_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/shares.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/contexts.bpf.h"

#define OFF_CPU (1ULL << 63) /* no clock gets there */
#define KEY_FLAGS                                                                                  \
	(STALL_GIL | STALL_FAULT | STALL_STOPPED | STALL_FROZEN) /* that distinguish waits */
#define KEPT_MISSES 2 /* in turn, and another kind of wait is kept */

enum {
	KEPT_BLOCKED,
	KEPT_RUN_QUEUE,
};

/* Where time on a CPU belongs: to the outermost open call, whatever is open in it. */
static __always_inline __u32 cpu_place_of(const struct thread *thread)
{
	enum call_context context = CONTEXT_CALL;

	if (!thread->depth)
		context = context_between(thread->last_return_ktime_ns);
	else if (waits_for_device(thread->calls[0].api))
		context = CONTEXT_SYNCHRONIZE;
	return context << 16 | api_of(thread);
}

/*
 * Whether the program of a key may begin an entry. Where another CPU begins the same, it is charged
 * twice: the BPF stack is too full to check that.
 */
static __always_inline bool takes_share(const struct times_key *key, enum share_kind kind)
{
	return take_share(bpf_map_lookup_elem(&processes, &key->pid), kind);
}

/* Begin an entry. BPF_NOEXIST: another CPU can have begun it, with the same content. */
static __noinline struct times *add_entry(const struct times_key *key, const char *who_comm)
{
	static const struct times nothing = {};
	struct times *times;
	struct thread *end;

	bpf_map_update_elem(&thread_times, key, &nothing, BPF_NOEXIST);
	times = bpf_map_lookup_elem(&thread_times, key);
	if (!times)
		return NULL;
	if (key->who_pid)
		__builtin_memcpy(times->who_comm, who_comm, COMM_BYTES);
	end = key->end_tid ? find_thread(key->end_tid) : NULL;
	if (end)
		__builtin_memcpy(times->end_comm, end->comm, COMM_BYTES);
	return times;
}

/* The entry of what is left of a key without its details, which is perhaps begun. */
static __noinline struct times *find_folded(const struct times_key *key, bool may_begin)
{
	static const struct times nothing = {};
	struct times_key folded = {
		.program_ktime_ns = key->program_ktime_ns,
		.pid = key->pid,
		.kernel_stack = -1,
		.system_call = key->system_call,
		.state = key->state,
		.context = key->context,
		.flags = key->flags,
		.end_state = STATE_NONE,
		.end_kernel_stack = -1,
		.end_system_call = -1,
		.is_folded = 1,
	};
	struct times *times = bpf_map_lookup_elem(&folded_times, &folded);

	if (!times && may_begin) {
		bpf_map_update_elem(&folded_times, &folded, &nothing, BPF_NOEXIST);
		times = bpf_map_lookup_elem(&folded_times, &folded);
	}
	return times;
}

static __always_inline int add_times(struct times *times, const struct times_key *key,
				     __u64 time_ns, __u64 ended_ns, __u64 ended)
{
	if (!times) {
		times = find_folded(key, false);
		if (!times && takes_share(key, SHARE_FOLDED_TIMES))
			times = find_folded(key, true);
		count(times ? COUNTER_TIMES_FOLDED : COUNTER_LOST_TIMES_FULL);
	}
	if (!times)
		return 0;
	if (time_ns)
		__sync_fetch_and_add(&times->time_ns, time_ns);
	if (ended_ns)
		__sync_fetch_and_add(&times->ended_ns, ended_ns);
	if (ended)
		__sync_fetch_and_add(&times->count, ended);
	return 0;
}

/* A name as an argument: a global function has to know its size. */
struct name {
	char text[COMM_BYTES];
};

/* A global function, as many places book, so that the verifier follows it once. */
__weak __noinline int book_as(const struct times_key *key, const struct name *who, __u64 time_ns,
			      __u64 ended_ns, __u64 ended)
{
	struct times *times;

	if (!key || !who)
		return 0;
	times = bpf_map_lookup_elem(&thread_times, key);
	if (!times && takes_share(key, SHARE_TIMES))
		times = add_entry(key, who->text);
	return add_times(times, key, time_ns, ended_ns, ended);
}

static __always_inline int book(const struct times_key *key, const char *who_comm, __u64 time_ns,
				__u64 ended_ns, __u64 ended)
{
	return book_as(key, (const struct name *)who_comm, time_ns, ended_ns, ended);
}

/* Take what of a sum is in no account yet. Another CPU may do the same. */
static __always_inline __u64 take(__u64 sum, __u64 *booked)
{
	__u64 before = *(volatile __u64 *)booked;

	if (sum <= before || __sync_val_compare_and_swap(booked, before, sum) != before)
		return 0;
	return sum - before;
}

/* Book waits that a thread kept, of another CPU perhaps. */
__weak __noinline int book_kept(struct kept_waits *kept)
{
	struct times_key key;
	__u64 time_ns, count;
	__u32 changes;

	if (!kept)
		return 0;
	/* Atomic, since this also keeps the order of what is read. */
	changes = __sync_fetch_and_add(&kept->changes, 0);
	key = kept->key;
	time_ns = *(volatile __u64 *)&kept->time_ns;
	count = *(volatile __u64 *)&kept->count;
	/* Who changes the key books first what was kept under the old one. */
	if (changes & 1 || __sync_fetch_and_add(&kept->changes, 0) != changes)
		return 0;
	time_ns = take(time_ns, &kept->booked_ns);
	count = take(count, &kept->booked_count);
	if (time_ns || count)
		add_times(bpf_map_lookup_elem(&thread_times, &key), &key, time_ns, time_ns, count);
	return 0;
}

static __always_inline bool is_of_kind(const struct kept_waits *kept, const struct times_key *key)
{
	const __u64 *words = (const __u64 *)key, *kind = (const __u64 *)&kept->key;
	__u64 differences = 0;

	for (__u32 i = 0; i < sizeof(*key) / sizeof(*words); i++)
		differences |= words[i] ^ kind[i];
	return !differences;
}

/*
 * Book a wait that ended, or keep it if it is of the kind that is kept. No other CPU adds to what
 * is kept, so that takes no atomic operations.
 */
static __always_inline int book_wait(struct kept_waits *kept, const struct times_key *key,
				     const char *who_comm, __u64 unbooked_ns, __u64 ended_ns)
{
#if !defined(OTEL_GPU_NO_BTF)
	if (is_of_kind(kept, key) && unbooked_ns == ended_ns) {
		kept->time_ns += ended_ns;
		kept->count++;
		kept->misses = 0;
		return 0;
	}
	if (++kept->misses > KEPT_MISSES) {
		book_kept(kept);
		__sync_fetch_and_add(&kept->changes, 1);
		kept->key = *key;
		__sync_fetch_and_add(&kept->changes, 1);
		kept->misses = 0;
	}
#endif
	return book(key, who_comm, unbooked_ns, ended_ns, 1);
}

/* A key of a thread, without any detail. */
static __always_inline struct times_key key_of(const struct thread *thread, enum thread_state state)
{
	struct times_key key = {
		.program_ktime_ns = thread->program_ktime_ns,
		.pid = thread->pid,
		.kernel_stack = -1,
		.system_call = -1,
		.end_kernel_stack = -1,
		.end_system_call = -1,
		.state = state,
		.end_state = STATE_NONE,
	};

	return key;
}

/* A key of a wait, without the thread that ended it yet. */
static __always_inline struct times_key key_of_wait(const struct thread *thread)
{
	struct times_key key = key_of(thread, STATE_BLOCKED);

	key.kernel_stack = thread->kernel_stack;
	key.system_call = thread->system_call;
	key.resource = thread->shared_resource;
	key.flags = thread->stall_flags & (KEY_FLAGS | STALL_AGENT);
	key.context = context_of(thread);
	key.api = api_of(thread);
	return key;
}

/*
 * Take the time until now that is in no account yet, of a thread that is on a CPU from now on, or
 * off it. Returns since when it is; now itself is moved on where that is later: another one has
 * booked until then.
 */
static __always_inline __u64 claim(struct thread *thread, __u64 *now_ktime_ns, __u64 off_cpu)
{
	for (int i = 0; i < ATOMIC_TRIES; i++) {
		__u64 seen = *(volatile __u64 *)&thread->booked, from_ktime_ns = seen & ~OFF_CPU;

		if (!seen) { /* not seen before */
			thread->links_ktime_ns = *now_ktime_ns;
			from_ktime_ns = *now_ktime_ns;
		}
		if (from_ktime_ns > *now_ktime_ns)
			*now_ktime_ns = from_ktime_ns;
		if (__sync_val_compare_and_swap(&thread->booked, seen, *now_ktime_ns | off_cpu) ==
		    seen)
			return from_ktime_ns;
	}
	return *now_ktime_ns;
}

static __noinline int book_on_cpu(const struct thread *thread, __u32 place, __u64 time_ns,
				  __u64 ended)
{
	struct times_key key = key_of(thread, STATE_ON_CPU);

	key.context = place >> 16;
	key.api = place;
	return book(&key, thread->comm, time_ns, time_ns, ended);
}

/* Book what a thread collected in a place. Another CPU may do the same. */
static __always_inline void book_cpu_time(const struct thread *thread, struct cpu_time *cpu_time)
{
	__u64 time_ns = take(*(volatile __u64 *)&cpu_time->time_ns, &cpu_time->booked_ns);

	if (time_ns)
		book_on_cpu(thread, cpu_time->place, time_ns, 1);
}

static __always_inline void add_on_cpu(struct thread *thread, __u32 place, __u64 time_ns)
{
	struct cpu_time *cpu_time = &thread->on_cpu[(place ^ place >> 16) % MAX_PLACES];

	if (cpu_time->place != place) {
		book_cpu_time(thread, cpu_time);
		cpu_time->place = place;
	}
	cpu_time->time_ns += time_ns;
}

static __noinline int book_cpu_times(struct thread *thread)
{
	for (int i = 0; i < MAX_PLACES; i++)
		book_cpu_time(thread, &thread->on_cpu[i]);
	return 0;
}

/* Book all that a thread collected. */
static __always_inline void book_collected(struct thread *thread)
{
	book_cpu_times(thread);
	for (int i = 0; i < MAX_KEPT; i++)
		book_kept(&thread->kept[i]);
}

/*
 * A thread that is on a CPU goes on elsewhere there, or leaves it. Returns when. A global function, so
 * that the verifier follows it once.
 */
__weak __noinline __u64 pass_on_cpu(struct thread *thread, __u64 now_ktime_ns, __u64 off_cpu)
{
	__u64 from_ktime_ns;

	if (!thread)
		return now_ktime_ns;
	from_ktime_ns = claim(thread, &now_ktime_ns, off_cpu);
	if (from_ktime_ns < now_ktime_ns)
		add_on_cpu(thread, cpu_place_of(thread), now_ktime_ns - from_ktime_ns);
	return now_ktime_ns;
}

/*
 * The same where each nanosecond counts. Mostly a thread was in that place before, and no reader books
 * at the same time: that takes no call of a function.
 */
static __always_inline __u64 pass_on_cpu_fast(struct thread *thread, __u64 now_ktime_ns,
					      __u64 off_cpu)
{
	__u64 from_ktime_ns = *(volatile __u64 *)&thread->booked;
	__u32 place = cpu_place_of(thread);
	struct cpu_time *cpu_time = &thread->on_cpu[(place ^ place >> 16) % MAX_PLACES];

	/* Neither its first look, nor off a CPU: such times are later than any clock. */
	if (from_ktime_ns - 1 >= now_ktime_ns || cpu_time->place != place ||
	    __sync_val_compare_and_swap(&thread->booked, from_ktime_ns, now_ktime_ns | off_cpu) !=
		    from_ktime_ns)
		return pass_on_cpu(thread, now_ktime_ns, off_cpu);
	cpu_time->time_ns += now_ktime_ns - from_ktime_ns;
	return now_ktime_ns;
}

#endif
