/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives CUDART NCCL CALLS
 *
 * Makes exactly CALLS collectives from two threads, as fast as it can: alone, in groups, in groups
 * in groups, by functions that call each other; on communicators of one rank each, some of which
 * are split off others, and one that both threads use. Between them, sends and receives. Prints how
 * many of each there were on each communicator, and their bytes.
 */
#include "workload.h"

#define ID_BYTES      128
#define THREADS	      2
#define OWN	      3 /* communicators of a thread: one, and two that are split off it */
#define OPERATIONS    11
#define BROADCAST     2
#define SEND	      9
#define RECEIVE	      10
#define COLLECTIVES   8 /* operations before SEND */
#define DATATYPES     12
#define MOST_IN_GROUP 9

typedef struct {
	char bytes[ID_BYTES];
} unique_id;

static const uint64_t datatype_bytes[DATATYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

static struct {
	int (*get_id)(unique_id *);
	int (*init)(void **, int, unique_id, int);
	int (*init_config)(void **, int, unique_id, int, void *);
	int (*split)(void *, int, int, void **, void *);
	int (*start)(void);
	int (*end)(void);
	int (*destroy)(void *);
	uint64_t (*hash)(void *);
	/* By operation; with one argument more: */
	void *plain[OPERATIONS], *with_config[OPERATIONS];
	void *bcast;
} nccl;

struct communicator {
	void *handle;
	uint64_t called, calls[OPERATIONS], bytes[OPERATIONS];
};

struct worker {
	pthread_t thread;
	uint64_t calls, random;
	struct communicator own[OWN];
};

static struct communicator shared;
static pthread_mutex_t shared_mutex = PTHREAD_MUTEX_INITIALIZER;

static void check(int result)
{
	if (result)
		fail("a call failed");
}

typedef int reduces(const void *, void *, size_t, int, int, void *, void *, void *);
typedef int reduces_to(const void *, void *, size_t, int, int, int, void *, void *, void *);
typedef int rooted(const void *, void *, size_t, int, int, void *, void *, void *);
typedef int gathers(const void *, void *, size_t, int, void *, void *, void *);
typedef int to_peer(void *, size_t, int, int, void *, void *, void *);

/* All are called with the argument more that the plain ones do not look at. */
static void call(struct communicator *on, int operation, uint64_t *random)
{
	size_t count = draw(random, 0, 1 << 20);
	int datatype = draw(random, 0, DATATYPES - 1), way = draw(random, 0, 3);
	void *function = way == 1 && nccl.with_config[operation] ? nccl.with_config[operation]
								 : nccl.plain[operation];
	void *stream = (void *)(uintptr_t)(0x1000 + 0x10 * draw(random, 0, 2));

	switch (operation) {
	case 1:
	case 5:
		check(((reduces *)function)(NULL, NULL, count, datatype, 0, on->handle, stream,
					    NULL));
		break;
	case 3:
		check(((reduces_to *)function)(NULL, NULL, count, datatype, 0, 0, on->handle,
					       stream, NULL));
		break;
	case BROADCAST:
		if (way == 2) {
			check(((to_peer *)nccl.bcast)(NULL, count, datatype, 0, on->handle, stream,
						      NULL));
			break;
		}
		/* fall through */
	case 7:
	case 8:
		check(((rooted *)function)(NULL, NULL, count, datatype, 0, on->handle, stream,
					   NULL));
		break;
	case 4:
	case 6:
		check(((gathers *)function)(NULL, NULL, count, datatype, on->handle, stream, NULL));
		break;
	default:
		check(((to_peer *)function)(NULL, count, datatype, 0, on->handle, stream, NULL));
		break;
	}
	on->called += operation < SEND;
	on->calls[operation]++;
	on->bytes[operation] += count * datatype_bytes[datatype];
}

static void make(struct communicator *where, int with_config)
{
	int blocking[6] = {0, 0, 0, 0, 1};
	unique_id id;

	check(nccl.get_id(&id));
	if (with_config)
		check(nccl.init_config(&where->handle, 1, id, 0, blocking));
	else
		check(nccl.init(&where->handle, 1, id, 0));
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint64_t *random = &worker->random, left = worker->calls;

	check(nccl.split(worker->own[0].handle, 0, 0, &worker->own[1].handle, NULL));
	check(nccl.start());
	check(nccl.split(worker->own[0].handle, 7, 0, &worker->own[2].handle, NULL));
	check(nccl.end());
	while (left) {
		uint64_t size = draw(random, 1, MOST_IN_GROUP), nested = draw(random, 0, 2);
		int is_shared = draw(random, 0, 3) == 0, in_group = draw(random, 0, 1);

		if (is_shared)
			pthread_mutex_lock(&shared_mutex);
		for (uint64_t i = 0; i < in_group * (1 + nested); i++)
			check(nccl.start());
		for (uint64_t i = 0; i < size && left; i++, left--) {
			struct communicator *on =
				is_shared ? &shared : &worker->own[draw(random, 0, OWN - 1)];

			call(on, draw(random, 1, COLLECTIVES), random);
			if (draw(random, 0, 15) == 0)
				call(on, draw(random, SEND, RECEIVE), random);
		}
		for (uint64_t i = 0; i < in_group * (1 + nested); i++)
			check(nccl.end());
		if (is_shared)
			pthread_mutex_unlock(&shared_mutex);
	}
	return NULL;
}

static void print(const struct communicator *one, const char *separator)
{
	printf("%s{\"id\": \"%016" PRIx64 "\", \"called\": %" PRIu64 ", \"operations\": {",
	       separator, nccl.hash(one->handle), one->called);
	separator = "";
	for (int operation = 1; operation < OPERATIONS; operation++) {
		if (!one->calls[operation])
			continue;
		printf("%s\"%d\": [%" PRIu64 ", %" PRIu64 "]", separator, operation,
		       one->calls[operation], one->bytes[operation]);
		separator = ", ";
	}
	printf("}}");
}

int main(int argc, char **argv)
{
	static const char *const names[OPERATIONS] = {
		NULL,		"ncclAllReduce", "ncclBroadcast",
		"ncclReduce",	"ncclAllGather", "ncclReduceScatter",
		"ncclAlltoAll", "ncclGather",	 "ncclScatter",
		"ncclSend",	"ncclRecv",
	};
	struct worker workers[THREADS] = {};
	uint64_t calls, start_ns;
	void *library;

	if (argc != 4)
		fail("collectives CUDART NCCL CALLS");
	calls = number(argv[3]);
	if (!dlopen(argv[1], RTLD_NOW | RTLD_LOCAL))
		fail(dlerror());
	library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail(dlerror());
	nccl.get_id = symbol(library, "ncclGetUniqueId");
	nccl.init = symbol(library, "ncclCommInitRank");
	nccl.init_config = symbol(library, "ncclCommInitRankConfig");
	nccl.split = symbol(library, "ncclCommSplit");
	nccl.start = symbol(library, "ncclGroupStart");
	nccl.end = symbol(library, "ncclGroupEnd");
	nccl.destroy = symbol(library, "ncclCommDestroy");
	nccl.hash = symbol(library, "stub_comm_hash");
	nccl.bcast = symbol(library, "ncclBcast");
	for (int operation = 1; operation < OPERATIONS; operation++) {
		char with_config[64];

		snprintf(with_config, sizeof(with_config), "%sConfig", names[operation]);
		nccl.plain[operation] = symbol(library, names[operation]);
		nccl.with_config[operation] = dlsym(library, with_config);
	}
	make(&shared, 1);
	start_ns = clock_ns(CLOCK_MONOTONIC);
	for (int t = 0; t < THREADS; t++) {
		workers[t].calls = calls / THREADS + (t < (int)(calls % THREADS));
		workers[t].random = t + 1;
		make(&workers[t].own[0], t);
		if (pthread_create(&workers[t].thread, NULL, work, &workers[t]))
			fail("pthread_create");
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(workers[t].thread, NULL);
	printf("{\"pid\": %d, \"elapsed_ns\": %" PRIu64 ", \"communicators\": [", getpid(),
	       clock_ns(CLOCK_MONOTONIC) - start_ns);
	print(&shared, "");
	for (int t = 0; t < THREADS; t++)
		for (int i = 0; i < OWN; i++)
			print(&workers[t].own[i], ", ");
	printf("]}\n");
	return 0;
}
