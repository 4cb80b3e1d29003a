/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steady LIBRARY CALLS_PER_SECOND SECONDS [THREADS]
 *
 * Calls cudaStreamSynchronize at a steady rate (0: as fast as it can) until the time is
 * over or SIGTERM comes, then prints how many calls it made. Prints "{"pid": …}" first,
 * when the library is mapped and one call was made.
 */
#include "workload.h"

static struct cuda cuda;
static atomic_int stopping;
static uint64_t calls_per_second, end_ns, threads = 1;

struct worker {
	pthread_t thread;
	uint64_t calls, failures;
};

static void stop(int signal)
{
	stopping = 1;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint64_t start_ns = clock_ns(CLOCK_MONOTONIC), now_ns = start_ns;

	while (!stopping && now_ns < end_ns) {
		uint64_t due = calls_per_second ? (now_ns - start_ns) * calls_per_second / threads /
							  1000000000
						: worker->calls + 64;

		while (worker->calls < due && !stopping) {
			worker->failures += cuda.stream_synchronize(NULL) != 0;
			worker->calls++;
		}
		if (calls_per_second)
			sleep_ns(1000000);
		now_ns = clock_ns(CLOCK_MONOTONIC);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t calls = 1, failures = 0, start_ns;
	struct worker *workers;

	if (argc < 4)
		fail("steady LIBRARY CALLS_PER_SECOND SECONDS [THREADS]");
	signal(SIGTERM, stop);
	calls_per_second = number(argv[2]);
	if (argc > 4)
		threads = number(argv[4]);
	workers = calloc(threads, sizeof(*workers));
	cuda_open(&cuda, argv[1]);
	failures += cuda.stream_synchronize(NULL) != 0;
	printf("{\"pid\": %d}\n", getpid());
	fflush(stdout);

	start_ns = clock_ns(CLOCK_MONOTONIC);
	end_ns = start_ns + number(argv[3]) * 1000000000;
	for (uint64_t t = 0; t < threads; t++)
		if (pthread_create(&workers[t].thread, NULL, work, &workers[t]))
			fail("pthread_create");
	for (uint64_t t = 0; t < threads; t++) {
		pthread_join(workers[t].thread, NULL);
		calls += workers[t].calls;
		failures += workers[t].failures;
	}
	printf("{\"pid\": %d, \"cudaStreamSynchronize\": %" PRIu64 ", \"failures\": %" PRIu64
	       ", \"elapsed_ns\": %" PRIu64 "}\n",
	       getpid(), calls, failures, clock_ns(CLOCK_MONOTONIC) - start_ns);
	return 0;
}
