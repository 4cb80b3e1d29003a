// SPDX-License-Identifier: Apache-2.0
/*
 * Ranges that a program marks with NVTX, for an agent outside of it.
 *
 * NVTX loads the library that NVTX_INJECTION64_PATH names, and hands it its tables of functions. A
 * range that was pushed is published while its thread is in it, in the layout of OTEP 4947; beside it
 * is the span of the program that the thread was in then, so that a reader knows which of both is
 * the inner one. Empty functions, at which the agent has probes, report where that is, and each range
 * when it ends. Of each thread a few ranges per second are published and reported; of the rest only
 * long ones are reported, and a short one costs two readings of the clock.
 *
 * The layouts that NVTX gives are those of its version 3, which its headers promise to keep.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <endian.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "../bpf/events.h"

#define EXPORTED       __attribute__((visibility("default")))

#define MAX_OPEN       64    /* pushed by a thread; deeper ones have no span */
#define MAX_STARTED    1024  /* by a process, and not ended */
#define MAX_NAMED      65536 /* registered names and domains; others have none */
#define MAX_PUBLISHERS 16
#define MAX_PATH       4096
#define SPANS_PER_S    10 /* of a thread */
#define BURST	       50
#define LONG_NS	       10000000 /* worth a span in any case */
#define SECOND_NS      1000000000ULL
#define NO_TRACKING    (-2)

/* What NVTX hands over. */
struct export_table {
	size_t size_bytes;
	int (*module_table)(int module, void (****table)(void), unsigned int *count);
};

struct event_attributes {
	uint16_t version;
	uint16_t size_bytes;
	uint32_t category;
	int32_t color_kind;
	uint32_t color;
	int32_t payload_kind;
	int32_t reserved;
	uint64_t payload;
	int32_t message_kind;
	const void *message;
};

_Static_assert(offsetof(struct event_attributes, message) == 40, "as nvtxEventAttributes_v2");

enum {
	CALLBACKS = 1,
	CORE = 1,
	CORE_2 = 5
};
enum {
	ASCII = 1,
	UNICODE = 2,
	REGISTERED = 3
};

/* A registered name, or a domain. */
struct name {
	char text[RANGE_NAME_BYTES];
};

/* In which range this thread is. */
static __thread struct published_range own;

struct identity {
	uint64_t trace_id[2];
	uint64_t span_id; /* 0: none */
	uint8_t trace_flags;
};

struct range {
	const struct name *domain;
	uint64_t start_ns;
	uint64_t within_span_id; /* of the program, where it was pushed */
	uint64_t parent_span_id;
	uint32_t deeper; /* pushed on top of it in its domain, and not kept */
	bool is_span;
	struct identity identity;
	char name[RANGE_NAME_BYTES];
};

struct state {
	struct range open[MAX_OPEN];
	uint32_t depth;
	uint32_t tid;
	uint64_t random;
	uint64_t tokens_ns; /* a span costs a part of a second */
	uint64_t counted_ns;
	uint64_t left_out; /* since the last one that was reported */
};

static __thread struct state *own_thread;
static pthread_key_t of_threads;

static struct {
	atomic_flag is_taken;
	struct range range;
	uint32_t generation; /* odd: started */
	uint32_t tid;
} started[MAX_STARTED];
static atomic_uint next_started;
static atomic_uint named;

/* Files that may publish in which span of the program a thread is. They stay loaded, so that no thread reads what is gone. */
static struct {
	pthread_mutex_t lock;
	atomic_ullong adds; /* of the dynamic linker, when it was last asked */
	void *handles[MAX_PUBLISHERS];
	atomic_int count;
} publishers = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Nothing is done in these: an agent has probes there, which cost least at a nop. The first reports where a thread publishes. */
EXPORTED __attribute__((noinline)) void
otel_gpu_nvtx_thread(const struct published_range *published)
{
	__asm__ volatile("nop" : : "r"(published) : "memory");
}

