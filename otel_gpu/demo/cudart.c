/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA runtime, so that the demos need no GPU: the calls that the
 * scenarios make, each with its real signature, each doing only what the program asks of
 * it with stub_call_inside(). For probes it is a CUDA library like any other.
 */
#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Each call must stay one function at one address. */
#define EXPORT	      __attribute__((visibility("default"), noinline, noclone))
#define FIRST_ADDRESS 0x500000000000ull
#define ADDRESS_BYTES (1ull << 42) /* of a device */
#define MAX_DEVICES   8
#define OUT_OF_MEMORY 2
#define NO_ADDRESS    17
#define NO_DEVICE     101

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

struct memory {
	uint64_t address, size_bytes;
	int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *memory_in_use; /* a tree by address */
static uint64_t next_address[MAX_DEVICES], used_bytes[MAX_DEVICES];
static uint64_t device_bytes = 80ull << 30, others_bytes;
static __thread int current_device;

static int by_address(const void *one, const void *other)
{
	uint64_t left = ((const struct memory *)one)->address;
	uint64_t right = ((const struct memory *)other)->address;

	return (left > right) - (left < right);
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *device = getenv("STUB_DEVICE_BYTES"), *others = getenv("STUB_OTHERS_BYTES");

	if (device)
		device_bytes = strtoull(device, NULL, 10);
	if (others)
		others_bytes = strtoull(others, NULL, 10);
}

/* How much of each device is in use by other processes from now on. */
EXPORT void stub_set_others_bytes(size_t size_bytes)
{
	pthread_mutex_lock(&lock);
	others_bytes = size_bytes;
	pthread_mutex_unlock(&lock);
}

static uint64_t free_bytes_of(int device)
{
	uint64_t taken_bytes = used_bytes[device] + others_bytes;

	return taken_bytes < device_bytes ? device_bytes - taken_bytes : 0;
}

static int take_memory(uint64_t *address, size_t size_bytes)
{
	uint64_t whole_bytes = (size_bytes | 511) + 1;
	struct memory *memory;

	if (size_bytes > free_bytes_of(current_device))
		return OUT_OF_MEMORY;
	memory = malloc(sizeof(*memory));
	*memory = (struct memory){
		.address = FIRST_ADDRESS + current_device * ADDRESS_BYTES +
			   next_address[current_device] % ADDRESS_BYTES,
		.size_bytes = size_bytes,
		.device = current_device,
	};
	*address = memory->address;
	next_address[current_device] += whole_bytes;
	used_bytes[current_device] += size_bytes;
	tsearch(memory, &memory_in_use, by_address);
	return 0;
}

EXPORT int cudaMalloc(void **address, size_t size_bytes)
{
	uint64_t at = 0;
	int status;

	pthread_mutex_lock(&lock);
	status = take_memory(&at, size_bytes);
	pthread_mutex_unlock(&lock);
	if (!status)
		*address = (void *)at;
	act(MALLOC);
	return status;
}

EXPORT int cudaFree(void *address)
{
	struct memory key = {.address = (uint64_t)address}, **found, *memory = NULL;

	pthread_mutex_lock(&lock);
	found = tfind(&key, &memory_in_use, by_address);
	if (found) {
		memory = *found;
		used_bytes[memory->device] -= memory->size_bytes;
		tdelete(memory, &memory_in_use, by_address);
		free(memory);
	}
	pthread_mutex_unlock(&lock);
	act(FREE);
	return memory || !address ? 0 : NO_ADDRESS;
}

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	pthread_mutex_lock(&lock);
	*free_bytes = free_bytes_of(current_device);
	*total_bytes = device_bytes;
	pthread_mutex_unlock(&lock);
	return 0;
}

EXPORT int cudaSetDevice(int device)
{
	if (device < 0 || device >= MAX_DEVICES)
		return NO_DEVICE;
	current_device = device;
	return 0;
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
