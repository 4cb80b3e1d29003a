/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of a call, by its row of the probe table. */
#ifndef OTEL_GPU_PRELOAD_ARGUMENTS_H
#define OTEL_GPU_PRELOAD_ARGUMENTS_H

#include <string.h>

#include "layout.h"
#include "row.h"

#define LAUNCH_CONFIG_STREAM_OFFSET 32 /* see bpf/cuda/arguments.bpf.h */

static inline __u64 argument(const __u64 *slots, __u32 slot)
{
	return slot ? slots[slot - 1] : 0;
}

static inline __u64 size_of(const struct row *row, const __u64 *slots)
{
	__u64 size_bytes = argument(slots, row->size_slot) << row->size_shift;

	return row->height_slot ? size_bytes * argument(slots, row->height_slot) : size_bytes;
}

static inline __u8 copy_kind_of(const struct row *row, const __u64 *slots)
{
	__u32 kind = argument(slots, row->copy_kind_slot);

	if (!row->copy_kind_slot)
		return row->fixed_copy_kind;
	return kind <= COPY_DEFAULT ? kind : COPY_NONE;
}

static inline void read_launch(struct preload_call *call, const struct row *row, const __u64 *slots)
{
	const __u8 *config = (const __u8 *)slots[0];

	switch (row->launch_shape) {
	case LAUNCH_DIM3:
		memcpy(call->grid, &slots[1], sizeof(call->grid));
		memcpy(call->block, &slots[3], sizeof(call->block));
		break;
	case LAUNCH_SCALARS:
		for (int i = 0; i < 3; i++) {
			call->grid[i] = slots[1 + i];
			call->block[i] = slots[4 + i];
		}
		break;
	case LAUNCH_CONFIG:
		memcpy(call->grid, config, sizeof(call->grid));
		memcpy(call->block, config + sizeof(call->grid), sizeof(call->block));
		memcpy(&call->stream, config + LAUNCH_CONFIG_STREAM_OFFSET, sizeof(call->stream));
		break;
	}
}

#endif
