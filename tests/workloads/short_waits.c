/* SPDX-License-Identifier: Apache-2.0 */
/*
 * short_waits LIBRARY THREADS ROUNDS
 *
 * In each round a thread synchronizes, sleeps, and launches: two short sleeps, then one that takes
 * much longer than these. Prints how many calls of each were made.
 */
#include "workload.h"

static struct cuda cuda;
static uint64_t rounds;

static void *work(void *argument)
{
	for (uint64_t round = 0; round < rounds; round++) {
		cuda.stream_synchronize(NULL);
		sleep_ns(round % 3 ? 50000 : 1500000);
		cuda.launch(work, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t threads;
	pthread_t *workers;

	if (argc < 4)
		fail("short_waits LIBRARY THREADS ROUNDS");
	threads = number(argv[2]);
	rounds = number(argv[3]);
	workers = calloc(threads, sizeof(*workers));
	cuda_open(&cuda, argv[1]);
	for (uint64_t index = 0; index < threads; index++)
		if (pthread_create(&workers[index], NULL, work, NULL))
			fail("pthread_create");
	for (uint64_t index = 0; index < threads; index++)
		pthread_join(workers[index], NULL);
	printf("{\"pid\": %d, \"cudaStreamSynchronize\": %" PRIu64
	       ", \"cudaLaunchKernel\": %" PRIu64 "}\n",
	       getpid(), threads * rounds, threads * rounds);
	return 0;
}
