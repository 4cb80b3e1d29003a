/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scenarios LIBRARY NAME
 *
 * A small training loop (launch a kernel, wait for it) that one named cause makes slow, a
 * few times and by a known time. What was done to it goes to stdout as one line of JSON:
 *
 *     clocks   one moment on CLOCK_MONOTONIC and on CLOCK_REALTIME
 *     effects  each slow call or gap: where it was, and the causes that were injected,
 *              largest first; "via" is what kept the culprit of a cause itself
 *
 * Times are taken here, from the clock, from who injected, and from schedstat: nothing
 * comes from the agent. The loop has a CPU of its own, its helpers ("hog", "loader", ...)
 * share it or not as the scenario says. Helpers die with the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MS	     1000000ull
#define STEPS	     60
#define FIRST_EFFECT 24 /* the steps before say what is normal */
#define EFFECT_EVERY 10
#define MAX_EFFECTS  24
#define MAX_PARTS    3

#define LAUNCH_NS    (50 * 1000ull) /* of CPU time, in every launch */
#define GPU_NS	     (3 * MS)	    /* of sleep, in every synchronize */

typedef struct {
	unsigned int x, y, z;
} dim3;

/* What one injection did: a cause, and what was behind its culprit. */
struct part {
	const char *kind;
	uint64_t time_ns;
	pid_t pid, tid;
	const char *via;
	uint64_t via_ns;
	pid_t via_pid;
};

struct effect {
	const char *kind, *api;
	uint64_t start_ns, end_ns;
	int parts;
	struct part part[MAX_PARTS];
};

/* A process or thread that does something to the loop when told to. */
struct order {
	uint64_t delay_ns, length_ns;
};

struct helper {
	int orders[2];
	_Atomic pid_t pid, tid;
	_Atomic uint64_t start_ns, end_ns; /* of the last burst; end 0: in it */
	uint64_t work_ns;		   /* what the last order cost it by itself */
	struct order order;
};

static int (*cuda_malloc)(void **, size_t);
static int (*cuda_free)(void *);
static int (*cuda_launch)(const void *, dim3, dim3, void **, size_t, void *);
static int (*cuda_synchronize)(void *);
static int (*cuda_call_inside)(const char *, void (*)(void *), void *);

static struct effect effects[MAX_EFFECTS];
static int effect_count;
static struct effect *effect; /* the one going on, else NULL */
static void (*inside_launch)(void), (*inside_synchronize)(void), (*before_effect)(void);
static uint64_t malloc_ns = LAUNCH_NS;
static int loop_cpu = -1, other_cpu = -1;
static int schedstat = -1;
static struct helper *helpers; /* shared with the processes among them */
static char folder[128];       /* our cgroup */

/* Small things. */

static void fail(const char *what)
{
	fprintf(stderr, "scenarios: %s: %s\n", what, strerror(errno));
	exit(70);
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static void sleep_for(uint64_t duration_ns)
{
	struct timespec left = {duration_ns / 1000000000, duration_ns % 1000000000};

	while (nanosleep(&left, &left) == -1 && errno == EINTR)
		;
}

/* Burn CPU time: being kept from the CPU makes this take longer. */
static void compute(uint64_t cpu_ns)
{
	uint64_t end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + cpu_ns;

	while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
		;
}

/* Poll until a time: what a driver does that waits for room in its queue. */
static void spin(uint64_t duration_ns)
{
	uint64_t end_ns = now_ns() + duration_ns;

	while (now_ns() < end_ns)
		;
}

/* How long the loop's thread has waited for a CPU so far, by the kernel's own account. */
static uint64_t run_queue_ns(void)
{
	char text[64] = "";
	uint64_t on_cpu_ns, wait_ns = 0;

	if (schedstat < 0)
		schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (pread(schedstat, text, sizeof(text) - 1, 0) <= 0 ||
	    sscanf(text, "%" SCNu64 " %" SCNu64, &on_cpu_ns, &wait_ns) != 2)
		fail("schedstat");
	return wait_ns;
}

static void pin(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		fail("sched_setaffinity");
}

static void choose_cpus(void)
{
	cpu_set_t cpus;

	if (sched_getaffinity(0, sizeof(cpus), &cpus))
		fail("sched_getaffinity");
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus)) {
			other_cpu = loop_cpu < 0 ? cpu : loop_cpu;
			loop_cpu = cpu;
		}
}

