/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workloads share: the stub library opened by path, clocks, and JSON lines on
 * stdout that say what the program really did. Tests compare these with the telemetry.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HOST_TO_DEVICE 1

typedef struct {
	unsigned int x, y, z;
} dim3;

struct cuda {
	void *handle;
	int (*malloc)(void **, size_t);
	int (*free)(void *);
	int (*memcpy)(void *, const void *, size_t, int);
	int (*launch)(const void *, dim3, dim3, void **, size_t, void *);
	int (*stream_synchronize)(void *);
	int (*device_synchronize)(void);
	int (*set_device)(int);
	int (*get_device_properties)(void *, int);
	int (*set)(const char *, const char *);
	int (*call_inside)(const char *, void (*)(void *), void *);
};

__attribute__((unused)) static void fail(const char *what)
{
	fprintf(stderr, "workload: %s\n", what);
	exit(70);
}

__attribute__((unused)) static void *symbol(void *handle, const char *name)
{
	void *address = dlsym(handle, name);

	if (!address)
		fail(dlerror());
	return address;
}

__attribute__((unused)) static void cuda_find(struct cuda *cuda, void *handle)
{
	cuda->handle = handle;
	cuda->malloc = symbol(handle, "cudaMalloc");
	cuda->free = symbol(handle, "cudaFree");
	cuda->memcpy = symbol(handle, "cudaMemcpy");
	cuda->launch = symbol(handle, "cudaLaunchKernel");
	cuda->stream_synchronize = symbol(handle, "cudaStreamSynchronize");
	cuda->device_synchronize = symbol(handle, "cudaDeviceSynchronize");
	cuda->set_device = symbol(handle, "cudaSetDevice");
	cuda->get_device_properties = symbol(handle, "cudaGetDeviceProperties");
	cuda->set = symbol(handle, "stub_set");
	cuda->call_inside = symbol(handle, "stub_call_inside");
}

__attribute__((unused)) static void cuda_open(struct cuda *cuda, const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!handle)
		fail(dlerror());
	cuda_find(cuda, handle);
}

__attribute__((unused)) static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

__attribute__((unused)) static pid_t thread_id(void)
{
	return syscall(SYS_gettid);
}

__attribute__((unused)) static void sleep_ns(uint64_t duration_ns)
{
	struct timespec left = {duration_ns / 1000000000, duration_ns % 1000000000};

	while (nanosleep(&left, &left) == -1 && errno == EINTR)
		;
}

/* A number between two, both included; the state is the seed at first. */
__attribute__((unused)) static uint64_t draw(uint64_t *state, uint64_t least, uint64_t most)
{
	/* xorshift64* */
	*state += !*state;
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return least + (*state * 0x2545f4914f6cdd1d >> 16) % (most - least + 1);
}

__attribute__((unused)) static uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (end == text || *end)
		fail(text);
	return value;
}

#endif
