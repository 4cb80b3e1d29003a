/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks CUDART NCCL RANKS COLLECTIVES [NAME=NUMBER ...] [gate=FIFO]
 *
 * As many processes as RANKS that train together as torch's do: each step works, queues an
 * all-reduce on a stream for communication, records an event behind it, and has the stream for
 * computation wait for that. A watchdog thread of each rank asks whether the events are over.
 *
 *     pace_us      sleep before each collective
 *     work_us      burn the CPU before each collective; work_rank: only this rank
 *     work_cpu     the CPU that work_rank runs on
 *     elements     of each collective, floats (1024)
 *     sync_every   synchronize the stream for computation after so many (10)
 *     poll_ms      pause of the watchdog (20)
 *     stop_rank, stop_at   this rank stops before its collective of this number: for stop_ms, else
 *                  until a byte can be read from the gate, else for ever
 *     differ_rank, differ_at   this rank asks for one element more in this collective
 *     never_from   the collectives from this number on are never done
 *     device_us    how long a collective takes once all ranks are there
 *
 * Prints a line of each rank when its communicator is there, and one when it is through.
 */
#include "workload.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define ID_BYTES 128
#define EVENTS	 256
#define FLOAT32	 7
#define SUM	 0

typedef struct {
	char bytes[ID_BYTES];
} unique_id;

struct shared {
	_Atomic int ready;
	unique_id id;
};

static struct {
	int (*set_device)(int);
	int (*stream_create)(void **);
	int (*event_create)(void **, unsigned);
	int (*event_record)(void *, void *);
	int (*event_query)(void *);
	int (*stream_wait_event)(void *, void *, unsigned);
	int (*stream_synchronize)(void *);
	int (*launch)(const void *, dim3, dim3, void **, size_t, void *);
} cuda;

static struct {
	int (*get_id)(unique_id *);
	int (*init)(void **, int, unique_id, int);
	int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
	int (*async_error)(void *, int *);
	int (*destroy)(void *);
	uint64_t (*hash)(void *);
} nccl;

static uint64_t queued, over; /* collectives */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *events[EVENTS], *comm;
static int arguments;
static char **argument;

static const char *text(const char *name)
{
	size_t length = strlen(name);

	for (int i = 5; i < arguments; i++)
		if (!strncmp(argument[i], name, length) && argument[i][length] == '=')
			return argument[i] + length + 1;
	return NULL;
}

static int64_t setting(const char *name, int64_t otherwise)
{
	return text(name) ? (int64_t)number(text(name)) : otherwise;
}

static void check(int result, const char *what)
{
	if (result)
		fail(what);
}

static void *open_library(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!handle)
		fail(dlerror());
	return handle;
}

static void open_libraries(void)
{
	void *runtime = open_library(argument[1]), *library = open_library(argument[2]);

	cuda.set_device = symbol(runtime, "cudaSetDevice");
	cuda.stream_create = symbol(runtime, "cudaStreamCreate");
	cuda.event_create = symbol(runtime, "cudaEventCreateWithFlags");
	cuda.event_record = symbol(runtime, "cudaEventRecord");
	cuda.event_query = symbol(runtime, "cudaEventQuery");
	cuda.stream_wait_event = symbol(runtime, "cudaStreamWaitEvent");
	cuda.stream_synchronize = symbol(runtime, "cudaStreamSynchronize");
	cuda.launch = symbol(runtime, "cudaLaunchKernel");
	nccl.get_id = symbol(library, "ncclGetUniqueId");
	nccl.init = symbol(library, "ncclCommInitRank");
	nccl.all_reduce = symbol(library, "ncclAllReduce");
	nccl.async_error = symbol(library, "ncclCommGetAsyncError");
	nccl.destroy = symbol(library, "ncclCommDestroy");
	nccl.hash = symbol(library, "stub_comm_hash");
}

/* Asks in order, as torch does, so that an end is known once all before it are. */
static void *watch(void *last)
{
	uint64_t pause_ns = setting("poll_ms", 20) * 1000000, collectives = *(uint64_t *)last;
	int error;

	while (over < collectives) {
		for (;;) {
			pthread_mutex_lock(&mutex);
			uint64_t known = queued;
			pthread_mutex_unlock(&mutex);
			if (over >= known || cuda.event_query(events[over % EVENTS]))
				break;
			pthread_mutex_lock(&mutex);
			over++;
			pthread_mutex_unlock(&mutex);
		}
		check(nccl.async_error(comm, &error), "ncclCommGetAsyncError");
		sleep_ns(pause_ns);
	}
	return NULL;
}

static void stop(void)
{
	int64_t stop_ms = setting("stop_ms", 0);
	char byte;
	int gate;

	if (stop_ms) {
		sleep_ns(stop_ms * 1000000);
		return;
	}
	while (!text("gate"))
		pause();
	gate = open(text("gate"), O_RDONLY | O_CLOEXEC);
	if (gate < 0 || read(gate, &byte, 1) < 0)
		fail("gate");
	close(gate);
}

static void work(int rank)
{
	uint64_t end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) + setting("work_us", 0) * 1000;

	if (setting("work_rank", rank) == rank)
		while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)
			;
}

static void wait_for_room(void)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		int has_room = queued - over < EVENTS;
		pthread_mutex_unlock(&mutex);
		if (has_room)
			return;
		sleep_ns(100000);
	}
}