/* Win the CPU from all that is less urgent: as a real-time task, else by priority. */
static int become_urgent(int urgency)
{
	struct sched_param parameters = {.sched_priority = urgency};

	return sched_setscheduler(0, SCHED_FIFO, &parameters) && setpriority(PRIO_PROCESS, 0, -20);
}

static void write_file(const char *name, const char *text)
{
	char path[192];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		fail(path);
	close(fd);
}

static void inject(const char *kind, uint64_t time_ns, pid_t pid, pid_t tid)
{
	effect->part[effect->parts++] =
		(struct part){.kind = kind, .time_ns = time_ns, .pid = pid, .tid = tid};
}

/* Helpers. */

static struct helper *new_helper(int number)
{
	struct helper *helper = &helpers[number];

	if (pipe2(helper->orders, O_CLOEXEC))
		fail("pipe");
	return helper;
}

static void begin_burst(struct helper *helper)
{
	helper->end_ns = 0;
	helper->start_ns = now_ns();
}

static void end_burst(struct helper *helper)
{
	helper->end_ns = now_ns();
}

static void give_order(struct helper *helper, uint64_t delay_ns, uint64_t length_ns)
{
	struct order order = {delay_ns, length_ns};

	helper->start_ns = helper->end_ns = 0;
	if (write(helper->orders[1], &order, sizeof(order)) != sizeof(order))
		fail("order");
}

static void await_start(struct helper *helper)
{
	while (!helper->start_ns)
		sched_yield();
}

static uint64_t await_end(struct helper *helper)
{
	while (!helper->end_ns)
		sched_yield();
	return helper->end_ns - helper->start_ns;
}

static int next_order(struct helper *helper)
{
	ssize_t size;

	while ((size = read(helper->orders[0], &helper->order, sizeof(helper->order))) < 0 &&
	       errno == EINTR)
		;
	return size == sizeof(helper->order);
}

/* Start a process that is to die with this one. */
static struct helper *start_process(int number, const char *comm, int cpu,
				    void (*work)(struct helper *))
{
	struct helper *helper = new_helper(number);
	pid_t child = fork();

	if (child < 0)
		fail("fork");
	if (child) {
		close(helper->orders[0]);
		helper->pid = helper->tid = child;
		return helper;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_NAME, comm);
	close(helper->orders[1]);
	pin(cpu);
	work(helper);
	_exit(0);
}

struct start {
	struct helper *helper;
	const char *comm;
	int cpu;
	void (*work)(struct helper *);
};

static void *run_thread(void *argument)
{
	struct start start = *(struct start *)argument;

	prctl(PR_SET_NAME, start.comm);
	pin(start.cpu);
	start.helper->pid = getpid();
	start.helper->tid = syscall(SYS_gettid);
	free(argument);
	start.work(start.helper);
	return NULL;
}

static struct helper *start_thread(int number, const char *comm, int cpu,
				   void (*work)(struct helper *))
{
	struct helper *helper = new_helper(number);
	struct start *start = malloc(sizeof(*start));
	pthread_t thread;

	*start = (struct start){helper, comm, cpu, work};
	if (pthread_create(&thread, NULL, run_thread, start))
		fail("pthread_create");
	while (!helper->tid)
		sched_yield();
	return helper;
}

