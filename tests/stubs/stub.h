/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stub CUDA libraries share: calls that do nothing but what they are told.
 *
 * Each API is a real exported function with its real signature, so that probes find
 * their arguments where CUDA would pass them. What a call does is programmed by name,
 * from the environment before the library is loaded,
 *
 *     CUDA_STUB="cudaMalloc:spin_ns=2000,fail=2;cudaStreamSynchronize:sleep_ns=5000000"
 *
 * or from the program, with the exported functions at the end of this file:
 *
 *     spin_ns=N     burn the CPU for N nanoseconds
 *     sleep_ns=N    sleep for N nanoseconds
 *     fail=CODE     return CODE
 *     fail_every=N  ... only from each Nth call (default: every call)
 *     recurse=N     call the same API from inside itself, N levels deeper
 *     nest=1        a runtime call makes the driver call that CUDA's would make
 *     hang=1        never return
 *
 * An exported function with the name "*" stands for all APIs of the library.
 */
#ifndef CUDA_STUB_H
#define CUDA_STUB_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT	      __attribute__((visibility("default"), noinline))
#define INVALID_VALUE 1

typedef void (*stub_function)(void *argument);

struct behaviour {
	const char *api;
	uint64_t spin_ns;
	uint64_t sleep_ns;
	stub_function function;
	void *argument;
	_Atomic uint64_t calls;
	int32_t fail;
	uint32_t fail_every;
	uint32_t recurse;
	uint8_t nest;
	uint8_t hang;
	uint8_t programmed; /* anything but "return 0 at once" */
	uint8_t padding;
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct behaviour) == 64, "entries of a section lie without gaps");

/* The linker provides these for a section whose name is an identifier. */
extern struct behaviour __start_behaviours[] __attribute__((visibility("hidden")));
extern struct behaviour __stop_behaviours[] __attribute__((visibility("hidden")));

static __thread uint32_t recursions_left;
static __thread int recursing;

static uint64_t monotonic_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void sleep_for(uint64_t duration_ns)
{
	struct timespec left = {duration_ns / 1000000000, duration_ns % 1000000000};

	while (nanosleep(&left, &left) == -1 && errno == EINTR)
		;
}

/* Count the call and do what is programmed. The result is the call's own. */
static int act(struct behaviour *behaviour)
{
	uint64_t call = atomic_fetch_add_explicit(&behaviour->calls, 1, memory_order_relaxed) + 1;

	if (!behaviour->programmed)
		return 0;
	if (behaviour->function)
		behaviour->function(behaviour->argument);
	if (behaviour->spin_ns) {
		uint64_t end_ns = monotonic_ns() + behaviour->spin_ns;

		while (monotonic_ns() < end_ns)
			;
	}
	if (behaviour->sleep_ns)
		sleep_for(behaviour->sleep_ns);
	while (behaviour->hang)
		pause();
	if (behaviour->fail && (!behaviour->fail_every || call % behaviour->fail_every == 0))
		return behaviour->fail;
	return 0;
}

/* Whether the call has to call itself once more; the outermost sets the number. */
static int recurses(const struct behaviour *behaviour)
{
	if (!behaviour->recurse)
		return 0;
	if (!recursing) {
		recursing = 1;
		recursions_left = behaviour->recurse;
	}
	if (recursions_left) {
		recursions_left--;
		return 1;
	}
	recursing = 0;
	return 0;
}

/*
 * STUB(result, name, (parameters), (arguments), work) defines and exports one API.
 * `work` runs only when the call succeeds. Recursion goes through the exported
 * symbol, where the probes are.
 */
