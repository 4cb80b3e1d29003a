/* SPDX-License-Identifier: Apache-2.0 */
/* Names of functions: which row of the probe table they are, and which spelling of it. */
#ifndef OTEL_GPU_PRELOAD_NAMES_H
#define OTEL_GPU_PRELOAD_NAMES_H

#include <stdbool.h>

#include "layout.h"
#include "row.h"

/* Whether a library is of CUDA: its runtime or its driver. */
bool preload_is_cuda(const char *path);
/* The row of a function, and which spelling of it a name is; NULL: of no row. */
const struct row *preload_find_row(const char *symbol, __u16 *variant);
/* Whether a function gives out others. */
bool preload_is_lookup(const char *symbol);

#endif
