/*
 * What the preload library does with names that a program looks up, and with numbers that are in its
 * shared memory: steps of a thread, and the bounds of histograms.
 */
#define _GNU_SOURCE
#include "preload_main.h"

#include <stdlib.h>
#include <string.h>

#include "../../bpf/step_detection.h"
#include "../../preload/bounds.h"
#include "../../preload/names.c"
#include "../../preload/probe_table.h"
#include "../../preload/series.h"
#include "../../preload/state.h"

/* What the parts that are not here would have. */
char *preload_memory;
OWN struct self preload_self;
const __u32 preload_row_count = sizeof(preload_rows) / sizeof(*preload_rows);

void preload_count_loss(enum preload_loss loss)
{
	(void)loss;
}

static void find_names(const char *text)
{
	__u16 variant = 0xffff;
	const struct row *row = preload_find_row(text, &variant);

	preload_is_lookup(text);
	preload_is_cuda(text);
	if (row && (row < preload_rows || row >= preload_rows + preload_row_count || variant >= 9))
		abort();
}

static void check_bounds(const struct bounds *bounds, size_t count, __u64 value)
{
	__u32 bucket = find_bucket(bounds, value);

	if (bucket > count || value > bounds->upper[bucket] ||
	    (bucket && value <= bounds->upper[bucket - 1]))
		abort();
}

/* The rest of an input: the memory of a thread's steps, and the calls that it makes. */
static void follow_calls(const uint8_t *data, size_t size)
{
	struct step_detector *detector = calloc(1, sizeof(*detector));

	memcpy(detector, data, size < sizeof(*detector) ? size : sizeof(*detector));
	for (size_t at = sizeof(*detector); at + 8 <= size; at += 8) {
		struct detector_call call;
		__u64 word;
		__u16 symbol;

		memcpy(&word, data + at, sizeof(word));
		symbol = symbol_of(word >> 8, word, word >> 16, word >> 24, word << 8);
		describe_call(&call, word, word >> 8, symbol, word);
		if (!symbol)
			abort();
		if (counts_in_steps(word) && !is_same_again(detector, symbol))
			advance_detector(detector, symbol, word);
	}
	free(detector);
}

void run_input(const uint8_t *data, size_t size)
{
	size_t length = strnlen((const char *)data, size);
	char *text = malloc(length + 1);

	memcpy(text, data, length);
	text[length] = 0;
	find_names(text);
	free(text);
	data += length;
	size -= length;
	for (size_t at = 0; at + 8 <= size && at < 256; at += 8) {
		__u64 value;

		memcpy(&value, data + at, sizeof(value));
		check_bounds(&duration_bounds, MAX_BOUNDS, value);
		check_bounds(&size_bounds, MAX_BOUNDS, value);
	}
	follow_calls(data, size);
}
