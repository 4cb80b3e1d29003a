/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nested LIBRARY MODE CALLS
 *
 *     driver    each cudaMalloc makes a cuMemAlloc (CUDA_STUB must say nest=1)
 *     recurse   CALLS cudaFree calls; CUDA_STUB says how deep each goes
 *     longjmp   CALLS cudaFree calls are left with longjmp, each followed by a cudaMalloc
 *     tail      CALLS cudaStreamCreateWithFlags calls, which jump to cudaStreamCreate
 *     exit      CALLS threads end inside cudaFree, after which one makes a whole call
 *     exit-hot  CALLS threads end inside cudaDeviceSynchronize, which may be counted without probes
 */
#include "workload.h"
#include <setjmp.h>

static struct cuda cuda;
static __thread jmp_buf outside;

static void leave(void *unused)
{
	longjmp(outside, 1);
}

static void end_thread(void *unused)
{
	pthread_exit(NULL);
}

static void *free_nothing(void *unused)
{
	cuda.free(NULL);
	return unused;
}

static void *synchronize(void *unused)
{
	cuda.device_synchronize();
	return unused;
}

static void end_inside(const char *api, void *(*call)(void *))
{
	pthread_t thread;

	cuda.call_inside(api, end_thread, NULL);
	pthread_create(&thread, NULL, call, NULL);
	pthread_join(thread, NULL);
	cuda.call_inside(api, NULL, NULL);
	pthread_create(&thread, NULL, call, NULL);
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	int (*create)(void **, unsigned);
	uint64_t calls;
	void *address;

	if (argc < 4)
		fail("nested LIBRARY MODE CALLS");
	calls = number(argv[3]);
	cuda_open(&cuda, argv[1]);
	create = symbol(cuda.handle, "cudaStreamCreateWithFlags");

	for (volatile uint64_t i = 0; i < calls; i++) {
		if (!strcmp(argv[2], "driver")) {
			cuda.malloc(&address, 512);
		} else if (!strcmp(argv[2], "recurse")) {
			cuda.free(NULL);
		} else if (!strcmp(argv[2], "longjmp")) {
			cuda.call_inside("cudaFree", leave, NULL);
			if (!setjmp(outside))
				cuda.free(NULL);
			cuda.malloc(&address, 512);
		} else if (!strcmp(argv[2], "tail")) {
			create(&address, 1);
		} else if (!strcmp(argv[2], "exit")) {
			end_inside("cudaFree", free_nothing);
		} else if (!strcmp(argv[2], "exit-hot")) {
			end_inside("cudaDeviceSynchronize", synchronize);
		} else {
			fail(argv[2]);
		}
	}
	printf("{\"pid\": %d, \"calls\": %" PRIu64 "}\n", getpid(), calls);
	return 0;
}