/* A process that wants a CPU for a while, and gets it. */
static void hog(struct helper *helper)
{
	if (become_urgent(10))
		fail("neither SCHED_FIFO nor a higher priority is allowed");
	while (next_order(helper)) {
		if (helper->order.delay_ns)
			sleep_for(helper->order.delay_ns);
		begin_burst(helper);
		spin(helper->order.length_ns);
		end_burst(helper);
	}
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void hold_mutex(struct helper *helper)
{
	while (next_order(helper)) {
		pthread_mutex_lock(&mutex);
		begin_burst(helper);
		sleep_for(helper->order.length_ns);
		end_burst(helper);
		pthread_mutex_unlock(&mutex);
	}
}

static void stop_parent(struct helper *helper)
{
	while (next_order(helper)) {
		kill(getppid(), SIGSTOP);
		begin_burst(helper);
		sleep_for(helper->order.length_ns);
		end_burst(helper);
		kill(getppid(), SIGCONT);
	}
}

/* The training loop. */

static void in_malloc(void *unused)
{
	compute(malloc_ns);
}

static void in_launch(void *unused)
{
	compute(LAUNCH_NS);
	if (inside_launch)
		inside_launch();
}

static void in_synchronize(void *unused)
{
	if (inside_synchronize)
		inside_synchronize();
	sleep_for(GPU_NS);
}

static void open_cuda(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!handle) {
		fprintf(stderr, "scenarios: %s\n", dlerror());
		exit(70);
	}
	cuda_malloc = dlsym(handle, "cudaMalloc");
	cuda_free = dlsym(handle, "cudaFree");
	cuda_launch = dlsym(handle, "cudaLaunchKernel");
	cuda_synchronize = dlsym(handle, "cudaStreamSynchronize");
	cuda_call_inside = dlsym(handle, "stub_call_inside");
	if (!cuda_malloc || !cuda_free || !cuda_launch || !cuda_synchronize || !cuda_call_inside)
		fail("not the library that this program needs");
	cuda_call_inside("cudaMalloc", in_malloc, NULL);
	cuda_call_inside("cudaLaunchKernel", in_launch, NULL);
	cuda_call_inside("cudaStreamSynchronize", in_synchronize, NULL);
}

static void launch(void)
{
	cuda_launch(NULL, (dim3){8, 1, 1}, (dim3){128, 1, 1}, NULL, 0, NULL);
}

static struct effect *begin_effect(const char *kind, const char *api)
{
	if (effect_count == MAX_EFFECTS)
		fail("too many effects");
	effect = &effects[effect_count++];
	effect->kind = kind;
	effect->api = api;
	effect->start_ns = now_ns();
	return effect;
}

static void end_effect(void)
{
	effect->end_ns = now_ns();
	effect = NULL;
}

static int is_slow(int step)
{
	return step >= FIRST_EFFECT && (step - FIRST_EFFECT) % EFFECT_EVERY == 0;
}

/* Run the loop; the hook that is set makes some steps slow. */
static void train(void (*in_a_launch)(void), void (*in_a_synchronize)(void), void (*in_a_gap)(void))
{
	for (int step = 0; step < STEPS; step++) {
		int slow = is_slow(step);

		if (slow && before_effect)
			before_effect();
		compute(20 * 1000);
		if (slow && in_a_gap) {
			begin_effect("slow_gap", "cudaLaunchKernel");
			in_a_gap();
			end_effect();
		}
		if (slow && in_a_launch) {
			begin_effect("slow_call", "cudaLaunchKernel");
			inside_launch = in_a_launch;
		}
		launch();
		if (slow && in_a_launch)
			end_effect();
		inside_launch = NULL;
		if (slow && in_a_synchronize) {
			begin_effect("slow_call", "cudaStreamSynchronize");
			inside_synchronize = in_a_synchronize;
		}
		cuda_synchronize(NULL);
		if (slow && in_a_synchronize)
			end_effect();
		inside_synchronize = NULL;
	}
}

