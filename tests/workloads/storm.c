/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm LIBRARY PROCESSES AT_ONCE CALLS PAUSE_US MODE[,MODE...] [wait]
 *
 * Starts PROCESSES short processes, AT_ONCE at a time. Each calls cudaMalloc CALLS times, with
 * a pause before each call. The modes take turns:
 *
 *     linked    executes this program with the library in it from the start
 *     opened    executes this program, which opens the library
 *     forked    a fork that makes the calls, without an exec
 *     chained   executes this program three times; each image makes the calls
 *     threaded  executes this program; 13 threads make the calls
 *     killed    as linked; then a thread is killed inside one more call
 *     exiting   as linked; then it exits inside one more call
 *     reused    as linked, with the pid of the child before it, where there was one
 *     idle      as linked, without any call
 *
 * With "wait" it opens the library, says its pid, and calls cudaFree until there is a line on
 * standard input: so a test can see that the probes stand.
 *
 * Prints a JSON line for each process when it has ended, and one at the end. What a process
 * did is in memory that outlives it: calls is how many returned.
 */
#include "workload.h"

#include <linux/sched.h>
#include <poll.h>
#include <sys/mman.h>

#define THREADS		 13
#define IMAGES		 3
#define MAX_MODES	 16
#define PROBING_PAUSE_NS 20000000

struct child {
	_Atomic uint64_t calls;
	_Atomic uint64_t unfinished;
	pid_t pid;
	int mode;
};

static const char *const mode_names[] = {
	"linked", "opened", "forked", "chained", "threaded", "killed", "exiting", "reused", "idle",
};

enum mode {
	LINKED,
	OPENED,
	FORKED,
	CHAINED,
	THREADED,
	KILLED,
	EXITING,
	REUSED,
	IDLE,
	MODES,
};

static struct child *children;
static const char *library;
static uint64_t calls, pause_ns;
static int memory;

static void map_children(uint64_t count)
{
	children = mmap(NULL, count * sizeof(*children), PROT_READ | PROT_WRITE, MAP_SHARED, memory,
			0);
	if (children == MAP_FAILED)
		fail("mmap");
}

/* In a child. */

static struct cuda cuda;
static struct child *self;

static void *make_calls(void *unused)
{
	void *address;

	for (uint64_t i = 0; i < calls; i++) {
		sleep_ns(pause_ns);
		cuda.malloc(&address, 256);
		self->calls++;
	}
	return unused;
}

static void end_inside(void *unused)
{
	self->unfinished++;
	if (self->mode == EXITING)
		_exit(0);
	kill(getpid(), SIGKILL);
	for (;;)
		pause();
}

static void execute(uint64_t index, int mode, uint64_t images)
{
	char text[6][24];
	char preload[4096];
	char *environment[] = {mode == OPENED ? NULL : preload, NULL};

	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", library);
	snprintf(text[0], sizeof(*text), "%d", memory);
	snprintf(text[1], sizeof(*text), "%" PRIu64, index);
	snprintf(text[2], sizeof(*text), "%d", mode);
	snprintf(text[3], sizeof(*text), "%" PRIu64, images);
	snprintf(text[4], sizeof(*text), "%" PRIu64, calls);
	snprintf(text[5], sizeof(*text), "%" PRIu64, pause_ns);
	execle("/proc/self/exe", "storm-child", text[0], text[1], text[2], text[3], text[4],
	       text[5], library, NULL, environment);
	fail("execle");
}

static int be_child(char **argv)
{
	uint64_t index = number(argv[2]), images = number(argv[4]);
	int mode = number(argv[3]);
	pthread_t threads[THREADS];
	void *address;

	memory = number(argv[1]);
	calls = number(argv[5]);
	pause_ns = number(argv[6]);
	library = argv[7];
	map_children(index + 1);
	self = &children[index];
	if (mode == IDLE)
		return 0;
	if (mode == OPENED)
		cuda_open(&cuda, library);
	else
		cuda_find(&cuda, RTLD_DEFAULT);
	if (mode == THREADED) {
		for (int i = 0; i < THREADS; i++)
			if (pthread_create(&threads[i], NULL, make_calls, NULL))
				fail("pthread_create");
		for (int i = 0; i < THREADS; i++)
			pthread_join(threads[i], NULL);
		return 0;
	}
	make_calls(NULL);
	if (mode == CHAINED && images > 1)
		execute(index, mode, images - 1);
	if (mode == KILLED || mode == EXITING) {
		cuda.call_inside("cudaMalloc", end_inside, NULL);
		cuda.malloc(&address, 256);
	}
	return 0;
}

