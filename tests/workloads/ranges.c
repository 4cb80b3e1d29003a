/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranges LIBRARY THREADS ROUNDS
 *
 * Marks ranges as a program with NVTX's headers does, which load what NVTX_INJECTION64_PATH names and
 * hand it tables of functions; and makes calls in them, each of a number of bytes that says where:
 *
 *     thread << 20 | round << 4 | 1    in the range "outer thread/round"
 *                                 2    in "inner", a registered name of the domain "solver", in that
 *                                 3    in the outer one again
 *                                 4    in none
 *
 * Then come other kinds of ranges, one thread and its child; see main. Prints a line of JSON.
 */
#include "workload.h"

#include <wchar.h>

struct attributes {
	uint16_t version, size;
	uint32_t category;
	int32_t color_kind;
	uint32_t color;
	int32_t payload_kind, reserved;
	uint64_t payload;
	int32_t message_kind;
	const void *message;
};

enum {
	CORE = 1,
	CORE_2 = 5,
	ASCII = 1,
	UNICODE = 2,
	REGISTERED = 3
};

/* As NVTX's headers have them: NvtxCallbackIdCore and NvtxCallbackIdCore2. */
static struct {
	void *none;
	void *mark_ex;
	void (*mark)(const char *);
	void (*mark_wide)(const wchar_t *);
	uint64_t (*start_ex)(const struct attributes *);
	uint64_t (*start)(const char *);
	void *start_wide;
	void (*end)(uint64_t);
	int (*push_ex)(const struct attributes *);
	int (*push)(const char *);
	int (*push_wide)(const wchar_t *);
	int (*pop)(void);
	void *others[4];
} core;

static struct {
	void *none;
	void (*mark)(void *, const struct attributes *);
	uint64_t (*start)(void *, const struct attributes *);
	void (*end)(void *, uint64_t);
	int (*push)(void *, const struct attributes *);
	int (*pop)(void *);
	void *others[4];
	void *(*register_name)(void *, const char *);
	void *(*register_wide)(void *, const wchar_t *);
	void *(*create)(const char *);
	void *(*create_wide)(const wchar_t *);
	void *more[2];
} core_2;

static void *core_table[16], *core_2_table[16];
static struct cuda cuda;
static uint64_t rounds;
static void *solver, *inner;

static int module_table(int module, void ***table, unsigned int *count)
{
	if (module != CORE && module != CORE_2)
		return 0;
	*table = module == CORE ? core_table : core_2_table;
	*count = 16;
	return 1;
}

static const struct {
	size_t size;
	int (*module_table)(int, void ***, unsigned int *);
} callbacks = {sizeof(callbacks), module_table};

static const void *export_table(uint32_t number)
{
	return number == 1 ? &callbacks : NULL;
}

static void load(void)
{
	void *handle = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
	int (*initialize)(const void *(*)(uint32_t));

	if (!handle)
		fail(dlerror());
	for (int i = 0; i < 16; i++) {
		core_table[i] = (void **)&core + i;
		core_2_table[i] = (void **)&core_2 + i;
	}
	initialize = symbol(handle, "InitializeInjectionNvtx2");
	if (!initialize(export_table))
		fail("the library for NVTX does not want to");
}

static void call(uint64_t bytes)
{
	void *address;

	cuda.malloc(&address, bytes);
}

static void expect(int is, int wanted, const char *what)
{
	if (is != wanted)
		fail(what);
}

static void *work(void *number)
{
	uint64_t thread = (uintptr_t)number;
	struct attributes named = {.message_kind = REGISTERED, .message = inner};
	char name[64];

	for (uint64_t i = 0; i < rounds; i++) {
		uint64_t place = thread << 20 | i << 4;

		snprintf(name, sizeof(name), "outer %" PRIu64 "/%" PRIu64, thread, i);
		expect(core.push(name), 0, "level of a range");
		call(place | 1);
		expect(core_2.push(solver, &named), 0, "level of a range in a domain");
		call(place | 2);
		expect(core_2.pop(solver), 0, "level of what is popped in a domain");
		call(place | 3);
		expect(core.pop(), 0, "level of what is popped");
		call(place | 4);
	}
	return NULL;
}

static void *end_range(void *number)
{
	core.end(*(uint64_t *)number);
	return NULL;
}

int main(int argc, char **argv)
{
	struct attributes wide = {.message_kind = UNICODE, .message = L"in Ω 🚀"};
	struct timespec long_enough = {.tv_nsec = 30000000};
	pthread_t threads[16];
	uint64_t count, crossing;
	pid_t child;

	if (argc != 4 || (count = number(argv[2])) > 16)
		fail("ranges LIBRARY THREADS ROUNDS");
	rounds = number(argv[3]);
	cuda_open(&cuda, argv[1]);
	call(1);
	load();
	solver = core_2.create("solver");
	inner = core_2.register_name(solver, "inner");
	for (uintptr_t i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, work, (void *)(i + 1));
	for (uintptr_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);

	/* 5: it ends in another thread, and what is called meanwhile is not in it. */
	crossing = core.start("crossing");
	call(5);
	pthread_create(&threads[0], NULL, end_range, &crossing);
	pthread_join(threads[0], NULL);
	core.end(crossing);
	core.end(~0ULL);
	core.mark("milestone");
	core.mark(NULL);
	/* 6, 7: pushed and popped across each other; a pop too many is nothing. */
	core_2.push(solver, &wide);
	core.push_wide(L"wide");
	call(6);
	core_2.pop(solver);
	call(7);
	core.pop();
	expect(core.pop(), -2, "a pop too many");
	/* 8: in the child of a fork, in none of its parent's and then in its own. */
	core.push("forking");
	child = fork();
	if (!child) {
		call(8);
		expect(core.pop(), -2, "what the child did not push");
		core.push("in the child");
		call(9);
		core.pop();
		_exit(0);
	}
	waitpid(child, NULL, 0);
	core.pop();
	/* Beyond the rate, and deeper than is kept. */
	for (int i = 0; i < 100; i++)
		expect(core.push("deep"), i, "level of a deep one");
	for (int i = 99; i >= 0; i--)
		expect(core.pop(), i, "level of a deep one that is popped");
	/* 10: it is long, so it is a span all the same; what was called in it was not known to be in it. */
	core.push("long");
	call(10);
	nanosleep(&long_enough, NULL);
	core.pop();
	printf("{\"pid\": %d, \"tid\": %d, \"child\": %d, \"calls\": %" PRIu64 "}\n", getpid(),
	       (int)syscall(SYS_gettid), child, count * rounds * 4 + 5);
	return 0;
}
