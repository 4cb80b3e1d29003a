// SPDX-License-Identifier: Apache-2.0
/* Names of functions: which row of the probe table they are, and which spelling of it. */
#include <stdbool.h>
#include <string.h>

#include "layout.h"
#include "names.h"
#include "row.h"

bool preload_is_cuda(const char *path)
{
	const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;

	return name && !strncmp(name, "libcuda", 7);
}

/* In the order of VARIANTS in otel_gpu/wire/probe_table.py, but for the last. */
static const char *const suffixes[] = {"",	   "_v2",      "_v3",	   "_ptsz",   "_ptds",
				       "_v2_ptsz", "_v2_ptds", "_v3_ptsz", "_v3_ptds"};

static bool ends_with(const char *name, size_t length, const char *suffix)
{
	size_t suffix_length = strlen(suffix);

	return length >= suffix_length &&
	       !memcmp(name + length - suffix_length, suffix, suffix_length);
}

static const struct row *row_named(const char *name, size_t length)
{
	__u32 low = 0, high = preload_row_count;

	while (low < high) {
		__u32 middle = (low + high) / 2;
		int order = strncmp(name, preload_rows[middle].name, length);

		if (!order && !preload_rows[middle].name[length])
			return &preload_rows[middle];
		if (order > 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

const struct row *preload_find_row(const char *symbol, __u16 *variant)
{
	const char *name = !strncmp(symbol, "__cudaLaunchKernel", 18) ? symbol + 2 : symbol;
	size_t length = strlen(name);

	/* The longest suffix is the last one that fits. */
	for (__u16 i = sizeof(suffixes) / sizeof(*suffixes); i--;) {
		const struct row *row = NULL;

		if (ends_with(name, length, suffixes[i]))
			row = row_named(name, length - strlen(suffixes[i]));
		if (row) {
			*variant = i;
			return row;
		}
	}
	return NULL;
}

bool preload_is_lookup(const char *symbol)
{
	return !strncmp(symbol, "cuGetProcAddress", 16) ||
	       !strncmp(symbol, "cudaGetDriverEntryPoint", 23);
}