EXPORTED __attribute__((noinline)) void otel_gpu_nvtx_range(const struct reported_range *reported)
{
	__asm__ volatile("nop" : : "r"(reported) : "memory");
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void begin_thread(struct state *thread)
{
	memset(thread, 0, sizeof(*thread));
	thread->tid = syscall(SYS_gettid);
	thread->tokens_ns = BURST * SECOND_NS / SPANS_PER_S;
	thread->counted_ns = now_ns();
	if (getrandom(&thread->random, sizeof(thread->random), GRND_NONBLOCK) < 0)
		thread->random = now_ns() * thread->tid;
	thread->random |= 1;
	otel_gpu_nvtx_thread(&own);
}

static struct state *find_thread(void)
{
	if (!own_thread) {
		own_thread = malloc(sizeof(*own_thread));
		if (own_thread) {
			begin_thread(own_thread);
			pthread_setspecific(of_threads, own_thread);
		}
	}
	return own_thread;
}

static void end_thread(void *thread)
{
	own.valid = 0;
	own_thread = NULL;
	free(thread);
}

/* A child of fork() has a copy of its parent's storage, and is in no range of it. */
static void clear_in_child(void)
{
	own.valid = 0;
	if (own_thread)
		begin_thread(own_thread);
	pthread_mutex_init(&publishers.lock, NULL);
	for (int i = 0; i < MAX_STARTED; i++) {
		started[i].generation += started[i].generation & 1;
		atomic_flag_clear(&started[i].is_taken);
	}
}

/* Never 0. */
static uint64_t random_number(struct state *thread)
{
	thread->random ^= thread->random << 13;
	thread->random ^= thread->random >> 7;
	thread->random ^= thread->random << 17;
	return thread->random;
}

static bool may_tell(struct state *thread, uint64_t at_ns)
{
	uint64_t most_ns = BURST * SECOND_NS / SPANS_PER_S;

	thread->tokens_ns += at_ns > thread->counted_ns ? at_ns - thread->counted_ns : 0;
	thread->counted_ns = at_ns;
	if (thread->tokens_ns > most_ns)
		thread->tokens_ns = most_ns;
	if (thread->tokens_ns < SECOND_NS / SPANS_PER_S) {
		thread->left_out++;
		return false;
	}
	thread->tokens_ns -= SECOND_NS / SPANS_PER_S;
	return true;
}

/* ---- In which span of the program a thread is. ---- */

struct candidates {
	unsigned long long adds;
	int count;
	char paths[MAX_PUBLISHERS * 4][MAX_PATH];
};

static int note_adds(struct dl_phdr_info *info, size_t size, void *adds)
{
	(void)size;
	*(unsigned long long *)adds = info->dlpi_adds;
	return 1;
}

static int note_candidate(struct dl_phdr_info *info, size_t size, void *found)
{
	struct candidates *candidates = found;

	(void)size;
	candidates->adds = info->dlpi_adds;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_TLS ||
		    candidates->count >= MAX_PUBLISHERS * 4 || strlen(info->dlpi_name) >= MAX_PATH)
			continue;
		strcpy(candidates->paths[candidates->count++], info->dlpi_name);
	}
	return 0;
}

/* Those that were loaded since it was last asked. */
static void find_publishers(void)
{
	unsigned long long adds = 0;
	struct candidates *candidates;

	dl_iterate_phdr(note_adds, &adds);
	if (adds == atomic_load(&publishers.adds) || pthread_mutex_trylock(&publishers.lock))
		return;
	candidates = calloc(1, sizeof(*candidates));
	if (candidates) {
		dl_iterate_phdr(note_candidate, candidates);
		atomic_store(&publishers.adds, candidates->adds);
	}
	for (int i = 0; candidates && i < candidates->count; i++) {
		int count = atomic_load(&publishers.count);
		const char *path = candidates->paths[i];
		/* The program itself has no name there. */
		void *handle = dlopen(*path ? path : NULL, RTLD_LAZY | RTLD_NOLOAD);
		bool is_known =
			!handle || count >= MAX_PUBLISHERS || !dlsym(handle, "otel_thread_ctx_v1");

		for (int known = 0; known < count; known++)
			is_known |= publishers.handles[known] == handle;
		if (!is_known) {
			publishers.handles[count] = handle;
			atomic_store(&publishers.count, count + 1);
		} else if (handle) {
			dlclose(handle);
		}
	}
	free(candidates);
	pthread_mutex_unlock(&publishers.lock);
}

static struct identity published_by_program(void)
{
	struct identity found = {};

	find_publishers();
	for (int i = 0; i < atomic_load(&publishers.count) && !found.span_id; i++) {
		struct published_context *volatile *place =
			dlsym(publishers.handles[i], "otel_thread_ctx_v1");
		const struct published_context *context = place ? *place : NULL;

		if (!context || context->valid != 1)
			continue;
		memcpy(found.trace_id, context->trace_id, sizeof(found.trace_id));
		found.span_id = context->span_id;
		found.trace_flags = context->trace_flags;
	}
	return found;
}

