/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishes a thread context, from wherever it is linked into.
 *
 *   publisher THREADS
 *
 * Prints for each thread how far the pointer is from its thread pointer, and the thread pointer;
 * then it waits for the end of its input. With LIBRARY it is the part that has the pointer, with
 * PROGRAM the one that uses it, and with none of both it is all of it. ODD and ALIGNED are other
 * thread-local storage before it, which moves it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if !defined(VISIBILITY)
#define VISIBILITY "default"
#endif
#if !defined(ODD)
#define ODD 1
#endif
#if !defined(ALIGNED)
#define ALIGNED 8
#endif

#if !defined(PROGRAM)
__thread char before[ODD] = {1};
__thread char aligned[ALIGNED] __attribute__((aligned(ALIGNED)));
__attribute__((visibility(VISIBILITY))) __thread void *volatile otel_thread_ctx_v1;

__attribute__((visibility("default"))) void *publish(void *record)
{
	otel_thread_ctx_v1 = record;
	before[0] = aligned[0] = 1;
	return (void *)&otel_thread_ctx_v1;
}
#endif

#if !defined(LIBRARY)
static pthread_barrier_t said;
static void *(*publish_in)(void *);

static void *say(void *unused)
{
	uintptr_t at = (uintptr_t)publish_in(&said);
	uintptr_t pointer = (uintptr_t)__builtin_thread_pointer();

	printf("%ld %lu\n", (long)(at - pointer), (unsigned long)pointer);
	fflush(stdout);
	pthread_barrier_wait(&said);
	(void)getchar();
	return unused;
}

int main(int count, char **arguments)
{
	int threads = atoi(arguments[1]);

#if defined(PROGRAM)
	publish_in = (void *(*)(void *))dlsym(dlopen(arguments[2], RTLD_NOW), "publish");
#else
	publish_in = publish;
#endif
	pthread_barrier_init(&said, NULL, threads + 1);
	for (int i = 0; i < threads; i++) {
		pthread_t thread;

		pthread_create(&thread, NULL, say, NULL);
	}
	pthread_barrier_wait(&said);
	puts("all");
	fflush(stdout);
	(void)getchar();
	return count ? 0 : 1;
}
#endif
