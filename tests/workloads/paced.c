/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paced LIBRARY
 *
 * A call meter. For every line "THREADS CALLS PAUSE_NS" on stdin that many threads launch CALLS
 * kernels each, with so long a pause before each of them in which they use other memory, and it
 * prints the median nanoseconds of a call over all threads; without a pause that of calls in a row.
 */
#include "workload.h"

#define MAX_THREADS 64
#define IN_A_ROW    200
#define OTHER_BYTES (1 << 20) /* more than the caches next to a processor hold */
#define LINE_BYTES  64

struct worker {
	pthread_t thread;
	uint64_t *samples_ns;
	uint64_t samples;
};

static struct cuda cuda;
static uint64_t calls, pause_ns;
static pthread_barrier_t all_here;

static void launch(void)
{
	dim3 grid = {3, 2, 1}, block = {64, 1, 1};

	cuda.launch((void *)launch, grid, block, NULL, 0, NULL);
}

static void rest(volatile char *other)
{
	uint64_t end_ns = clock_ns(CLOCK_MONOTONIC) + pause_ns;

	while (clock_ns(CLOCK_MONOTONIC) < end_ns)
		for (int i = 0; i < OTHER_BYTES; i += LINE_BYTES)
			other[i]++;
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint64_t in_a_row = pause_ns ? 1 : IN_A_ROW;
	char *other = malloc(OTHER_BYTES);

	worker->samples = calls / in_a_row;
	worker->samples_ns = malloc(worker->samples * sizeof(*worker->samples_ns));
	pthread_barrier_wait(&all_here);
	for (uint64_t i = 0; i < worker->samples; i++) {
		uint64_t start_ns;

		if (pause_ns)
			rest(other);
		start_ns = clock_ns(CLOCK_MONOTONIC);
		for (uint64_t j = 0; j < in_a_row; j++)
			launch();
		worker->samples_ns[i] = clock_ns(CLOCK_MONOTONIC) - start_ns;
	}
	free(other);
	return NULL;
}

static int order(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

/* Of all samples of all threads. */
static double median_ns(const struct worker *workers, uint64_t threads)
{
	uint64_t count = 0, *all = malloc(threads * workers[0].samples * sizeof(*all));
	double median;

	for (uint64_t i = 0; i < threads; i++)
		for (uint64_t j = 0; j < workers[i].samples; j++)
			all[count++] = workers[i].samples_ns[j];
	qsort(all, count, sizeof(*all), order);
	median = (double)all[count / 2] / (pause_ns ? 1 : IN_A_ROW);
	free(all);
	return median;
}

int main(int argc, char **argv)
{
	struct worker workers[MAX_THREADS];
	char line[128];

	if (argc < 2)
		fail("paced LIBRARY");
	cuda_open(&cuda, argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t threads;

		if (sscanf(line, "%" SCNu64 " %" SCNu64 " %" SCNu64, &threads, &calls, &pause_ns) !=
			    3 ||
		    !threads || threads > MAX_THREADS || calls < IN_A_ROW)
			fail(line);
		pthread_barrier_init(&all_here, NULL, threads);
		for (uint64_t i = 0; i < threads; i++)
			pthread_create(&workers[i].thread, NULL, work, &workers[i]);
		for (uint64_t i = 0; i < threads; i++)
			pthread_join(workers[i].thread, NULL);
		pthread_barrier_destroy(&all_here);
		printf("%.2f\n", median_ns(workers, threads));
		for (uint64_t i = 0; i < threads; i++)
			free(workers[i].samples_ns);
	}
	return 0;
}
