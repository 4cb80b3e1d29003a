/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of eight sizes, one of which is large, each of which lives while 64 others are handed out. */
#include <stddef.h>
#include <time.h>

#define LIVE 64
#define PACE 100 /* blocks, between two looks at the clock */

static long long now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* The CPU time that it took; per_second is 0 for as fast as can be. */
long long churn(void *(*take)(int, size_t), size_t (*give_back)(void *), long blocks,
		long per_second)
{
	static const size_t sizes[] = {512, 2048, 8192, 32768, 131072, 524288, 4096, 2097152};
	long long start_ns = now_ns(CLOCK_MONOTONIC), used_ns = now_ns(CLOCK_THREAD_CPUTIME_ID);
	void *live[LIVE] = {};

	for (long i = 0; i < blocks; i++) {
		if (live[i % LIVE])
			give_back(live[i % LIVE]);
		live[i % LIVE] = take(0, sizes[i % 8]);
		if (per_second && i % PACE == 0) {
			long long due_ns = start_ns + i * 1000000000ll / per_second;
			struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
		}
	}
	for (int i = 0; i < LIVE; i++)
		if (live[i])
			give_back(live[i]);
	return now_ns(CLOCK_THREAD_CPUTIME_ID) - used_ns;
}
