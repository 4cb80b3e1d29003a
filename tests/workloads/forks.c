/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forks LIBRARY FORKS THREADS
 *
 * Forks FORKS children one after the other; each makes one CUDA call. Starts THREADS
 * threads too, which are not forks. Prints the pids that fork() returned.
 */
#include "workload.h"

static struct cuda cuda;

static void *call_once(void *unused)
{
	cuda.stream_synchronize(NULL);
	return unused;
}

int main(int argc, char **argv)
{
	uint64_t forks, threads;

	if (argc < 4)
		fail("forks LIBRARY FORKS THREADS");
	forks = number(argv[2]);
	threads = number(argv[3]);
	cuda_open(&cuda, argv[1]);
	cuda.device_synchronize();

	printf("{\"pid\": %d, \"threads\": %" PRIu64 ", \"children\": [", getpid(), threads);
	for (uint64_t i = 0; i < forks; i++) {
		pid_t child;

		fflush(stdout);
		child = fork();
		if (!child) {
			cuda.device_synchronize();
			_exit(0);
		}
		if (child < 0)
			fail("fork");
		printf("%s%d", i ? ", " : "", child);
		waitpid(child, NULL, 0);
	}
	for (uint64_t i = 0; i < threads; i++) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, call_once, NULL))
			fail("pthread_create");
		pthread_join(thread, NULL);
	}
	printf("]}\n");
	return 0;
}
