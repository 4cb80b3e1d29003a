/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timed_function LIBRARY SYMBOL
 *
 * A call meter as timed.c is, of any function: for every number on stdin it makes that many calls
 * and prints the nanoseconds that they took together. Its arguments are those of PyTorch's report
 * of a block, handed out at one call and taken back at the next.
 */
#include "workload.h"

#define BLOCK	(void *)0x7f0000001000
#define BYTES	4096
#define ON_CUDA 1 /* c10::Device: its type, and above it the index */

int main(int argc, char **argv)
{
	void (*function)(void *, long, unsigned long, unsigned long, int);
	void *handle;
	char line[32];

	if (argc != 3)
		fail("timed_function LIBRARY SYMBOL");
	handle = dlopen(argv[1], RTLD_NOW);
	function = handle ? dlsym(handle, argv[2]) : NULL;
	if (!function)
		fail("no such function");
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t calls, start_ns;

		line[strcspn(line, "\n")] = 0;
		calls = number(line);
		start_ns = clock_ns(CLOCK_MONOTONIC);
		for (uint64_t i = 0; i < calls; i++)
			function(BLOCK, i % 2 ? -BYTES : BYTES, i % 2 ? 0 : BYTES, BYTES, ON_CUDA);
		printf("%" PRIu64 "\n", clock_ns(CLOCK_MONOTONIC) - start_ns);
	}
	return 0;
}
