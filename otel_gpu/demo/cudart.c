/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA runtime, so that the demos need no GPU: the calls that the
 * scenarios make, each with its real signature, each doing only what the program asks of
 * it with stub_call_inside(). For probes it is a CUDA library like any other.
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Each call must stay one function at one address. */
#define EXPORT	      __attribute__((visibility("default"), noinline, noclone))
#define FIRST_ADDRESS 0x7e0000000000ull

typedef void (*stub_function)(void *argument);
typedef struct {
	unsigned int x, y, z;
} dim3;

struct behaviour {
	const char *api;
	stub_function function;
	void *argument;
};

enum {
	MALLOC,
	FREE,
	LAUNCH,
	STREAM_SYNCHRONIZE
};

static struct behaviour behaviours[] = {
	[MALLOC] = {.api = "cudaMalloc"},
	[FREE] = {.api = "cudaFree"},
	[LAUNCH] = {.api = "cudaLaunchKernel"},
	[STREAM_SYNCHRONIZE] = {.api = "cudaStreamSynchronize"},
};

static int act(int which)
{
	struct behaviour *behaviour = &behaviours[which];

	if (behaviour->function)
		behaviour->function(behaviour->argument);
	return 0;
}

/* Have a call run a function of the program inside; the number of calls with the name. */
EXPORT int stub_call_inside(const char *api, stub_function function, void *argument)
{
	int found = 0;

	for (size_t i = 0; i < sizeof(behaviours) / sizeof(*behaviours); i++)
		if (!strcmp(behaviours[i].api, api)) {
			behaviours[i].argument = argument;
			behaviours[i].function = function;
			found++;
		}
	return found;
}

EXPORT int cudaMalloc(void **address, size_t size_bytes)
{
	static _Atomic uint64_t used_bytes;

	*address = (void *)(FIRST_ADDRESS + atomic_fetch_add(&used_bytes, (size_bytes | 511) + 1));
	return act(MALLOC);
}

EXPORT int cudaFree(void *address)
{
	return act(FREE);
}

EXPORT int cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **parameters,
			    size_t shared_bytes, void *stream)
{
	return act(LAUNCH);
}

EXPORT int cudaStreamSynchronize(void *stream)
{
	return act(STREAM_SYNCHRONIZE);
}
