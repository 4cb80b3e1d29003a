/* SPDX-License-Identifier: Apache-2.0 */
/*
 * in_contexts LIBRARY THREADS CALLS
 *
 * A program that publishes the thread context itself: its storage is where the linker put it. Each
 * thread makes CALLS calls, one in three in no span. The others are in a span of their own: the
 * trace is the number of the thread, from 1, and the span the number of bytes that the call asks for.
 */
#include "workload.h"

#include <endian.h>

struct record {
	uint64_t trace_id[2];
	uint64_t span_id;
	volatile uint8_t valid;
	uint8_t trace_flags;
	uint16_t attributes_bytes;
};

__attribute__((visibility("default"))) __thread struct record *volatile otel_thread_ctx_v1;

static struct cuda cuda;
static uint64_t calls;

static void *make_calls(void *number)
{
	struct record own = {.trace_id = {0, htobe64((uintptr_t)number)}, .trace_flags = 1};
	void *address;

	for (uint64_t i = 0; i < calls; i++) {
		uint64_t bytes = (uintptr_t)number << 32 | (i + 1);

		own.valid = 0;
		own.span_id = htobe64(bytes);
		own.valid = i % 3 != 0;
		otel_thread_ctx_v1 = &own;
		cuda.malloc(&address, bytes);
	}
	otel_thread_ctx_v1 = NULL;
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	uint64_t count;

	if (argc != 4 || (count = number(argv[2])) > 64)
		fail("in_contexts LIBRARY THREADS CALLS");
	calls = number(argv[3]);
	cuda_open(&cuda, argv[1]);
	for (uintptr_t i = 0; i < count; i++)
		pthread_create(&threads[i], NULL, make_calls, (void *)(i + 1));
	for (uintptr_t i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("{\"pid\": %d, \"calls\": %" PRIu64 "}\n", getpid(), count * calls);
	return 0;
}