static void print_truth(const char *name)
{
	printf("{\"scenario\": \"%s\", \"pid\": %d, \"tid\": %ld, \"monotonic_ns\": %" PRIu64
	       ", \"unix_ns\": %" PRIu64 ", \"effects\": [",
	       name, getpid(), syscall(SYS_gettid), now_ns(), clock_ns(CLOCK_REALTIME));
	for (int i = 0; i < effect_count; i++) {
		struct effect *e = &effects[i];

		printf("%s{\"kind\": \"%s\", \"api\": \"%s\", \"start_ns\": %" PRIu64
		       ", \"end_ns\": %" PRIu64 ", \"causes\": [",
		       i ? ", " : "", e->kind, e->api, e->start_ns, e->end_ns);
		for (int p = 0; p < e->parts; p++) {
			struct part *part = &e->part[p];

			printf("%s{\"kind\": \"%s\", \"time_ns\": %" PRIu64
			       ", \"pid\": %d, \"tid\": %d",
			       p ? ", " : "", part->kind, part->time_ns, part->pid, part->tid);
			if (part->via)
				printf(", \"via\": {\"kind\": \"%s\", \"time_ns\": %" PRIu64
				       ", \"pid\": %d}",
				       part->via, part->via_ns, part->via_pid);
			printf("}");
		}
		printf("]}");
	}
	printf("]}\n");
}

/* The scenarios. */

#define INJECTED_NS (40 * MS)

/* A hog takes the CPU from a launch that had it. */
static void be_preempted(void)
{
	compute(MS);
	give_order(&helpers[0], 0, INJECTED_NS);
	compute(2 * MS);
	inject("preemption", await_end(&helpers[0]), helpers[0].pid, helpers[0].tid);
}

static void preemption(void)
{
	start_process(0, "hog", loop_cpu, hog);
	train(be_preempted, NULL, NULL);
}

/* The device is done while a hog has the CPU. */
static void wake_late(void)
{
	uint64_t wait_ns = run_queue_ns();

	give_order(&helpers[0], MS, INJECTED_NS + GPU_NS);
	sleep_for(GPU_NS);
	inject("run_queue", run_queue_ns() - wait_ns, helpers[0].pid, helpers[0].tid);
}

static void late_wakeup(void)
{
	start_process(0, "hog", loop_cpu, hog);
	train(NULL, wake_late, NULL);
}

/* Another thread holds the lock that a launch needs. */
static void wait_for_mutex(uint64_t held_ns)
{
	struct helper *holder = &helpers[1];
	uint64_t start_ns, wait_ns;

	give_order(holder, 0, held_ns);
	await_start(holder);
	start_ns = now_ns();
	wait_ns = run_queue_ns();
	pthread_mutex_lock(&mutex);
	wait_ns = run_queue_ns() - wait_ns;
	inject("lock", now_ns() - start_ns - wait_ns, holder->pid, holder->tid);
	pthread_mutex_unlock(&mutex);
}

static void lock_mutex(void)
{
	wait_for_mutex(INJECTED_NS);
}

static void lock(void)
{
	start_thread(1, "holder", other_cpu, hold_mutex);
	train(lock_mutex, NULL, NULL);
}

/* Data comes through a pipe from a loader, whose work is set by the scenario. */
static int results[2];
static void (*load)(struct helper *);

static void serve(struct helper *helper)
{
	while (next_order(helper)) {
		begin_burst(helper);
		load(helper);
		end_burst(helper);
		if (write(results[1], "", 1) != 1)
			_exit(1);
	}
}

static void start_loader(int number, void (*work)(struct helper *))
{
	load = work;
	if (pipe(results))
		fail("pipe");
	start_process(number, "loader", other_cpu, serve);
}

static uint64_t await_data(struct helper *loader)
{
	uint64_t start_ns = now_ns(), wait_ns = run_queue_ns();
	char byte;

	give_order(loader, 0, 0);
	if (read(results[0], &byte, 1) != 1)
		fail("the loader ended");
	wait_ns = run_queue_ns() - wait_ns;
	return now_ns() - start_ns - wait_ns;
}

static void load_from_memory(struct helper *helper)
{
	compute(MS);
}

/* The loader has data to compute, and a hog has its CPU. */
static void starve_loader(void)
{
	struct helper *hog = &helpers[0], *loader = &helpers[2];
	uint64_t time_ns, asked_ns;

	give_order(hog, 0, INJECTED_NS);
	await_start(hog);
	asked_ns = now_ns();
	time_ns = await_data(loader);
	inject("ipc", time_ns, loader->pid, loader->tid);
	effect->part[0].via = "run_queue";
	effect->part[0].via_ns = loader->start_ns - asked_ns;
	effect->part[0].via_pid = hog->pid;
}

