/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hardships KIND [NUMBER]
 *
 * A program, linked with libcudart, that makes launches in circumstances that are hard for whoever
 * counts them. Says how many are its own (those of its children are not), and ends when its
 * standard input does.
 */
#include "workload.h"

#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>

#define MANY_AT_ONCE 1103
#define STACK_BYTES  (256 << 10)

int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaStreamSynchronize(void *);
int stub_call_inside(const char *, void (*)(void *), void *);

static uint64_t total = 1;
static pthread_barrier_t all_there;
static pthread_key_t last_key;
static jmp_buf way_out;
static volatile sig_atomic_t in_handler;

static void launch(void)
{
	dim3 grid = {3, 2, 1}, block = {64, 1, 1};

	if (cudaLaunchKernel((void *)launch, grid, block, NULL, 0, NULL))
		fail("a launch failed");
}

static void launch_times(uint64_t times)
{
	while (times--)
		launch();
}

static void start(pthread_t *thread, void *(*work)(void *), void *argument)
{
	pthread_attr_t attributes;

	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, STACK_BYTES);
	if (pthread_create(thread, &attributes, work, argument))
		fail("pthread_create");
	pthread_attr_destroy(&attributes);
}

static void *launch_some(void *argument)
{
	launch_times((uintptr_t)argument);
	return NULL;
}

static void *launch_together(void *argument)
{
	launch();
	pthread_barrier_wait(&all_there);
	launch_times((uintptr_t)argument);
	pthread_barrier_wait(&all_there);
	return NULL;
}

/* One after the other. */
static uint64_t threads(void)
{
	for (uint64_t i = 0; i < total; i++) {
		pthread_t thread;

		start(&thread, launch_some, (void *)(uintptr_t)3);
		pthread_join(thread, NULL);
	}
	return 3 * total;
}

static uint64_t threads_at_once(void)
{
	pthread_t all[MANY_AT_ONCE];

	pthread_barrier_init(&all_there, NULL, MANY_AT_ONCE);
	for (int i = 0; i < MANY_AT_ONCE; i++)
		start(&all[i], launch_together, (void *)(uintptr_t)(total - 1));
	for (int i = 0; i < MANY_AT_ONCE; i++)
		pthread_join(all[i], NULL);
	return MANY_AT_ONCE * total;
}

static void wait_for(pid_t child)
{
	int status;

	if (child < 0 || waitpid(child, &status, __WALL) != child || status)
		fail("a child");
}

static void child_launches(void)
{
	launch_times(5);
	_exit(0);
}

static uint64_t forks(void)
{
	launch();
	for (uint64_t i = 0; i < total; i++) {
		pid_t child = fork();

		if (!child)
			child_launches();
		wait_for(child);
		launch();
	}
	return 1 + total;
}

/* No handler of fork() runs. */
static uint64_t clones(void)
{
	launch();
	for (uint64_t i = 0; i < total; i++) {
		pid_t child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);

		if (!child)
			child_launches();
		wait_for(child);
		launch();
	}
	return 1 + total;
}

static void fork_here(void *argument)
{
	pid_t child = fork();

	(void)argument;
	if (!child)
		return; /* the call ends in the child as well */
	wait_for(child);
}

static uint64_t fork_inside(void)
{
	pid_t own = getpid();

	launch();
	stub_call_inside("cudaStreamSynchronize", fork_here, NULL);
	cudaStreamSynchronize(NULL);
	if (getpid() != own)
		child_launches();
	launch();
	return 2;
}