#define STUB(name, parameters, arguments, work)                                                    \
	static struct behaviour name##_behaviour                                                   \
		__attribute__((section("behaviours"), used)) = {.api = #name};                     \
	EXPORT int name parameters                                                                 \
	{                                                                                          \
		struct behaviour *behaviour = &name##_behaviour;                                   \
		int result = act(behaviour);                                                       \
                                                                                                   \
		if (recurses(behaviour))                                                           \
			name arguments;                                                            \
		if (result)                                                                        \
			return result;                                                             \
		work;                                                                              \
		return result;                                                                     \
	}

/* The time from one event to another: a float whose bits are the second one's handle. */
static inline void tell_elapsed(float *milliseconds, const void *end)
{
	uint32_t bits = (uintptr_t)end;

	if (milliseconds)
		memcpy(milliseconds, &bits, sizeof(bits));
}

/* Addresses look like device memory: unique, aligned, never dereferenced. */
static inline uint64_t new_address(uint64_t first, _Atomic uint64_t *used_bytes,
				   uint64_t size_bytes)
{
	return first + atomic_fetch_add(used_bytes, (size_bytes + 511) / 512 * 512 + 512);
}

/* Programming. */

static int set_field(struct behaviour *behaviour, const char *field, size_t length, uint64_t value)
{
#define FIELD(name)                                                                                \
	if (length == sizeof(#name) - 1 && !memcmp(field, #name, length)) {                        \
		behaviour->name = value;                                                           \
		return 0;                                                                          \
	}
	FIELD(spin_ns)
	FIELD(sleep_ns)
	FIELD(fail)
	FIELD(fail_every)
	FIELD(recurse)
	FIELD(nest)
	FIELD(hang)
#undef FIELD
	return -1;
}

static void note_programmed(struct behaviour *behaviour)
{
	behaviour->programmed = behaviour->spin_ns || behaviour->sleep_ns || behaviour->fail ||
				behaviour->hang || behaviour->function;
}

/* A semicolon ends the text as NUL does, so that CUDA_STUB is parsed in place. */
static int program(struct behaviour *behaviour, const char *text)
{
	while (*text && *text != ';') {
		size_t length = strcspn(text, "=");
		char *end;
		uint64_t value;

		if (text[length] != '=')
			return -1;
		value = strtoull(text + length + 1, &end, 0);
		if (set_field(behaviour, text, length, value))
			return -1;
		text = end + (*end == ',');
	}
	note_programmed(behaviour);
	return 0;
}

static int names(const char *name, size_t length, const struct behaviour *behaviour)
{
	return (length == 1 && *name == '*') ||
	       (strlen(behaviour->api) == length && !memcmp(behaviour->api, name, length));
}

static int program_named(const char *name, size_t length, const char *text)
{
	int found = 0;

	for (struct behaviour *b = __start_behaviours; b < __stop_behaviours; b++)
		if (names(name, length, b)) {
			found++;
			if (program(b, text)) {
				fprintf(stderr, "stub: cannot read %s\n", text);
				abort();
			}
		}
	return found;
}

__attribute__((constructor)) static void program_from_environment(void)
{
	const char *text = getenv("CUDA_STUB");

	while (text && *text) {
		size_t length = strcspn(text, ":;");

		if (text[length] == ':')
			program_named(text, length, text + length + 1);
		text += strcspn(text, ";");
		text += *text == ';';
	}
}

/* Add to what an API does ("spin_ns=0" takes away). Returns how many APIs matched. */
EXPORT int stub_set(const char *api, const char *text)
{
	return program_named(api, strlen(api), text);
}

/* Have an API call a function of the program from inside; NULL for none. */
EXPORT int stub_call_inside(const char *api, stub_function function, void *argument)
{
	int found = 0;

	for (struct behaviour *b = __start_behaviours; b < __stop_behaviours; b++)
		if (names(api, strlen(api), b)) {
			b->argument = argument;
			b->function = function;
			note_programmed(b);
			found++;
		}
	return found;
}

/* How often an API was entered in this process, recursions included. */
EXPORT uint64_t stub_calls(const char *api)
{
	uint64_t calls = 0;

	for (struct behaviour *b = __start_behaviours; b < __stop_behaviours; b++)
		if (names(api, strlen(api), b))
			calls += b->calls;
	return calls;
}

#endif
