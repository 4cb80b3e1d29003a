/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that calls are counted in: made at the first call of a process, and a slot of it taken at
 * the first call of each thread.
 */
#ifndef OTEL_GPU_PRELOAD_MEMORY_H
#define OTEL_GPU_PRELOAD_MEMORY_H

#include <stdbool.h>

#include "compiler.h"

/*
 * Make the memory before the first call, which else waits until the agent reads it. Leaves errno as it
 * is, as the others do.
 */
void preload_begin_early(bool is_reported);
/* A library was loaded whose calls are not seen here. */
void preload_bind_past(void);
/* The first call of a thread in this process. */
HIDDEN void preload_begin_thread(void);

#endif
