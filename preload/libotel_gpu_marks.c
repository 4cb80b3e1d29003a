// SPDX-License-Identifier: Apache-2.0
/*
 * What a program reports of its own work: an empty function, at which an agent
 * has a probe that reads the argument. Without an agent, a call is all that it costs.
 *
 * The structure is in bpf/events.h: struct reported_step.
 */
#define EXPORTED __attribute__((visibility("default"), noinline))

/* First in it: kernels emulate it, so that a probe there costs one trap (otel_gpu/capture/probes/probe_sites.py). */
#define PROBE_SITE() __asm__ volatile("nop")

/* The compiler must not see that nothing is done with it. */
#define SEEN(value) __asm__ volatile("" : : "r"(value) : "memory")

/* A step of this thread has ended. */
EXPORTED void otel_gpu_step(const void *reported_step)
{
	PROBE_SITE();
	SEEN(reported_step);
}
