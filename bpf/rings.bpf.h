/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Shares of the rings. While three quarters of a ring are not full, every program can put records into
 * it. What is left then is for all programs, at a rate of each, and at twice that of each user.
 */
#ifndef OTEL_GPU_RINGS_BPF_H
#define OTEL_GPU_RINGS_BPF_H

#define RATE_INTERVAL_NS 1000000000ULL
#define RATE_BYTES	 8192 /* of a ring, for each record of a program in that time */

/* Whether a program may put a record into a ring now. A global function, so that the verifier follows it once. */
__weak __noinline int may_record(__u32 pid, __u32 kind)
{
	__u32 ring = kind == SHARE_EVENTS,
	      bound_bytes = settings.share_bounds[SHARE_LIFECYCLE + ring];
	__u64 pending_bytes, now_ktime_ns, interval_ns;
	struct process *process;
	struct shares *user;

	if (ring)
		pending_bytes = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
	else
		pending_bytes = bpf_ringbuf_query(&lifecycle, BPF_RB_AVAIL_DATA);
	if (pending_bytes < bound_bytes / 4 * 3)
		return true;
	process = find_process(pid);
	if (!process)
		return true;
	now_ktime_ns = bpf_ktime_get_ns();
	interval_ns = RATE_INTERVAL_NS * RATE_BYTES / (bound_bytes | 1);
	user = shares_of(&process->uid);
	if (admit_to(&process->shares.record_arrival_ktime_ns[ring], now_ktime_ns, interval_ns,
		     RATE_INTERVAL_NS) &&
	    (!user || admit_to(&user->record_arrival_ktime_ns[ring], now_ktime_ns, interval_ns / 2,
			       RATE_INTERVAL_NS)))
		return true;
	__sync_fetch_and_add(&process->shares.refused[SHARE_LIFECYCLE + ring], 1);
	return false;
}

/* Room for a record of a program; NULL: there is none for it. */
#define RESERVE_EVENT(pid, record)                                                                 \
	(may_record(pid, SHARE_EVENTS) ? bpf_ringbuf_reserve(&events, sizeof(*(record)), 0) : NULL)
#define RESERVE_LIFECYCLE(pid, record)                                                             \
	(may_record(pid, SHARE_LIFECYCLE) ? bpf_ringbuf_reserve(&lifecycle, sizeof(*(record)), 0)  \
					  : NULL)

#endif
