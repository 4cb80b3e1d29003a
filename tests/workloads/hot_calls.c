/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hot_calls CALLS THREADS [PAUSE_NS]
 *
 * A program that is linked with libcudart, as most are not. Launches kernels CALLS times in each of
 * THREADS threads, one after the other if there are 0, says what a call took in nanoseconds, and
 * ends when its standard input does.
 */
#include "workload.h"

int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);

static uint64_t calls, pause_ns;

static uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void *work(void *argument)
{
	dim3 grid = {3, 2, 1}, block = {64, 1, 1};
	uint64_t start_ns = monotonic_ns(), paused_ns = 0;

	for (uint64_t i = 0; i < calls; i++) {
		if (cudaLaunchKernel((void *)work, grid, block, NULL, 0, NULL))
			abort();
		for (uint64_t from = monotonic_ns(), until = from + pause_ns; pause_ns;) {
			if (monotonic_ns() >= until) {
				paused_ns += monotonic_ns() - from;
				break;
			}
		}
	}
	*(uint64_t *)argument = monotonic_ns() - start_ns - paused_ns;
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t threads = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, sum_ns = 0;
	uint64_t spent_ns[1024];
	pthread_t started[1024];

	calls = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	pause_ns = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	if (!threads)
		work(&spent_ns[0]);
	for (uint64_t i = 0; i < threads; i++)
		pthread_create(&started[i], NULL, work, &spent_ns[i]);
	for (uint64_t i = 0; i < threads; i++)
		pthread_join(started[i], NULL);
	for (uint64_t i = 0; i < (threads ? threads : 1); i++)
		sum_ns += spent_ns[i];
	printf("%.1f\n", (double)sum_ns / calls / (threads ? threads : 1));
	fflush(stdout);
	return getchar() != EOF;
}
