/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hang LIBRARY
 *
 * One thread, named "stuck", enters a cudaStreamSynchronize that never returns, while
 * the main thread waits for it. Prints who hangs, just before it does.
 */
#include "workload.h"

static struct cuda cuda;

static void *hang(void *unused)
{
	pthread_setname_np(pthread_self(), "stuck");
	printf("{\"pid\": %d, \"tid\": %d, \"before_unix_ns\": %" PRIu64 "}\n", getpid(),
	       thread_id(), clock_ns(CLOCK_REALTIME));
	fflush(stdout);
	cuda.stream_synchronize(NULL);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc < 2)
		fail("hang LIBRARY");
	cuda_open(&cuda, argv[1]);
	cuda.device_synchronize();
	cuda.set("cudaStreamSynchronize", "hang=1");
	if (pthread_create(&thread, NULL, hang, NULL))
		fail("pthread_create");
	pthread_join(thread, NULL);
	return 0;
}
