/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shares LIBRARY SECONDS
 *
 * Spends so much CPU time in five functions that do the same, 50, 25, 15, 7 and 3 % of the
 * iterations; the third one is inside of cudaStreamSynchronize. Prints a line of JSON at the end:
 * the process, and the nanoseconds that its thread was on a CPU.
 *
 * It is a library too, whose functions take the number of iterations.
 */
#include "workload.h"

#define ITERATIONS 700000 /* of 1 %: a round takes a tenth of a second or so */

/* Each step needs the one before, so all loops are as fast, wherever they lie. */
#define WORK(share)                                                                                \
	__attribute__((noinline, visibility("default")))                                           \
	uint64_t work_##share(uint64_t iterations)                                                 \
	{                                                                                          \
		uint64_t state = share;                                                            \
                                                                                                   \
		for (uint64_t i = 0; i < iterations; i++) {                                        \
			state = state * 6364136223846793005u + 1442695040888963407u;               \
			__asm__ volatile("" : "+r"(state));                                        \
		}                                                                                  \
		return state;                                                                      \
	}

WORK(50)
WORK(25)
WORK(15)
WORK(7)
WORK(3)

static void work_inside(void *argument)
{
	(void)argument;
	work_15(15 * ITERATIONS);
}

int main(int argc, char **argv)
{
	struct cuda cuda;
	uint64_t until_ns;

	if (argc < 3)
		fail("shares LIBRARY SECONDS");
	until_ns = number(argv[2]) * 1000000000;
	cuda_open(&cuda, argv[1]);
	cuda.call_inside("cudaStreamSynchronize", work_inside, NULL);
	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < until_ns) {
		cuda.stream_synchronize(NULL);
		work_50(50 * ITERATIONS);
		work_25(25 * ITERATIONS);
		work_7(7 * ITERATIONS);
		work_3(3 * ITERATIONS);
	}
	printf("{\"pid\": %d, \"cpu_ns\": %" PRIu64 "}\n", getpid(),
	       clock_ns(CLOCK_THREAD_CPUTIME_ID));
	return 0;
}
