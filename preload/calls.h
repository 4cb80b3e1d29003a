/* SPDX-License-Identifier: Apache-2.0 */
/* Before and after a call: what it was is counted. */
#ifndef OTEL_GPU_PRELOAD_CALLS_H
#define OTEL_GPU_PRELOAD_CALLS_H

#include "frame.h"
#include "layout.h"
#include "row.h"

/* slots are the call's arguments. */
void preload_enter(struct frame *frame, const struct row *row, __u16 variant);
void preload_leave(struct frame *frame, const struct row *row, int status, const __u64 *slots);

#endif
