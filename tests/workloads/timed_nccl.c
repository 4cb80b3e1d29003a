/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timed_nccl CUDART NCCL
 *
 * A call meter, as timed is: for every line "KIND CALLS" on stdin it makes that many calls and prints
 * the nanoseconds of CPU time that they took together. The kinds: sync (cudaStreamSynchronize), event (an event
 * recorded and asked for), reduce (ncclAllReduce, on a communicator that is made first).
 */
#include "workload.h"

typedef struct {
	char bytes[128];
} unique_id;

static int (*synchronize)(void *), (*record)(void *, void *), (*query)(void *);
static int (*reduce)(const void *, void *, size_t, int, int, void *, void *);
static int (*get_id)(unique_id *), (*init)(void **, int, unique_id, int);
static void *comm;

static void make(void)
{
	unique_id id;

	if (!comm && (get_id(&id) || init(&comm, 1, id, 0)))
		fail("ncclCommInitRank");
}

static void call(const char *kind, uint64_t calls)
{
	if (!strcmp(kind, "sync"))
		for (uint64_t i = 0; i < calls; i++)
			synchronize((void *)0x100);
	else if (!strcmp(kind, "event"))
		for (uint64_t i = 0; i < calls; i++) {
			record((void *)0x300, (void *)0x200);
			query((void *)0x300);
		}
	else if (!strcmp(kind, "reduce"))
		for (uint64_t i = 0; i < calls; i++)
			reduce(NULL, NULL, 1024, 7, 0, comm, (void *)0x200);
	else
		fail(kind);
}

int main(int argc, char **argv)
{
	void *runtime, *library;
	char kind[32];
	uint64_t calls;

	if (argc < 3)
		fail("timed_nccl CUDART NCCL");
	/* What a collective does inside is not part of what it takes. */
	setenv("NCCL_STUB", "launch=0", 1);
	runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	if (!runtime || !library)
		fail(dlerror());
	synchronize = symbol(runtime, "cudaStreamSynchronize");
	record = symbol(runtime, "cudaEventRecord");
	query = symbol(runtime, "cudaEventQuery");
	reduce = symbol(library, "ncclAllReduce");
	get_id = symbol(library, "ncclGetUniqueId");
	init = symbol(library, "ncclCommInitRank");
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%d\n", getpid());
	while (scanf("%31s %" SCNu64, kind, &calls) == 2) {
		uint64_t start_ns;

		if (!strcmp(kind, "reduce"))
			make();
		start_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		call(kind, calls);
		printf("%" PRIu64 "\n", clock_ns(CLOCK_THREAD_CPUTIME_ID) - start_ns);
	}
	return 0;
}
