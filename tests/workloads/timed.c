/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timed LIBRARY [PUBLISHER]
 *
 * A call meter: for every number on stdin it makes that many calls (each of one
 * cudaStreamSynchronize) and prints the nanoseconds that they took together. With a
 * PUBLISHER, otel_gpu/_preload/thread_context.*.so, it is in a span all the time.
 */
#include "workload.h"

static void publish(const char *library)
{
	void (*is_in)(uint64_t, uint64_t, uint64_t, uint8_t);
	void *handle = dlopen(library, RTLD_NOW);

	is_in = handle ? dlsym(handle, "otel_gpu_publish_context") : NULL;
	if (!is_in)
		fail("no publisher");
	is_in(1, 2, 3, 1);
}

int main(int argc, char **argv)
{
	struct cuda cuda;
	char line[32];

	if (argc < 2)
		fail("timed LIBRARY [PUBLISHER]");
	if (argc > 2)
		publish(argv[2]);
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