static uint64_t vforks(void)
{
	launch();
	for (uint64_t i = 0; i < total; i++) {
		pid_t child = vfork();

		if (!child) {
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		wait_for(child);
		launch();
	}
	return 1 + total;
}

static void jump(void *argument)
{
	(void)argument;
	longjmp(way_out, 1);
}

/* Calls that are left without a return, from others inside. */
static uint64_t jumps(void)
{
	stub_call_inside("cudaStreamSynchronize", jump, NULL);
	for (volatile uint64_t i = 0; i < total; i++) {
		if (!setjmp(way_out))
			cudaStreamSynchronize(NULL);
		launch();
	}
	return total;
}

static void handle(int number)
{
	(void)number;
	in_handler++;
	launch();
}

static void interrupt(void *argument)
{
	(void)argument;
	raise(SIGUSR1);
}

/* Inside calls. */
static uint64_t signals(void)
{
	signal(SIGUSR1, handle);
	stub_call_inside("cudaStreamSynchronize", interrupt, NULL);
	for (uint64_t i = 0; i < total; i++)
		cudaStreamSynchronize(NULL);
	return in_handler;
}

/* Whenever they come. */
static uint64_t timers(void)
{
	struct itimerspec often = {{0, 50000}, {0, 50000}};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	uint64_t launches = 0;
	timer_t timer;

	signal(SIGUSR1, handle);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &often, NULL);
	while ((uint64_t)in_handler < total) {
		launch();
		launches++;
	}
	timer_delete(timer);
	return launches + in_handler;
}

static void last_words(void *argument)
{
	uintptr_t rounds = (uintptr_t)argument;

	launch();
	if (rounds > 1)
		pthread_setspecific(last_key, (void *)(rounds - 1));
}

static void *launch_at_the_end(void *argument)
{
	pthread_setspecific(last_key, argument);
	return NULL;
}

/* From destructors of what is a thread's, again and again. */
static uint64_t destructors(void)
{
	pthread_key_create(&last_key, last_words);
	for (uint64_t i = 0; i < total; i++) {
		pthread_t thread;

		start(&thread, launch_at_the_end, (void *)(uintptr_t)3);
		pthread_join(thread, NULL);
	}
	return 3 * total;
}

/* Of a library that is closed, and opened again. */
static uint64_t reopens(void)
{
	for (uint64_t i = 0; i < total; i++) {
		void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		int (*launch_driver)(void *, unsigned, unsigned, unsigned, unsigned, unsigned,
				     unsigned, unsigned, void *, void **, void **) =
			symbol(library, "cuLaunchKernel");

		if (launch_driver((void *)launch, 3, 2, 1, 64, 1, 1, 0, NULL, NULL, NULL))
			fail("a launch failed");
		dlclose(library);
	}
	return total;
}

static uint64_t without_files(void)
{
	launch_times(total);
	return total;
}

/* There is none left for others. */
static uint64_t keys(void)
{
	pthread_key_t key;

	while (!pthread_key_create(&key, NULL))
		;
	launch_times(total);
	return total;
}

static uint64_t before_main;

__attribute__((constructor(101))) static void launch_before_main(void)
{
	if (getenv("LAUNCH_BEFORE_MAIN")) {
		launch();
		before_main = 1;
	}
}

__attribute__((destructor(101))) static void launch_after_main(void)
{
	if (before_main)
		launch();
}

static uint64_t constructors(void)
{
	return before_main;
}

static const struct {
	const char *name;
	uint64_t (*make)(void);
} kinds[] = {
	{"threads", threads},
	{"threads-at-once", threads_at_once},
	{"forks", forks},
	{"clones", clones},
	{"fork-inside", fork_inside},
	{"vforks", vforks},
	{"jumps", jumps},
	{"signals", signals},
	{"timers", timers},
	{"destructors", destructors},
	{"reopens", reopens},
	{"keys", keys},
	{"constructors", constructors},
	{"launches", without_files},
};

int main(int argc, char **argv)
{
	if (argc > 2)
		total = number(argv[2]);
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (argc > 1 && !strcmp(argv[1], kinds[i].name)) {
			printf("%" PRIu64 "\n", kinds[i].make());
			fflush(stdout);
			return getchar() != EOF;
		}
	}
	fail("hardships KIND [NUMBER]");
}
