// SPDX-License-Identifier: Apache-2.0
/*
 * What a program says of its own work, to whoever watches it: empty functions, at which an agent
 * has a probe that reads the argument. Where nobody watches, a call is all that they cost.
 *
 * The structures are in bpf/events.h, as struct told_step.
 */
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default"), noinline))

/* First in each: kernels emulate it, so that a probe there costs one trap (otel_gpu/capture/probe_sites.py). */
#define PROBE_SITE() __asm__ volatile("nop")

/* The compiler must not see that nothing is done with it. */
#define SEEN(value) __asm__ volatile("" : : "r"(value) : "memory")

/* A step of this thread has ended. */
EXPORTED void otel_gpu_step(const void *told_step)
{
	PROBE_SITE();
	SEEN(told_step);
}

/*
 * Something is to be known of a process: KEY=VALUE, with a NUL behind each. 0 in place of its pid
 * is the process that ran this one, UINT32_MAX this one.
 */
EXPORTED void otel_gpu_annotate(uint32_t pid, const char *text, size_t size_bytes)
{
	PROBE_SITE();
	SEEN((size_t)pid);
	SEEN(text);
	SEEN(size_bytes);
}
