/* SPDX-License-Identifier: Apache-2.0 */
/*
 * durations LIBRARY spin|sleep NANOSECONDS...
 *
 * Makes one cudaStreamSynchronize of each duration and prints a JSON line per call with
 * both clocks read just before and just after. With "step" in place of a duration it
 * waits for a line on stdin, so that a test can change the clock in between.
 */
#include "workload.h"

int main(int argc, char **argv)
{
	struct cuda cuda;
	char text[64], line[16];

	if (argc < 4)
		fail("durations LIBRARY spin|sleep NANOSECONDS...");
	cuda_open(&cuda, argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);

	for (int i = 3; i < argc; i++) {
		uint64_t unix_before_ns, unix_after_ns, before_ns, after_ns;

		if (!strcmp(argv[i], "step")) {
			printf("{\"step\": true}\n");
			if (!fgets(line, sizeof(line), stdin))
				fail("no line on stdin");
			continue;
		}
		snprintf(text, sizeof(text), "%s_ns=%s", argv[2], argv[i]);
		cuda.set("cudaStreamSynchronize", text);
		unix_before_ns = clock_ns(CLOCK_REALTIME);
		before_ns = clock_ns(CLOCK_MONOTONIC);
		cuda.stream_synchronize((void *)(uintptr_t)i);
		after_ns = clock_ns(CLOCK_MONOTONIC);
		unix_after_ns = clock_ns(CLOCK_REALTIME);
		printf("{\"pid\": %d, \"tid\": %d, \"stream\": %d, \"asked_ns\": %s, "
		       "\"elapsed_ns\": %" PRIu64 ", \"before_unix_ns\": %" PRIu64
		       ", \"after_unix_ns\": %" PRIu64 "}\n",
		       getpid(), thread_id(), i, argv[i], after_ns - before_ns, unix_before_ns,
		       unix_after_ns);
	}
	return 0;
}