/* ---- Ranges. ---- */

static const struct range *innermost_span(const struct state *thread)
{
	for (uint32_t i = thread->depth; i; i--) {
		if (thread->open[i - 1].is_span)
			return &thread->open[i - 1];
	}
	return NULL;
}

/* Publish the innermost range that is a span. */
static void publish(const struct state *thread)
{
	const struct range *range = innermost_span(thread);

	own.valid = 0;
	atomic_signal_fence(memory_order_seq_cst);
	if (!range)
		return;
	memcpy(own.trace_id, range->identity.trace_id, sizeof(own.trace_id));
	own.span_id = range->identity.span_id;
	own.trace_flags = range->identity.trace_flags;
	own.within_span_id = range->within_span_id;
	atomic_signal_fence(memory_order_seq_cst);
	own.valid = 1;
}

/* A span in the innermost of what the thread is in. */
static void make_span(struct state *thread, struct range *range)
{
	struct identity around = published_by_program();
	const struct range *outer = innermost_span(thread);

	range->within_span_id = around.span_id;
	if (outer && outer->within_span_id == around.span_id)
		around = outer->identity;
	range->parent_span_id = around.span_id;
	range->identity = around;
	if (!around.span_id) {
		/* The reader decides whether a trace of its own is sampled. */
		range->identity.trace_id[0] = random_number(thread);
		range->identity.trace_id[1] = random_number(thread);
	}
	range->identity.span_id = random_number(thread);
	range->is_span = true;
}

static void copy_ascii(char *to, const char *from)
{
	size_t bytes = strnlen(from, RANGE_NAME_BYTES);

	/* Not within a character. */
	if (bytes == RANGE_NAME_BYTES)
		for (bytes--; bytes && (from[bytes] & 0xC0) == 0x80; bytes--)
			;
	memcpy(to, from, bytes);
	memset(to + bytes, 0, RANGE_NAME_BYTES - bytes);
}

static void copy_wide(char *to, const wchar_t *from)
{
	char *end = to + RANGE_NAME_BYTES - 4;

	memset(to, 0, RANGE_NAME_BYTES);
	for (; *from && to < end; from++) {
		uint32_t code = (uint32_t)*from;

		if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
			code = 0xFFFD;
		if (code < 0x80) {
			*to++ = code;
			continue;
		}
		if (code < 0x800) {
			*to++ = 0xC0 | code >> 6;
		} else if (code < 0x10000) {
			*to++ = 0xE0 | code >> 12;
			*to++ = 0x80 | (code >> 6 & 0x3F);
		} else {
			*to++ = 0xF0 | code >> 18;
			*to++ = 0x80 | (code >> 12 & 0x3F);
			*to++ = 0x80 | (code >> 6 & 0x3F);
		}
		*to++ = 0x80 | (code & 0x3F);
	}
}

static void copy_message(char *to, int kind, const void *message)
{
	to[0] = 0;
	if (!message)
		return;
	if (kind == ASCII)
		copy_ascii(to, message);
	else if (kind == UNICODE)
		copy_wide(to, message);
	else if (kind == REGISTERED)
		copy_ascii(to, ((const struct name *)message)->text);
}

static void report_range(struct state *thread, const struct range *range, uint32_t start_tid,
			 int kind, uint64_t end_ns)
{
	struct reported_range reported = {
		.span_id = range->identity.span_id,
		.parent_span_id = range->parent_span_id,
		.left_out = thread->left_out,
		.published_address = (uintptr_t)&own,
		.start_tid = start_tid,
		.trace_flags = range->identity.trace_flags,
		.range_kind = kind,
	};

	memcpy(reported.trace_id, range->identity.trace_id, sizeof(reported.trace_id));
	memcpy(reported.name, range->name, sizeof(reported.name));
	if (range->domain)
		memcpy(reported.domain, range->domain->text, sizeof(reported.domain));
	thread->left_out = 0;
	reported.start_ns = range->start_ns;
	reported.end_ns = end_ns;
	reported.now_ns = now_ns();
	otel_gpu_nvtx_range(&reported);
}

