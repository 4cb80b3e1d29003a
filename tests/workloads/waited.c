/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waited WAITS CPU SEED
 *
 * A thread on one CPU waits, for random small times, for one of two others: the first one
 * sleeps for that long before it wakes it, the second one is busy. What became of the time is
 * measured by the one that waits, around its system call, and by the one that wakes it, right
 * before that.
 *
 * Prints one line of JSON when it has waited so often: who it was, and for each of the others its
 * thread, how often it was waited for, and in nanoseconds how long it was to take, how long it
 * took until it woke the first one, and how long that took to go on.
 */
#include "workload.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>

#define US	 1000ull
#define LEAST_US 300
#define MOST_US	 700
#define WAKERS	 2

static struct waker {
	_Atomic uint32_t ordered;
	uint64_t length_ns;
	uint64_t woken_ns;
	pid_t tid;
	uint64_t waits;
	uint64_t asked_ns;
	uint64_t blocked_ns;
	uint64_t run_queue_ns;
} wakers[WAKERS];
static _Atomic uint32_t done;

static void wait_while(_Atomic uint32_t *word, uint32_t value)
{
	while (atomic_load(word) == value)
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void set(_Atomic uint32_t *word, uint32_t value)
{
	atomic_store(word, value);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *wake(void *argument)
{
	struct waker *waker = argument;
	bool sleeps = waker == wakers;

	waker->tid = thread_id();
	for (;;) {
		uint64_t end_ns;

		wait_while(&waker->ordered, 0);
		atomic_store(&waker->ordered, 0);
		end_ns = clock_ns(CLOCK_MONOTONIC) + waker->length_ns;
		if (sleeps)
			sleep_ns(waker->length_ns);
		while (clock_ns(CLOCK_MONOTONIC) < end_ns)
			;
		waker->woken_ns = clock_ns(CLOCK_MONOTONIC);
		set(&done, 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t waits, seed;
	pthread_t thread;
	cpu_set_t cpus;

	if (argc != 4)
		fail("waited WAITS CPU SEED");
	waits = number(argv[1]);
	seed = number(argv[3]);
	/* The others run elsewhere, if there is another CPU. */
	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		fail("the CPUs");
	CPU_CLR(number(argv[2]), &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	for (int i = 0; i < WAKERS; i++) {
		if (pthread_create(&thread, NULL, wake, &wakers[i]))
			fail("a thread");
	}
	CPU_ZERO(&cpus);
	CPU_SET(number(argv[2]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("the CPU");
	while (waits) {
		struct waker *waker = &wakers[draw(&seed, 0, WAKERS - 1)];
		uint64_t start_ns, end_ns;

		waker->length_ns = draw(&seed, LEAST_US, MOST_US) * US;
		atomic_store(&done, 0);
		set(&waker->ordered, 1);
		start_ns = clock_ns(CLOCK_MONOTONIC);
		wait_while(&done, 0);
		end_ns = clock_ns(CLOCK_MONOTONIC);
		/* Else there was nothing to wait for any more. */
		if (start_ns < waker->woken_ns) {
			waker->blocked_ns += waker->woken_ns - start_ns;
			start_ns = waker->woken_ns;
			waker->waits++;
			waker->asked_ns += waker->length_ns;
			waits--;
		}
		waker->run_queue_ns += end_ns - start_ns;
	}
	printf("{\"pid\": %d, \"tid\": %d, \"wakers\": [", getpid(), thread_id());
	for (int i = 0; i < WAKERS; i++)
		printf("%s{\"tid\": %d, \"waits\": %" PRIu64 ", \"asked_ns\": %" PRIu64
		       ", \"blocked_ns\": %" PRIu64 ", \"run_queue_ns\": %" PRIu64 "}",
		       i ? ", " : "", wakers[i].tid, wakers[i].waits, wakers[i].asked_ns,
		       wakers[i].blocked_ns, wakers[i].run_queue_ns);
	printf("]}\n");
	return 0;
}
