// SPDX-License-Identifier: Apache-2.0
/*
 * The thread context of OTEP 4947: in which span a thread is, for readers outside its process.
 *
 * Readers look for the thread-local symbol otel_thread_ctx_v1, which points to a record of the
 * thread. They read it only while the thread is interrupted, so the compiler has to keep the order
 * of writes and the processor need not: the record is marked invalid while it is written. It
 * is in the thread's own storage, and goes with it.
 */
#include <endian.h>
#include <pthread.h>
#include <stdint.h>
#include <stdatomic.h>

struct record {
	uint64_t trace_id[2]; /* big-endian, as on the wire */
	uint64_t span_id;
	volatile uint8_t valid;
	uint8_t trace_flags;
	uint16_t attributes_bytes; /* none are written */
};

_Static_assert(sizeof(struct record) == 32, "28 bytes, and padding behind them");

#define EXPORTED __attribute__((visibility("default")))

EXPORTED __thread struct record *volatile otel_thread_ctx_v1;
static __thread struct record own;

/* This thread is in no span. */
EXPORTED void otel_gpu_clear_context(void)
{
	own.valid = 0;
	atomic_signal_fence(memory_order_seq_cst);
}

/* This thread is in a span, until the next call sets another one, or none. */
EXPORTED void otel_gpu_publish_context(uint64_t trace_id_high, uint64_t trace_id_low,
				       uint64_t span_id, uint8_t trace_flags)
{
	otel_gpu_clear_context();
	own.trace_id[0] = htobe64(trace_id_high);
	own.trace_id[1] = htobe64(trace_id_low);
	own.span_id = htobe64(span_id);
	own.trace_flags = trace_flags;
	atomic_signal_fence(memory_order_seq_cst);
	own.valid = 1;
	otel_thread_ctx_v1 = &own;
}

/* A child of fork() has a copy of its parent's storage, and is in no span of it. */
__attribute__((constructor)) static void clear_in_children(void)
{
	pthread_atfork(NULL, NULL, otel_gpu_clear_context);
}
