/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rounds LIBRARY
 *
 * A call meter whose calls repeat themselves: for every number on stdin it makes that many rounds
 * (each of LAUNCHES launches of different kernels and one cudaStreamSynchronize) and prints the
 * nanoseconds of CPU time that they took together.
 */
#include "workload.h"

#define LAUNCHES 999 /* benchmarks/found_steps.py knows it */

int main(int argc, char **argv)
{
	struct cuda cuda;
	char line[32], kernels[LAUNCHES];
	dim3 one = {1, 1, 1};

	if (argc < 2)
		fail("rounds LIBRARY");
	cuda_open(&cuda, argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t rounds, start_ns;

		line[strcspn(line, "\n")] = 0;
		rounds = number(line);
		start_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		for (uint64_t i = 0; i < rounds; i++) {
			for (int kernel = 0; kernel < LAUNCHES; kernel++)
				cuda.launch(&kernels[kernel], one, one, NULL, 0, NULL);
			cuda.stream_synchronize(NULL);
		}
		printf("%" PRIu64 "\n", clock_ns(CLOCK_THREAD_CPUTIME_ID) - start_ns);
	}
	return 0;
}
