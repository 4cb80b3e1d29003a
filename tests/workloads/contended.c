/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contended LIBRARY CALLS CPU SEED
 *
 * One thread on one CPU makes calls that burn, sleep and yield for random small times, and
 * does the same between them. What became of its time is measured around each call and
 * inside of it, by the kernel's clock of its CPU time and its count of how long it waited
 * for a CPU: whatever a probe at the entry and the return says lies between the two.
 *
 * Prints one line of JSON: who it was, schedstat right before the first call and right
 * after the last one, how often it left its CPU between the two, and for each call, before, inside at the start and at the end, and
 * after it: the time, the CPU time, and the wait, in nanoseconds.
 */
#include "workload.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>

#define MOMENTS	 4
#define US	 1000ull
#define BURN_US	 400
#define SLEEP_US 400

/* Of a hundred. */
#define SLEEPS 35
#define YIELDS 5
#define IN_GAP 25

struct moment {
	uint64_t now_ns, cpu_ns, wait_ns;
};

static struct cuda cuda;
static struct moment (*moments)[MOMENTS];
static uint64_t calls, call, random_state, before[2], after[2];
static int schedstat;
static long switches;
static pid_t tid;

static void read_schedstat(uint64_t *cpu_ns, uint64_t *wait_ns)
{
	char text[64] = "";

	if (pread(schedstat, text, sizeof(text) - 1, 0) <= 0 ||
	    sscanf(text, "%" SCNu64 " %" SCNu64, cpu_ns, wait_ns) != 2)
		fail("schedstat");
}

static void look(struct moment *moment)
{
	uint64_t until_last_tick;

	moment->now_ns = clock_ns(CLOCK_MONOTONIC);
	moment->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	read_schedstat(&until_last_tick, &moment->wait_ns);
}

static void burn(uint64_t duration_ns)
{
	uint64_t end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + duration_ns;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
		;
}

static void spend(void)
{
	burn(draw(&random_state, 0, BURN_US * US));
	if (draw(&random_state, 1, 100) <= SLEEPS)
		sleep_ns(draw(&random_state, 1, SLEEP_US * US));
	if (draw(&random_state, 1, 100) <= YIELDS)
		sched_yield();
	burn(draw(&random_state, 0, BURN_US * US / 4));
}

static void inside(void *unused)
{
	look(&moments[call][1]);
	spend();
	look(&moments[call][2]);
}

static long count_switches(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage))
		fail("getrusage");
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

/* In a thread of its own: its account ends with its last call. */
static void *make_calls(void *unused)
{
	tid = thread_id();
	schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	switches = count_switches();
	read_schedstat(&before[0], &before[1]);
	for (call = 0; call < calls; call++) {
		look(&moments[call][0]);
		cuda.stream_synchronize(NULL);
		look(&moments[call][3]);
		if (draw(&random_state, 1, 100) <= IN_GAP)
			spend();
	}
	read_schedstat(&after[0], &after[1]);
	switches = count_switches() - switches;
	return NULL;
}

static void print_moments(void)
{
	printf("\"calls\": [");
	for (uint64_t i = 0; i < calls; i++) {
		printf("%s[", i ? ", " : "");
		for (int m = 0; m < MOMENTS; m++)
			printf("%s[%" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", m ? ", " : "",
			       moments[i][m].now_ns, moments[i][m].cpu_ns, moments[i][m].wait_ns);
		printf("]");
	}
	printf("]");
}

int main(int argc, char **argv)
{
	pthread_t thread;
	cpu_set_t cpus;

	if (argc != 5)
		fail("contended LIBRARY CALLS CPU SEED");
	calls = number(argv[2]);
	random_state = number(argv[4]);
	CPU_ZERO(&cpus);
	CPU_SET(number(argv[3]), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
	moments = calloc(calls, sizeof(*moments));
	cuda_open(&cuda, argv[1]);
	cuda.call_inside("cudaStreamSynchronize", inside, NULL);
	if (pthread_create(&thread, NULL, make_calls, NULL))
		fail("pthread_create");
	pthread_join(thread, NULL);
	printf("{\"pid\": %d, \"tid\": %d, \"before\": [%" PRIu64 ", %" PRIu64
	       "], \"after\": [%" PRIu64 ", %" PRIu64 "], \"switches\": %ld, ",
	       getpid(), tid, before[0], before[1], after[0], after[1], switches);
	print_moments();
	printf("}\n");
	return 0;
}