/* In the parent. */

static pid_t fork_as(pid_t wanted)
{
	struct clone_args arguments = {
		.exit_signal = SIGCHLD,
		.set_tid = (uint64_t)&wanted,
		.set_tid_size = 1,
	};
	pid_t pid = wanted ? syscall(SYS_clone3, &arguments, sizeof(arguments)) : fork();

	/* Somebody else has the number by now. */
	return pid < 0 && errno == EEXIST ? fork() : pid;
}

static void start(uint64_t index, int mode, pid_t wanted)
{
	pid_t pid;

	children[index].mode = mode;
	pid = fork_as(mode == REUSED ? wanted : 0);
	if (pid < 0)
		fail("fork");
	if (!pid) {
		if (mode != FORKED)
			execute(index, mode, mode == CHAINED ? IMAGES : 1);
		self = &children[index];
		make_calls(NULL);
		_exit(0);
	}
	children[index].pid = pid;
}

static struct child *reap(uint64_t started)
{
	pid_t pid = wait(NULL);

	if (pid < 0)
		fail("wait");
	for (uint64_t i = started; i-- > 0;) {
		struct child *child = &children[i];

		if (child->pid != pid)
			continue;
		printf("{\"pid\": %d, \"mode\": \"%s\", \"cudaMalloc\": %" PRIu64
		       ", \"unfinished\": %" PRIu64 "}\n",
		       pid, mode_names[child->mode], (uint64_t)child->calls,
		       (uint64_t)child->unfinished);
		return child;
	}
	fail("a child of nobody");
	return NULL;
}

static uint64_t wait_for_line(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};
	uint64_t made = 0;

	printf("{\"parent\": %d}\n", getpid());
	fflush(stdout);
	while (!poll(&input, 1, 0)) {
		cuda.free(NULL);
		made++;
		sleep_ns(PROBING_PAUSE_NS);
	}
	return made;
}

static int find_mode(const char *name)
{
	for (int mode = 0; mode < MODES; mode++)
		if (!strcmp(mode_names[mode], name))
			return mode;
	fail(name);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t processes, at_once, ended = 0, made = 0, unfinished = 0, probing = 0;
	int modes[MAX_MODES], mode_count = 0;
	uint64_t start_ns;
	pid_t last = 0;

	if (!strcmp(argv[0], "storm-child"))
		return be_child(argv);
	if (argc < 7)
		fail("storm LIBRARY PROCESSES AT_ONCE CALLS PAUSE_US MODE[,MODE...] [wait]");
	library = argv[1];
	processes = number(argv[2]);
	at_once = number(argv[3]);
	calls = number(argv[4]);
	pause_ns = number(argv[5]) * 1000;
	for (char *name = strtok(argv[6], ","); name && mode_count < MAX_MODES;
	     name = strtok(NULL, ",")) {
		modes[mode_count] = find_mode(name);
		if (modes[mode_count++] == FORKED && !cuda.handle)
			cuda_open(&cuda, library);
	}
	memory = memfd_create("storm", 0);
	if (memory < 0 || ftruncate(memory, processes * sizeof(*children)))
		fail("memfd_create");
	map_children(processes);
	if (argc > 7) {
		if (!cuda.handle)
			cuda_open(&cuda, library);
		probing = wait_for_line();
	}
	start_ns = clock_ns(CLOCK_MONOTONIC);
	for (uint64_t i = 0; i < processes + at_once; i++) {
		if (i >= at_once && ended < processes) {
			struct child *child = reap(i < processes ? i : processes);

			last = child->pid;
			made += child->calls;
			unfinished += child->unfinished;
			child->pid = 0;
			ended++;
			fflush(stdout);
		}
		if (i < processes)
			start(i, modes[i % mode_count], last);
	}
	printf("{\"processes\": %" PRIu64 ", \"cudaMalloc\": %" PRIu64 ", \"unfinished\": %" PRIu64
	       ", \"cudaFree\": %" PRIu64 ", \"elapsed_ns\": %" PRIu64 "}\n",
	       ended, made, unfinished, probing, clock_ns(CLOCK_MONOTONIC) - start_ns);
	return 0;
}
