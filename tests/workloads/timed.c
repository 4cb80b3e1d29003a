/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timed LIBRARY
 *
 * A call meter: for every number on stdin it makes that many calls (each of one
 * cudaStreamSynchronize) and prints the nanoseconds that they took together.
 */
#include "workload.h"

int main(int argc, char **argv)
{
	struct cuda cuda;
	char line[32];

	if (argc < 2)
		fail("timed LIBRARY");
	cuda_open(&cuda, argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t calls, start_ns;

		line[strcspn(line, "\n")] = 0;
		calls = number(line);
		start_ns = clock_ns(CLOCK_MONOTONIC);
		for (uint64_t i = 0; i < calls; i++)
			cuda.stream_synchronize(NULL);
		printf("%" PRIu64 "\n", clock_ns(CLOCK_MONOTONIC) - start_ns);
	}
	return 0;
}
