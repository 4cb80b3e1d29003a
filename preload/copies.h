/* SPDX-License-Identifier: Apache-2.0 */
/* Wrappers of functions that programs resolve by themselves, apart from those that are exported. */
#ifndef OTEL_GPU_PRELOAD_COPIES_H
#define OTEL_GPU_PRELOAD_COPIES_H

#include "layout.h"

#define COPIES 6 /* of such a function: spellings, and versions of its library */

struct copy {
	void *target; /* NULL: free */
	__u16 variant;
};

/* By the row. */
extern struct copy preload_copies[][COPIES];
extern void *const preload_copy_wrappers[][COPIES];
extern struct copy preload_lookup_copies[COPIES];
extern void *const preload_lookup_wrappers[COPIES];

#endif
