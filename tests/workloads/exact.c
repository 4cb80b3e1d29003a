/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exact LIBRARY CALLS THREADS [EXIT_CODE]
 *
 * Makes exactly CALLS calls of five kinds from THREADS threads, as fast as it can, and
 * prints how many of each it made, what the bytes were, and how long it took.
 */
#include "workload.h"

#define KINDS		5
#define ALLOCATED_BYTES 4096
#define COPIED_BYTES	1000

static const char *const names[KINDS] = {
	"cudaMalloc", "cudaMemcpy", "cudaLaunchKernel", "cudaStreamSynchronize", "cudaFree",
};

static struct cuda cuda;

struct worker {
	pthread_t thread;
	uint64_t first, calls;
	uint64_t made[KINDS];
};

static void *work(void *argument)
{
	struct worker *worker = argument;
	dim3 grid = {3, 2, 1}, block = {64, 1, 1};
	void *address = NULL;

	for (uint64_t i = worker->first; i < worker->first + worker->calls; i++) {
		unsigned kind = i % KINDS;

		switch (kind) {
		case 0:
			cuda.malloc(&address, ALLOCATED_BYTES);
			break;
		case 1:
			cuda.memcpy(address, &cuda, COPIED_BYTES, HOST_TO_DEVICE);
			break;
		case 2:
			cuda.launch((void *)work, grid, block, NULL, 0, NULL);
			break;
		case 3:
			cuda.stream_synchronize(NULL);
			break;
		case 4:
			cuda.free(address);
			break;
		}
		worker->made[kind]++;
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t calls, threads, start_ns, end_ns, next = 0;
	struct worker *workers;

	if (argc < 4)
		fail("exact LIBRARY CALLS THREADS [EXIT_CODE]");
	calls = number(argv[2]);
	threads = number(argv[3]);
	workers = calloc(threads, sizeof(*workers));
	cuda_open(&cuda, argv[1]);

	start_ns = clock_ns(CLOCK_MONOTONIC);
	for (uint64_t t = 0; t < threads; t++) {
		workers[t].first = next;
		workers[t].calls = calls / threads + (t < calls % threads);
		next += workers[t].calls;
		if (pthread_create(&workers[t].thread, NULL, work, &workers[t]))
			fail("pthread_create");
	}
	for (uint64_t t = 0; t < threads; t++)
		pthread_join(workers[t].thread, NULL);
	end_ns = clock_ns(CLOCK_MONOTONIC);

	printf("{\"pid\": %d, \"elapsed_ns\": %" PRIu64 ", \"calls\": {", getpid(),
	       end_ns - start_ns);
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t made = 0;

		for (uint64_t t = 0; t < threads; t++)
			made += workers[t].made[kind];
		printf("%s\"%s\": %" PRIu64, kind ? ", " : "", names[kind], made);
	}
	printf("}}\n");
	return argc > 4 ? (int)number(argv[4]) : 0;
}
