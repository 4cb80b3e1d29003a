/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound LIBRARY KIND DURATION_MS CPU LOADER_CPU
 *
 * A training loop that spends its time as its label says, step after step: on the device,
 * on data, on its own work, in the allocator, or on two of them alike. Some kinds have a
 * slow step now and then, for which the device is to blame and nobody on the host.
 *
 * The loop has one CPU and is urgent on it: what else the machine does is not to be in
 * its way. Data comes through a pipe from a process that computes it on the other CPU.
 * Prints one line of JSON: who it was, its steps, how many of them were slow, and for how
 * long something was in its way all the same: the kernel's own account of its waits for a
 * CPU, in steps in which they were long.
 */
#include "workload.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define US		  1000ull
#define SLOW_US		  40000
#define SLOW_STEP_EVERY	  10
#define DISTURBED_NS	  (1000 * US)
#define STEPS_BEFORE_SLOW 120

/* Microseconds of each step. */
struct plan {
	const char *kind;
	unsigned compute, data, allocate, launch;
	/* A driver polls before it sleeps. */
	unsigned synchronize_spin, synchronize_sleep;
	unsigned slow_launch, slow_synchronize;
};

static const struct plan plans[] = {
	{"clean", .compute = 200, .launch = 50, .synchronize_spin = 100, .synchronize_sleep = 2900},
	{"gpu-wait", .compute = 200, .launch = 50, .synchronize_sleep = 3000,
	 .slow_synchronize = SLOW_US},
	{"gpu-backpressure", .compute = 200, .launch = 50, .synchronize_sleep = 3000,
	 .slow_launch = SLOW_US},
	{"gpu", .compute = 300, .launch = 50, .synchronize_spin = 500, .synchronize_sleep = 3000},
	{"data", .compute = 300, .data = 4000, .launch = 50, .synchronize_sleep = 700},
	{"cpu", .compute = 4000, .launch = 50, .synchronize_sleep = 700},
	{"allocator", .compute = 300, .allocate = 4000, .launch = 50, .synchronize_sleep = 700},
	{"mixed", .compute = 500, .data = 3000, .launch = 50, .synchronize_sleep = 3000},
};

static struct cuda cuda;
static const struct plan *plan;
static unsigned extra_launch, extra_synchronize;
static int orders[2], batches[2];

static void compute(uint64_t cpu_ns)
{
	uint64_t end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
		;
}

static void pin(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
}

static void become_urgent(void)
{
	struct sched_param parameters = {.sched_priority = 20};

	if (sched_setscheduler(0, SCHED_FIFO, &parameters))
		setpriority(PRIO_PROCESS, 0, -20);
}

static void in_malloc(void *unused)
{
	compute(plan->allocate * US);
}

static void in_launch(void *unused)
{
	compute((plan->launch + extra_launch) * US);
}

static void in_synchronize(void *unused)
{
	compute(plan->synchronize_spin * US);
	sleep_ns((plan->synchronize_sleep + extra_synchronize) * US);
}

/* How long this thread has waited for a CPU so far. */
static uint64_t run_queue_ns(void)
{
	static int schedstat = -1;
	char text[64] = "";
	uint64_t on_cpu_ns, wait_ns;

	if (schedstat < 0)
		schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (pread(schedstat, text, sizeof(text) - 1, 0) <= 0 ||
	    sscanf(text, "%" SCNu64 " %" SCNu64, &on_cpu_ns, &wait_ns) != 2)
		fail("schedstat");
	return wait_ns;
}

static void load(int cpu)
{
	char order;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, "loader");
	pin(cpu);
	become_urgent();
	close(orders[1]);
	while (read(orders[0], &order, 1) == 1) {
		compute(plan->data * US);
		if (write(batches[1], &order, 1) != 1)
			break;
	}
	_exit(0);
}

static void await_data(void)
{
	char batch = 0;

	if (write(orders[1], &batch, 1) != 1 || read(batches[0], &batch, 1) != 1)
		fail("the loader ended");
}

static void step(int is_slow)
{
	void *address;

	extra_launch = is_slow ? plan->slow_launch : 0;
	extra_synchronize = is_slow ? plan->slow_synchronize : 0;
	compute(plan->compute * US);
	if (plan->data)
		await_data();
	if (plan->allocate)
		cuda.malloc(&address, 1 << 20);
	cuda.launch(NULL, (dim3){8, 1, 1}, (dim3){128, 1, 1}, NULL, 0, NULL);
	cuda.stream_synchronize(NULL);
	if (plan->allocate)
		cuda.free(address);
}

int main(int argc, char **argv)
{
	uint64_t end_ns, steps = 0, slow_steps = 0, disturbed_ns = 0, wait_ns;

	if (argc != 6)
		fail("bound LIBRARY KIND DURATION_MS CPU LOADER_CPU");
	plan = plans;
	while (strcmp(plan->kind, argv[2]))
		if (++plan == plans + sizeof(plans) / sizeof(*plans))
			fail(argv[2]);
	if (plan->data) {
		if (pipe(orders) || pipe(batches))
			fail("pipe");
		if (!fork())
			load(number(argv[5]));
	}
	pin(number(argv[4]));
	become_urgent();
	cuda_open(&cuda, argv[1]);
	cuda.call_inside("cudaMalloc", in_malloc, NULL);
	cuda.call_inside("cudaLaunchKernel", in_launch, NULL);
	cuda.call_inside("cudaStreamSynchronize", in_synchronize, NULL);
	wait_ns = run_queue_ns();
	end_ns = clock_ns(CLOCK_MONOTONIC) + number(argv[3]) * 1000 * US;
	while (clock_ns(CLOCK_MONOTONIC) < end_ns) {
		int is_slow = (plan->slow_launch || plan->slow_synchronize) &&
			      steps >= STEPS_BEFORE_SLOW && steps % SLOW_STEP_EVERY == 0;
		uint64_t before_ns = wait_ns;

		step(is_slow);
		wait_ns = run_queue_ns();
		if (wait_ns - before_ns >= DISTURBED_NS)
			disturbed_ns += wait_ns - before_ns;
		steps++;
		slow_steps += is_slow;
	}
	printf("{\"pid\": %d, \"tid\": %d, \"steps\": %" PRIu64 ", \"slow_steps\": %" PRIu64
	       ", \"disturbed_ns\": %" PRIu64 "}\n",
	       getpid(), thread_id(), steps, slow_steps, disturbed_ns);
	return 0;
}
