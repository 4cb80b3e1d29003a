/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switches CPU [BUSY_NS [pipe]]
 *
 * Two threads on one CPU that hand it to each other through a futex, or pipes: each hand-over is one
 * context switch, in which one of them begins to wait and the other one ends waiting. For
 * every number on stdin they do that many, and the CPU time that the process used for it
 * and the switches that the kernel counted meanwhile are printed. What else runs on the
 * CPU takes time on the clock and not of this. A thread stays busy for BUSY_NS before it
 * hands the CPU on, so that the other one waits at least that long.
 */
#include "workload.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/resource.h>

static _Atomic uint32_t turn;
static uint64_t busy_ns;
static int pipes[2][2]; /* of each thread: what it waits for, and what the other one writes */
static int has_pipes;

static void wait_in_pipe(uint32_t own)
{
	char byte;

	if (read(pipes[own][0], &byte, 1) != 1)
		fail("read");
}

static void hand_over(uint32_t to)
{
	uint32_t from = !to;

	for (uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
	     busy_ns && clock_ns(CLOCK_MONOTONIC) - start_ns < busy_ns;)
		;
	if (has_pipes) {
		if (write(pipes[to][1], "x", 1) != 1)
			fail("write");
		wait_in_pipe(from);
		return;
	}
	atomic_store(&turn, to);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	while (atomic_load(&turn) != from)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, to, NULL, NULL, 0);
}

static void *partner(void *unused)
{
	if (has_pipes)
		wait_in_pipe(1);
	while (!has_pipes && atomic_load(&turn) != 1)
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	for (;;)
		hand_over(0);
	return NULL;
}

static uint64_t switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

int main(int argc, char **argv)
{
	struct sched_param parameters = {.sched_priority = 20};
	pthread_t thread;
	cpu_set_t cpus;
	char line[32];

	if (argc < 2 || argc > 4)
		fail("switches CPU [BUSY_NS [pipe]]");
	if (argc > 2)
		busy_ns = number(argv[2]);
	has_pipes = argc == 4;
	if (has_pipes && (pipe(pipes[0]) || pipe(pipes[1])))
		fail("pipe");
	CPU_ZERO(&cpus);
	CPU_SET(number(argv[1]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
	/* First come, first served: nobody is preempted by the one that he woke. */
	if (sched_setscheduler(0, SCHED_FIFO, &parameters))
		fail("SCHED_FIFO is not allowed");
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (pthread_create(&thread, NULL, partner, NULL))
		fail("pthread_create");
	printf("%d\n", getpid());
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t count, switches_before, start_ns, used_ns;

		line[strcspn(line, "\n")] = 0;
		count = number(line);
		switches_before = switches();
		start_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
		for (uint64_t done = 0; done < count; done += 2)
			hand_over(1);
		used_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - start_ns;
		printf("%" PRIu64 " %" PRIu64 "\n", used_ns, switches() - switches_before);
	}
	return 0;
}
