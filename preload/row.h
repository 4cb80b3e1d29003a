/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of the probe table; probe_table.h has the values. */
#ifndef OTEL_GPU_PRELOAD_ROW_H
#define OTEL_GPU_PRELOAD_ROW_H

#include "layout.h"

/*
 * A row of the probe table, and whether its calls are counted here, or by a probe. Slots are
 * arguments, as bpf/cuda/arguments.bpf.h has them.
 */
struct row {
	const char *name;
	__u16 api;
	__u8 counts;
	__u8 family;
	__u8 size_slot;
	__u8 size_shift;
	__u8 height_slot;
	__u8 stream_slot;
	__u8 address_slot;
	__u8 address_is_output;
	__u8 copy_kind_slot;
	__u8 fixed_copy_kind;
	__u8 launch_shape;
	__u8 function_slot;
	__u8 device_slot;
	__u8 stream_work;
};

extern const struct row preload_rows[];
extern const __u32 preload_row_count;

#endif