static void starved_loader(void)
{
	start_process(0, "hog", other_cpu, hog);
	start_loader(2, load_from_memory);
	train(NULL, NULL, starve_loader);
}

/*
 * The loader reads from the disk, past the page cache, in one read that takes about the
 * injected time on this disk: the same pages take in one part of the file after another.
 */
#define PART_BYTES (4 << 20)
#define PARTS	   64

static int disk_file = -1;
static int parts;
static struct iovec disk_buffer[PARTS];

static uint64_t read_parts(int count)
{
	uint64_t start_ns = now_ns();

	if (preadv(disk_file, disk_buffer, count, 0) != (ssize_t)count * PART_BYTES)
		fail("read");
	return now_ns() - start_ns;
}

static void open_disk_file(void)
{
	char path[] = "/var/tmp/otel-gpu-demo-XXXXXX";
	void *pages = mmap(NULL, PART_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	disk_file = mkostemp(path, O_CLOEXEC);
	if (disk_file < 0 || unlink(path))
		fail(path);
	memset(pages, 1, PART_BYTES);
	for (int part = 0; part < PARTS; part++)
		disk_buffer[part] = (struct iovec){pages, PART_BYTES};
	/* A hole would need no reading, and data not yet written would be written first. */
	if (pwritev(disk_file, disk_buffer, PARTS, 0) != (ssize_t)PARTS * PART_BYTES ||
	    fsync(disk_file) || fcntl(disk_file, F_SETFL, O_DIRECT))
		fail("the file system of /var/tmp does not do direct I/O");
	read_parts(PARTS / 2);
	parts = 1 + INJECTED_NS * (PARTS / 2) / read_parts(PARTS / 2);
	if (parts > PARTS)
		parts = PARTS;
}

static void load_from_disk(struct helper *helper)
{
	uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

	helper->work_ns = read_parts(parts);
	helper->work_ns -= clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
}

static void read_disk(void)
{
	struct helper *loader = &helpers[2];

	inject("ipc", await_data(loader), loader->pid, loader->tid);
	effect->part[0].via = "io";
	effect->part[0].via_ns = loader->work_ns;
}

static void disk(void)
{
	open_disk_file();
	start_loader(2, load_from_disk);
	train(NULL, NULL, read_disk);
}

/* A cgroup of our own, in whichever hierarchy has the controller. */

static void leave_cgroup(void)
{
	char parent[192];
	int fd;

	snprintf(parent, sizeof(parent), "%s/../cgroup.procs", folder);
	fd = open(parent, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1 || rmdir(folder))
		perror(folder);
}

/* 1: the old interface. 2: the new one. */
static int make_cgroup(const char *controller)
{
	struct stat old;
	int version = 2;

	snprintf(folder, sizeof(folder), "/sys/fs/cgroup/%s/cgroup.procs", controller);
	if (!stat(folder, &old))
		version = 1;
	snprintf(folder, sizeof(folder), "/sys/fs/cgroup/%s/otel-gpu-demo-%d",
		 version == 1 ? controller : "", getpid());
	if (mkdir(folder, 0755))
		fail(folder);
	atexit(leave_cgroup);
	return version;
}

#define OVER_QUOTA_NS (22 * MS)

/* A thread that was put aside also waits for the CPU that it was put aside from. */
static void exceed_quota(void)
{
	compute(OVER_QUOTA_NS);
	inject("cpu_quota", now_ns() - effect->start_ns - OVER_QUOTA_NS - LAUNCH_NS, 0, 0);
}

/* 10 ms of CPU time in every 100 ms. */
static void cpu_quota(void)
{
	if (make_cgroup("cpu") == 1) {
		write_file("cpu.cfs_period_us", "100000");
		write_file("cpu.cfs_quota_us", "10000");
	} else {
		write_file("cpu.max", "10000 100000");
	}
	write_file("cgroup.procs", "0");
	/* Throttling shows in counters that grow: they are to be read before and after. */
	sleep_for(400 * MS);
	train(exceed_quota, NULL, NULL);
	sleep_for(400 * MS);
}

/*
 * Page tables of a large process are copied while nothing else is done. It has its weights
 * mapped over and over, so that it is large and the machine's memory need not be.
 */
#define WEIGHT_BYTES (64ull << 20)
#define WEIGHT_MAPS  96

static pid_t children[STEPS];
static int child_count;

static void fork_child(void)
{
	uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	pid_t child = fork();

	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	if (child < 0)
		fail("fork");
	cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
	inject("fork", cpu_ns, getpid(), syscall(SYS_gettid));
	children[child_count++] = child;
}

static void large_fork(void)
{
	int weights = memfd_create("weights", MFD_CLOEXEC);

	if (weights < 0 || ftruncate(weights, WEIGHT_BYTES))
		fail("memfd");
	for (int i = 0; i < WEIGHT_MAPS; i++) {
		char *map =
			mmap(NULL, WEIGHT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, weights, 0);

		if (map == MAP_FAILED)
			fail("mmap");
		for (size_t page = 0; page < WEIGHT_BYTES; page += 4096)
			*(volatile char *)(map + page);
		/* Page tables of what was never written are not copied. */
		*map = 1;
	}
	train(NULL, NULL, fork_child);
	while (child_count)
		kill(children[--child_count], SIGKILL);
}

/* Pages can be had only when dirty ones of the page cache are written first. */
#define LIMIT_BYTES (128ull << 20)

static int cache_file = -1;

static void dirty_cache(void)
{
	static char block[1 << 20];

	memset(block, 1, sizeof(block));
	for (size_t done = 0; done < LIMIT_BYTES * 3 / 4; done += sizeof(block))
		if (pwrite(cache_file, block, sizeof(block), done) != sizeof(block))
			fail("page cache");
}

/* Returns how long it was blocked. */
static uint64_t take_memory(void)
{
	uint64_t blocked_ns, wait_ns = run_queue_ns(), start_ns = now_ns();
	uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	char *memory = mmap(NULL, LIMIT_BYTES / 2, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* Fewer faults, so that the time goes to finding the memory. */
	madvise(memory, LIMIT_BYTES / 2, MADV_HUGEPAGE);
	memset(memory, 1, LIMIT_BYTES / 2);
	cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns;
	blocked_ns = now_ns() - start_ns - cpu_ns - (run_queue_ns() - wait_ns);
	munmap(memory, LIMIT_BYTES / 2);
	return blocked_ns;
}

static void need_memory(void)
{
	inject("reclaim", take_memory(), 0, 0);
}

static void memory_limit(void)
{
	char path[] = "/var/tmp/otel-gpu-demo-XXXXXX", limit[32];

	cache_file = mkostemp(path, O_CLOEXEC);
	if (cache_file < 0 || unlink(path))
		fail(path);
	snprintf(limit, sizeof(limit), "%llu", LIMIT_BYTES);
	write_file(make_cgroup("memory") == 1 ? "memory.limit_in_bytes" : "memory.max", limit);
	write_file("cgroup.procs", "0");
	/* The first time is about the disk and the host, not about the limit. */
	dirty_cache();
	take_memory();
	before_effect = dirty_cache;
	train(need_memory, NULL, NULL);
}

static void be_stopped(void)
{
	give_order(&helpers[3], 0, INJECTED_NS);
	compute(3 * MS);
	inject("stopped", await_end(&helpers[3]), helpers[3].pid, helpers[3].tid);
}

static void stopped(void)
{
	start_process(3, "stopper", other_cpu, stop_parent);
	train(be_stopped, NULL, NULL);
}

/* The device has more to do, and the host waits for it as it should. */
static void wait_for_gpu(void)
{
	uint64_t start_ns = now_ns();

	sleep_for(INJECTED_NS);
	inject("gpu_wait", now_ns() - start_ns + GPU_NS, 0, 0);
}

static void gpu_wait(void)
{
	train(NULL, wait_for_gpu, NULL);
}

static void wait_for_queue(void)
{
	uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);

	spin(INJECTED_NS);
	inject("gpu_backpressure", clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_ns, 0, 0);
}

static void gpu_backpressure(void)
{
	train(wait_for_queue, NULL, NULL);
}

static void first_call(void)
{
	void *address;

	malloc_ns = INJECTED_NS * 2;
	begin_effect("slow_call", "cudaMalloc");
	cuda_malloc(&address, 1 << 20);
	inject("first_call", malloc_ns, 0, 0);
	end_effect();
	malloc_ns = LAUNCH_NS;
	for (int i = 0; i < 20; i++)
		cuda_malloc(&address, 1 << 20);
	train(NULL, NULL, NULL);
}

/*
 * Memory is allocated and freed in every step, and from some step on allocating costs more
 * in each. What is noted is the end of it.
 */
static void allocator_churn(void)
{
	void *address;

	for (int step = 0; step < 2 * STEPS; step++) {
		int rise = step - STEPS, slow = rise >= STEPS - MAX_EFFECTS;

		malloc_ns = LAUNCH_NS + (rise > 0 ? rise * MS / 2 : 0);
		if (slow)
			begin_effect("slow_call", "cudaMalloc");
		cuda_malloc(&address, 1 << 20);
		if (slow) {
			inject("allocator_churn", malloc_ns, 0, 0);
			end_effect();
		}
		launch();
		cuda_synchronize(NULL);
		cuda_free(address);
	}
}

static void clean(void)
{
	train(NULL, NULL, NULL);
	train(NULL, NULL, NULL);
}

/* First the hog, for twice the time, then the lock. */
static void suffer_both(void)
{
	compute(MS);
	give_order(&helpers[0], 0, INJECTED_NS);
	compute(2 * MS);
	inject("preemption", await_end(&helpers[0]), helpers[0].pid, helpers[0].tid);
	wait_for_mutex(INJECTED_NS / 2);
}

static void two_causes(void)
{
	start_process(0, "hog", loop_cpu, hog);
	start_thread(1, "holder", other_cpu, hold_mutex);
	train(suffer_both, NULL, NULL);
}

static const struct scenario {
	const char *name;
	void (*run)(void);
	int unpinned;
	int fair; /* not as a real-time task */
} scenarios[] = {
	{"preemption", preemption},
	{"late-wakeup", late_wakeup},
	{"lock", lock},
	{"starved-loader", starved_loader},
	{"disk", disk},
	/* Quotas are not for real-time tasks. */
	{"cpu-quota", cpu_quota, .fair = 1},
	/* Its children begin on its CPU and would take it away. */
	{"large-fork", large_fork, .unpinned = 1},
	{"memory-limit", memory_limit},
	{"stopped", stopped},
	{"gpu-wait", gpu_wait},
	{"gpu-backpressure", gpu_backpressure},
	{"first-call", first_call},
	/* Real-time tasks may not have a CPU for this long. */
	{"allocator-churn", allocator_churn, .fair = 1},
	{"clean", clean},
	{"two-causes", two_causes},
};

int main(int argc, char **argv)
{
	const struct scenario *scenario = scenarios;

	if (argc != 3)
		fail("scenarios LIBRARY NAME");
	while (strcmp(scenario->name, argv[2]))
		if (++scenario == scenarios + sizeof(scenarios) / sizeof(*scenarios))
			fail(argv[2]);
	helpers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (helpers == MAP_FAILED)
		fail("mmap");
	prctl(PR_SET_NAME, "trainer");
	/* Only what is injected is to be in the way. Where that is not allowed, so be it. */
	if (scenario->fair)
		setpriority(PRIO_PROCESS, 0, -20);
	else
		become_urgent(1);
	choose_cpus();
	if (!scenario->unpinned)
		pin(loop_cpu);
	open_cuda(argv[1]);
	scenario->run();
	print_truth(scenario->name);
	return 0;
}
