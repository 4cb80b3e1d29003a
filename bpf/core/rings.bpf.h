/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares of the rings. While three quarters of a ring are not full, every program can put records into
 * it. What is left then is for all programs, at a rate of each, and at twice that of each user.
 */
#ifndef OTEL_GPU_BPF_CORE_RINGS_H
#define OTEL_GPU_BPF_CORE_RINGS_H

#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/shares.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define RATE_INTERVAL_NS 1000000000ULL
#define RATE_BYTES	 8192 /* of a ring, for each record of a program in that time */

/*
 * Whether a program has not used up its rate of a ring that is nearly full. Global functions, which the
 * verifier follows once; and two, as it would follow the rest of one for each ring.
 */
__weak __noinline int has_rate(__u32 pid, __u32 ring)
{
	struct process *process = find_process(pid);
	__u64 now_ktime_ns, interval_ns;
	struct shares *user;
	__u32 bound_bytes;

	ring &= 1;
	bound_bytes = settings.share_bounds[SHARE_LIFECYCLE + ring];
	if (!process)
		return true;
	now_ktime_ns = bpf_ktime_get_ns();
	interval_ns = RATE_INTERVAL_NS * RATE_BYTES / (bound_bytes | 1);
	user = bpf_map_lookup_elem(&user_shares, &process->uid);
	if (admit_to(&process->shares.record_arrival_ktime_ns[ring], now_ktime_ns, interval_ns,
		     RATE_INTERVAL_NS) &&
	    (!user || admit_to(&user->record_arrival_ktime_ns[ring], now_ktime_ns, interval_ns / 2,
			       RATE_INTERVAL_NS)))
		return true;
	__sync_fetch_and_add(&process->shares.refused[SHARE_LIFECYCLE + ring], 1);
	return false;
}

/* Whether a program may put a record into the ring now. */
__weak __noinline int may_record_event(__u32 pid)
{
	__u64 pending_bytes = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);

	return pending_bytes < settings.share_bounds[SHARE_EVENTS] / 4 * 3 || has_rate(pid, 1);
}

__weak __noinline int may_record_lifecycle(__u32 pid)
{
	__u64 pending_bytes = bpf_ringbuf_query(&lifecycle, BPF_RB_AVAIL_DATA);

	return pending_bytes < settings.share_bounds[SHARE_LIFECYCLE] / 4 * 3 || has_rate(pid, 0);
}

/* Space for a record of a program; NULL: the ring is full, or the program has its share. */
#define RESERVE_EVENT(pid, record)                                                                 \
	(may_record_event(pid) ? bpf_ringbuf_reserve(&events, sizeof(*(record)), 0) : NULL)
#define RESERVE_LIFECYCLE(pid, record)                                                             \
	(may_record_lifecycle(pid) ? bpf_ringbuf_reserve(&lifecycle, sizeof(*(record)), 0) : NULL)

#endif
