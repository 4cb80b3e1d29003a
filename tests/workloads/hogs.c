/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hogs CPU SEED
 *
 * Three processes that burn one CPU, each for a random while and with a random niceness,
 * then are gone for a shorter while and come back as another. They end with their input.
 */
#include "workload.h"

#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define HOGS	3
#define STEP_MS 5

/* Milliseconds. */
#define SHORTEST_TURN  40
#define LONGEST_TURN   300
#define SHORTEST_PAUSE 5
#define LONGEST_PAUSE  60

static const int niceness[] = {0, 0, 3, 7, 12, 19};

struct hog {
	pid_t pid; /* 0: it is gone */
	uint64_t until_ns;
};

static void burn(int nice)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "hog");
	setpriority(PRIO_PROCESS, 0, nice);
	for (;;)
		;
}

static void change(struct hog *hog, uint64_t *random)
{
	uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
	int nice;

	if (now_ns < hog->until_ns)
		return;
	if (hog->pid) {
		kill(hog->pid, SIGKILL);
		waitpid(hog->pid, NULL, 0);
		hog->pid = 0;
		hog->until_ns = now_ns + draw(random, SHORTEST_PAUSE, LONGEST_PAUSE) * 1000000;
		return;
	}
	nice = niceness[draw(random, 0, sizeof(niceness) / sizeof(*niceness) - 1)];
	hog->pid = fork();
	if (hog->pid < 0)
		fail("fork");
	if (!hog->pid)
		burn(nice);
	hog->until_ns = now_ns + draw(random, SHORTEST_TURN, LONGEST_TURN) * 1000000;
}

int main(int argc, char **argv)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	struct hog hogs[HOGS] = {};
	uint64_t random;
	cpu_set_t cpus;

	if (argc != 3)
		fail("hogs CPU SEED");
	random = number(argv[2]);
	CPU_ZERO(&cpus);
	CPU_SET(number(argv[1]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
	/* Who lets them come and go is not to wait for them. */
	setpriority(PRIO_PROCESS, 0, -20);
	while (!poll(&input, 1, STEP_MS))
		for (int i = 0; i < HOGS; i++)
			change(&hogs[i], &random);
	for (int i = 0; i < HOGS; i++)
		if (hogs[i].pid)
			kill(hogs[i].pid, SIGKILL);
	return 0;
}