static int push(const struct name *domain, int kind, const void *message)
{
	struct state *thread = find_thread();
	struct range *range, *below = NULL;
	int level = 0;

	if (!thread)
		return NO_TRACKING;
	for (uint32_t i = 0; i < thread->depth; i++) {
		if (thread->open[i].domain == domain) {
			below = &thread->open[i];
			level += 1 + below->deeper;
		}
	}
	/* What lies on top of one that is not kept is not kept either. */
	if (thread->depth >= MAX_OPEN || (below && below->deeper)) {
		thread->left_out++;
		if (below)
			below->deeper++;
		return level;
	}
	range = &thread->open[thread->depth];
	range->domain = domain;
	range->deeper = 0;
	range->is_span = false;
	copy_message(range->name, kind, message);
	range->start_ns = now_ns();
	if (may_tell(thread, range->start_ns))
		make_span(thread, range);
	thread->depth++;
	if (range->is_span)
		publish(thread);
	return level;
}

static int pop(const struct name *domain)
{
	struct state *thread = own_thread;
	struct range range;
	uint64_t end_ns;
	uint32_t at;
	int level = 0;

	for (at = thread ? thread->depth : 0; at && thread->open[at - 1].domain != domain; at--)
		;
	if (!at)
		return NO_TRACKING;
	for (uint32_t i = 0; i + 1 < at; i++)
		level += thread->open[i].domain == domain;
	if (thread->open[at - 1].deeper)
		return level + thread->open[at - 1].deeper--;
	end_ns = now_ns();
	range = thread->open[at - 1];
	/* Ranges of other domains may have been pushed since. */
	memmove(&thread->open[at - 1], &thread->open[at],
		(thread->depth - at) * sizeof(struct range));
	thread->depth--;
	if (range.is_span) {
		publish(thread);
	} else if (end_ns - range.start_ns >= LONG_NS) {
		thread->left_out -= thread->left_out > 0;
		make_span(thread, &range);
	}
	if (range.is_span)
		report_range(thread, &range, thread->tid, RANGE_PUSHED, end_ns);
	return level;
}

/* Returns its number; 0: it is not followed. */
static uint64_t start(const struct name *domain, int kind, const void *message)
{
	struct state *thread = find_thread();

	for (int tries = 0; thread && tries < MAX_STARTED; tries++) {
		uint32_t slot = atomic_fetch_add(&next_started, 1) % MAX_STARTED;
		struct range *range = &started[slot].range;

		if (atomic_flag_test_and_set(&started[slot].is_taken))
			continue;
		range->domain = domain;
		range->is_span = false;
		copy_message(range->name, kind, message);
		range->start_ns = now_ns();
		if (may_tell(thread, range->start_ns))
			make_span(thread, range);
		started[slot].tid = thread->tid;
		return (uint64_t)++started[slot].generation << 32 | slot;
	}
	if (thread)
		thread->left_out++;
	return 0;
}

