/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a thread was interrupted between two of its steps.
 *
 * The clock is read a moment before it is published that a call begins or ends. Where the thread
 * leaves the CPU in between, the kernel side takes that time for the one side of the edge, and the
 * clock for the other. So it has to be noticed, and the clock to be read again.
 *
 * The kernel reports it for the price of a write and a read. glibc, from 2.35 on, registers an area of
 * each thread for restartable sequences, rseq(2). Before a thread goes on that was preempted, or had
 * a signal, the kernel reads the sequence which that area names, and clears the name if the
 * thread is not in it. What is named here is a sequence that no thread is ever in. Without such an
 * area, nothing is noticed.
 */
#ifndef OTEL_GPU_PRELOAD_INTERRUPTIONS_H
#define OTEL_GPU_PRELOAD_INTERRUPTIONS_H

#include <stdbool.h>

#include "compiler.h"
#include "layout.h"
#include "state.h"

#define MAX_INTERRUPTIONS 8 /* in turn, before it is taken as it is */

/* As in linux/rseq.h. */
struct sequence {
	__u32 version;
	__u32 flags;
	__u64 start;
	__u64 size;
	__u64 abort; /* behind the signature that the area was registered with */
} __attribute__((aligned(32)));

extern HIDDEN const struct sequence preload_nobodys_sequence;

/* Of the process: before its first thread asks. */
HIDDEN void preload_find_sequence_names(void);
/* Where this thread names its sequence. */
HIDDEN volatile __u64 *preload_sequence_name(void);

static inline void watch_interruptions(void)
{
	*preload_self.sequence_name = (__u64)&preload_nobodys_sequence;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline bool was_interrupted(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	return *preload_self.sequence_name != (__u64)&preload_nobodys_sequence;
}

#endif
