/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random traffic with an allocator, and what each of eight places holds at its end.
 *
 *     blocks ALLOCATOR ALLOCATIONS THREADS [KEPT]
 *
 * KEPT blocks are handed out before the first line is printed: the program goes on when it is
 * given a line. It prints what its model says, and ends with its input.
 */
/* So that a stack can be told from others by its frames. */
#pragma GCC optimize("no-omit-frame-pointer")
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLACES	    8
#define MAX_LIVE    400 /* of a thread */
#define MAX_THREADS 16

static void *(*c10_malloc)(int device, size_t size_bytes);
static size_t (*c10_free)(void *address);
static size_t (*c10_block_bytes)(void *address);
static size_t (*c10_allocated_bytes)(int device);

struct held {
	void *address;
	uint64_t size_bytes;
	int place;
};

struct sums {
	uint64_t live_bytes, live_blocks, allocated_bytes, allocated_blocks;
};

static struct worker {
	pthread_t thread;
	uint64_t allocations;
	uint64_t state;
	struct held live[MAX_LIVE];
	int count;
	struct sums sums[PLACES];
	uint64_t freed;
} workers[MAX_THREADS];

static uint64_t next(struct worker *worker)
{
	worker->state = worker->state * 6364136223846793005ull + 1442695040888963407ull;
	return worker->state >> 33;
}

/* Each place is a function of its own, with a call that is no jump. */
#define PLACE(number)                                                                              \
	__attribute__((noinline, noclone)) void *place_##number(size_t size_bytes)                 \
	{                                                                                          \
		void *address = c10_malloc(0, size_bytes);                                         \
		__asm__ volatile("" : "+r"(address));                                              \
		return address;                                                                    \
	}
PLACE(0)
PLACE(1)
PLACE(2)
PLACE(3)
PLACE(4)
PLACE(5)
PLACE(6)
PLACE(7)
static void *(*const places[PLACES])(size_t) = {place_0, place_1, place_2, place_3,
						place_4, place_5, place_6, place_7};

static size_t any_size(struct worker *worker)
{
	uint64_t kind = next(worker) % 16;

	if (kind < 9)
		return 1 + next(worker) % 65536;
	if (kind < 14)
		return 1 + next(worker) % (1 << 20);
	return 1 + next(worker) % (24 << 20);
}

static void take(struct worker *worker)
{
	int place = next(worker) % PLACES;
	struct held *held = &worker->live[worker->count++];

	held->address = places[place](any_size(worker));
	held->place = place;
	held->size_bytes = c10_block_bytes(held->address);
	worker->sums[place].live_bytes += held->size_bytes;
	worker->sums[place].live_blocks++;
	worker->sums[place].allocated_bytes += held->size_bytes;
	worker->sums[place].allocated_blocks++;
}

static void give_back(struct worker *worker)
{
	int which = next(worker) % worker->count;
	struct held held = worker->live[which];

	worker->live[which] = worker->live[--worker->count];
	worker->sums[held.place].live_bytes -= held.size_bytes;
	worker->sums[held.place].live_blocks--;
	worker->freed++;
	c10_free(held.address);
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	for (uint64_t done = 0; done < worker->allocations;) {
		if (!worker->count || (worker->count < MAX_LIVE && next(worker) % 2)) {
			take(worker);
			done++;
		} else {
			give_back(worker);
		}
	}
	return NULL;
}

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	return found;
}

int main(int argc, char **argv)
{
	void *library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
	uint64_t allocations = argc > 3 ? strtoull(argv[2], NULL, 10) : 0, freed = 0;
	int threads = argc > 3 ? atoi(argv[3]) : 0;
	int kept = argc > 4 ? atoi(argv[4]) : 0;
	char line[16];

	if (!library || threads < 1 || threads > MAX_THREADS || kept > MAX_LIVE) {
		fprintf(stderr, "blocks ALLOCATOR ALLOCATIONS THREADS [KEPT]: %s\n", dlerror());
		return 2;
	}
	c10_malloc = function(library, "c10_malloc");
	c10_free = function(library, "c10_free");
	c10_block_bytes = function(library, "c10_block_bytes");
	c10_allocated_bytes = function(library, "c10_allocated_bytes");
	for (int i = 0; i < threads; i++) {
		workers[i].allocations = allocations / threads + (i < (int)(allocations % threads));
		workers[i].state = 7919 * (i + 1);
	}
	while (workers[0].count < kept)
		take(&workers[0]);
	if (kept) {
		printf("{\"pid\": %d, \"before_bytes\": %zu}\n", getpid(), c10_allocated_bytes(0));
		fflush(stdout);
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		/* What was there before has no place that could be known. */
		memset(workers[0].sums, 0, sizeof(workers[0].sums));
		while (workers[0].count)
			c10_free(workers[0].live[--workers[0].count].address);
	}
	for (int i = 0; i < threads; i++)
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	for (int i = 0; i < threads; i++) {
		pthread_join(workers[i].thread, NULL);
		freed += workers[i].freed;
	}
	printf("{\"pid\": %d, \"freed\": %" PRIu64 ", \"allocated_bytes\": %zu, \"places\": [",
	       getpid(), freed, c10_allocated_bytes(0));
	for (int place = 0; place < PLACES; place++) {
		struct sums sums = {};

		for (int i = 0; i < threads; i++) {
			sums.live_bytes += workers[i].sums[place].live_bytes;
			sums.live_blocks += workers[i].sums[place].live_blocks;
			sums.allocated_bytes += workers[i].sums[place].allocated_bytes;
			sums.allocated_blocks += workers[i].sums[place].allocated_blocks;
		}
		printf("%s[%" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", place ? ", " : "",
		       sums.live_bytes, sums.live_blocks, sums.allocated_bytes,
		       sums.allocated_blocks);
	}
	printf("]}\n");
	return 0;
}