static void end(uint64_t number)
{
	struct state *thread = find_thread();
	uint32_t slot = (uint32_t)number, generation = number >> 32;
	struct range range;
	uint32_t tid;
	uint64_t end_ns = now_ns();

	if (!thread || slot >= MAX_STARTED || !(generation & 1) ||
	    !__atomic_compare_exchange_n(&started[slot].generation, &generation, generation + 1,
					 false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		return;
	range = started[slot].range;
	tid = started[slot].tid;
	atomic_flag_clear(&started[slot].is_taken);
	if (!range.is_span && end_ns - range.start_ns >= LONG_NS) {
		thread->left_out -= thread->left_out > 0;
		make_span(thread, &range);
	}
	if (range.is_span)
		report_range(thread, &range, tid, RANGE_STARTED, end_ns);
}

static void mark(const struct name *domain, int kind, const void *message)
{
	struct state *thread = find_thread();
	struct range range = {.domain = domain};

	if (!thread || !may_tell(thread, range.start_ns = now_ns()))
		return;
	copy_message(range.name, kind, message);
	make_span(thread, &range);
	report_range(thread, &range, thread->tid, RANGE_MARKED, range.start_ns);
}

static struct name *make_name(int kind, const void *text)
{
	struct name *made = NULL;

	if (atomic_load(&named) < MAX_NAMED)
		made = calloc(1, sizeof(*made));
	if (made) {
		atomic_fetch_add(&named, 1);
		copy_message(made->text, kind, text);
	}
	return made;
}

/* ---- As NVTX calls them. ---- */

#define MESSAGE(attributes)                                                                        \
	(attributes) ? (attributes)->message_kind : 0, (attributes) ? (attributes)->message : NULL

static void mark_ex(const struct event_attributes *event)
{
	mark(NULL, MESSAGE(event));
}

static void mark_a(const char *message)
{
	mark(NULL, ASCII, message);
}

static void mark_w(const wchar_t *message)
{
	mark(NULL, UNICODE, message);
}

static uint64_t start_ex(const struct event_attributes *event)
{
	return start(NULL, MESSAGE(event));
}

static uint64_t start_a(const char *message)
{
	return start(NULL, ASCII, message);
}

static uint64_t start_w(const wchar_t *message)
{
	return start(NULL, UNICODE, message);
}

static int push_ex(const struct event_attributes *event)
{
	return push(NULL, MESSAGE(event));
}

static int push_a(const char *message)
{
	return push(NULL, ASCII, message);
}

static int push_w(const wchar_t *message)
{
	return push(NULL, UNICODE, message);
}

static int pop_default(void)
{
	return pop(NULL);
}

static void domain_mark(const struct name *domain, const struct event_attributes *event)
{
	mark(domain, MESSAGE(event));
}

static uint64_t domain_start(const struct name *domain, const struct event_attributes *event)
{
	return start(domain, MESSAGE(event));
}

static void domain_end(const struct name *domain, uint64_t number)
{
	(void)domain;
	end(number);
}

static int domain_push(const struct name *domain, const struct event_attributes *event)
{
	return push(domain, MESSAGE(event));
}

static struct name *register_a(const struct name *domain, const char *text)
{
	(void)domain;
	return make_name(ASCII, text);
}

static struct name *register_w(const struct name *domain, const wchar_t *text)
{
	(void)domain;
	return make_name(UNICODE, text);
}

static struct name *create_a(const char *text)
{
	return make_name(ASCII, text);
}

static struct name *create_w(const wchar_t *text)
{
	return make_name(UNICODE, text);
}

/* Domains that are destroyed stay: a range may be open in one. */
static const struct {
	int module;
	unsigned int number; /* NvtxCallbackIdCore, NvtxCallbackIdCore2 */
	void (*function)(void);
} callbacks[] = {
	{CORE, 1, (void (*)(void))mark_ex},
	{CORE, 2, (void (*)(void))mark_a},
	{CORE, 3, (void (*)(void))mark_w},
	{CORE, 4, (void (*)(void))start_ex},
	{CORE, 5, (void (*)(void))start_a},
	{CORE, 6, (void (*)(void))start_w},
	{CORE, 7, (void (*)(void))end},
	{CORE, 8, (void (*)(void))push_ex},
	{CORE, 9, (void (*)(void))push_a},
	{CORE, 10, (void (*)(void))push_w},
	{CORE, 11, (void (*)(void))pop_default},
	{CORE_2, 1, (void (*)(void))domain_mark},
	{CORE_2, 2, (void (*)(void))domain_start},
	{CORE_2, 3, (void (*)(void))domain_end},
	{CORE_2, 4, (void (*)(void))domain_push},
	{CORE_2, 5, (void (*)(void))pop},
	{CORE_2, 10, (void (*)(void))register_a},
	{CORE_2, 11, (void (*)(void))register_w},
	{CORE_2, 12, (void (*)(void))create_a},
	{CORE_2, 13, (void (*)(void))create_w},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool is_ready;

static void prepare(void)
{
	is_ready = !pthread_key_create(&of_threads, end_thread) &&
		   !pthread_atfork(NULL, NULL, clear_in_child);
}

/* Each part of a program that has NVTX's headers calls this once. */
EXPORTED int InitializeInjectionNvtx2(const void *(*get_export_table)(uint32_t))
{
	const struct export_table *table = get_export_table(CALLBACKS);

	pthread_once(&once, prepare);
	if (!is_ready || !table || table->size_bytes < sizeof(*table))
		return 0;
	for (size_t i = 0; i < sizeof(callbacks) / sizeof(*callbacks); i++) {
		void (***functions)(void) = NULL;
		unsigned int count = 0;

		if (table->module_table(callbacks[i].module, &functions, &count) &&
		    callbacks[i].number < count && functions[callbacks[i].number])
			*functions[callbacks[i].number] = callbacks[i].function;
	}
	return 1;
}