static void train(int rank, uint64_t collectives, void *communication, void *computation)
{
	uint64_t elements = setting("elements", 1024), pace_ns = setting("pace_us", 0) * 1000;
	uint64_t sync_every = setting("sync_every", 10);
	dim3 grid = {1, 1, 1}, block = {64, 1, 1};

	for (uint64_t n = 1; n <= collectives; n++) {
		int differs = rank == setting("differ_rank", -1) &&
			      n == (uint64_t)setting("differ_at", 0);

		wait_for_room();
		work(rank);
		if (pace_ns)
			sleep_ns(pace_ns);
		check(cuda.launch((void *)train, grid, block, NULL, 0, computation), "launch");
		if (rank == setting("stop_rank", -1) && n == (uint64_t)setting("stop_at", 0))
			stop();
		check(nccl.all_reduce(NULL, NULL, elements + differs, FLOAT32, SUM, comm,
				      communication),
		      "ncclAllReduce");
		check(cuda.event_record(events[(n - 1) % EVENTS], communication), "record");
		check(cuda.stream_wait_event(computation, events[(n - 1) % EVENTS], 0), "wait");
		pthread_mutex_lock(&mutex);
		queued = n;
		pthread_mutex_unlock(&mutex);
		if (sync_every && n % sync_every == 0)
			check(cuda.stream_synchronize(computation), "synchronize");
	}
	check(cuda.stream_synchronize(computation), "synchronize");
}

static int run(int rank, int ranks, uint64_t collectives, struct shared *shared)
{
	void *communication, *computation;
	pthread_t watchdog;
	uint64_t start_ns;

	if (rank == setting("work_rank", -1) && text("work_cpu")) {
		cpu_set_t cpus;

		CPU_ZERO(&cpus);
		CPU_SET(setting("work_cpu", 0), &cpus);
		check(sched_setaffinity(0, sizeof(cpus), &cpus), "sched_setaffinity");
	}
	open_libraries();
	check(cuda.set_device(rank % 2), "cudaSetDevice");
	check(cuda.stream_create(&communication), "cudaStreamCreate");
	check(cuda.stream_create(&computation), "cudaStreamCreate");
	for (int i = 0; i < EVENTS; i++)
		check(cuda.event_create(&events[i], 2), "cudaEventCreate");
	if (!rank) {
		check(nccl.get_id(&shared->id), "ncclGetUniqueId");
		shared->ready = 1;
	}
	while (!shared->ready)
		sleep_ns(100000);
	check(nccl.init(&comm, ranks, shared->id, rank), "ncclCommInitRank");
	printf("{\"rank\": %d, \"pid\": %d, \"comm\": \"%016" PRIx64 "\"}\n", rank, getpid(),
	       nccl.hash(comm));
	fflush(stdout);
	start_ns = clock_ns(CLOCK_MONOTONIC);
	check(pthread_create(&watchdog, NULL, watch, &collectives), "pthread_create");
	train(rank, collectives, communication, computation);
	pthread_join(watchdog, NULL);
	printf("{\"rank\": %d, \"pid\": %d, \"called\": %" PRIu64 ", \"over\": %" PRIu64
	       ", \"elapsed_ns\": %" PRIu64 "}\n",
	       rank, getpid(), queued, over, clock_ns(CLOCK_MONOTONIC) - start_ns);
	fflush(stdout);
	check(nccl.destroy(comm), "ncclCommDestroy");
	return 0;
}

/* Start a rank as a launcher does: its own program, with its place in the environment. */
static void start(int rank, int ranks, int file)
{
	char value[96];

	if (fork())
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(value, sizeof(value), "%d", rank);
	setenv("RANK", value, 1);
	setenv("LOCAL_RANK", value, 1);
	snprintf(value, sizeof(value), "%d", ranks);
	setenv("WORLD_SIZE", value, 1);
	snprintf(value, sizeof(value), "%d", file);
	setenv("RANKS_FILE", value, 1);
	snprintf(value, sizeof(value), "never_from=%s,device_ns=%s000",
		 text("never_from") ? text("never_from") : "0xffffffffffffffff",
		 text("device_us") ? text("device_us") : "0");
	setenv("NCCL_STUB", value, 1);
	execv("/proc/self/exe", argument);
	fail("execv");
}

int main(int argc, char **argv)
{
	struct shared *shared;
	const char *inherited = getenv("RANKS_FILE");
	int file, ranks, status, failed = 0;

	arguments = argc;
	argument = argv;
	if (argc < 5)
		fail("ranks CUDART NCCL RANKS COLLECTIVES [NAME=NUMBER ...]");
	ranks = (int)number(argv[3]);
	file = inherited ? (int)number(inherited) : memfd_create("ranks", 0);
	if (file < 0 || (!inherited && ftruncate(file, sizeof(*shared))))
		fail("memfd_create");
	if (!inherited) {
		for (int rank = 0; rank < ranks; rank++)
			start(rank, ranks, file);
		while (wait(&status) > 0)
			failed |= status;
		return failed ? 1 : 0;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (shared == MAP_FAILED)
		fail("mmap");
	return run((int)number(getenv("RANK")), ranks, number(argv[4]), shared);
}
