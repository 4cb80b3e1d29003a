/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tool that wraps cudaMalloc behind the preload library, as if the preload library's clock were ahead: what is published
 * of the call begins in the future. With -DPROGRAM a program that makes so many calls.
 *
 *     ahead CALLS
 */
#include "workload.h"

int cudaMalloc(void **address, size_t bytes);

#ifdef PROGRAM

int main(int argc, char **argv)
{
	void *address;

	for (int i = 0; i < atoi(argv[argc - 1]); i++)
		cudaMalloc(&address, 64);
	printf("{\"pid\": %d}\n", getpid());
	return 0;
}

#else

#define AHEAD_NS 1000000000ull

/* Where the first thread of the process publishes its outermost call. */
static uint64_t *find_start(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start = 0;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps) && !strstr(line, "memfd:otel_gpu_preload"))
		;
	sscanf(line, "%lx", &start);
	return (uint64_t *)(start + SLOTS_OFFSET + CALLS_OFFSET);
}

int cudaMalloc(void **address, size_t bytes)
{
	static uint64_t *start_ktime_ns;

	if (!start_ktime_ns)
		start_ktime_ns = find_start();
	*start_ktime_ns += AHEAD_NS;
	return ((int (*)(void **, size_t))symbol(RTLD_NEXT, "cudaMalloc"))(address, bytes);
}

#endif
