/* SPDX-License-Identifier: Apache-2.0 */
/*
 * first_call MODE CALLS LIBRARY [LIBRARY2]
 *
 * Calls cudaMalloc the very moment the library is there, CALLS times per library.
 *
 *     direct     dlopen, then call
 *     forked     a child that does it
 *     executed   a child that executes this program in mode "direct"
 *     exec_thread  a thread executes this program in mode "direct", as nobody should
 *     threaded   a thread that does it while the main thread waits
 *     copies     two libraries, one after the other
 *     preloaded  the library came with the program (LD_PRELOAD)
 *
 * Prints a JSON line from each process that made calls.
 */
#include "workload.h"

static const char *path;
static uint64_t calls;

static void call(struct cuda *cuda)
{
	void *address;

	for (uint64_t i = 0; i < calls; i++)
		cuda->malloc(&address, 256);
}

static void *open_and_call(void *library)
{
	struct cuda cuda;

	cuda_open(&cuda, library);
	call(&cuda);
	return NULL;
}

static void *execute(void *unused)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRIu64, calls);
	execl("/proc/self/exe", "first_call", "direct", text, path, NULL);
	fail("execl");
	return unused;
}

static void report(uint64_t libraries)
{
	printf("{\"pid\": %d, \"cudaMalloc\": %" PRIu64 "}\n", getpid(), libraries * calls);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	struct cuda cuda;
	pid_t child;
	int status = 0;

	if (argc < 3)
		fail("first_call MODE CALLS [LIBRARY [LIBRARY2]]");
	calls = number(argv[2]);
	path = argc > 3 ? argv[3] : NULL;

	if (!strcmp(argv[1], "direct")) {
		open_and_call((void *)path);
		report(1);
	} else if (!strcmp(argv[1], "forked")) {
		child = fork();
		if (!child) {
			open_and_call((void *)path);
			report(1);
			return 0;
		}
		waitpid(child, &status, 0);
	} else if (!strcmp(argv[1], "executed")) {
		child = fork();
		if (!child) {
			execl("/proc/self/exe", "first_call", "direct", argv[2], path, NULL);
			fail("execl");
		}
		waitpid(child, &status, 0);
	} else if (!strcmp(argv[1], "exec_thread")) {
		open_and_call((void *)path);
		report(1);
		if (pthread_create(&thread, NULL, execute, NULL))
			fail("pthread_create");
		pthread_join(thread, NULL);
	} else if (!strcmp(argv[1], "threaded")) {
		if (pthread_create(&thread, NULL, open_and_call, (void *)path))
			fail("pthread_create");
		pthread_join(thread, NULL);
		report(1);
	} else if (!strcmp(argv[1], "copies") && argc > 4) {
		open_and_call((void *)path);
		open_and_call(argv[4]);
		report(2);
	} else if (!strcmp(argv[1], "preloaded")) {
		cuda_find(&cuda, RTLD_DEFAULT);
		call(&cuda);
		report(1);
	} else {
		fail(argv[1]);
	}
	return status ? 1 : 0;
}
