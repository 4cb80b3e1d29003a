/* SPDX-License-Identifier: Apache-2.0 */
/* A call that is open, in the frame of its wrapper. */
#ifndef OTEL_GPU_PRELOAD_FRAME_H
#define OTEL_GPU_PRELOAD_FRAME_H

#include "layout.h"

struct frame {
	struct preload_slot *slot; /* NULL: the common part is used */
	__u64 epoch;		   /* 0: nothing is counted */
	__u64 mark;		   /* of a frame that is in use; see mark_of() */
	const __u64 *record; /* of the wrapper: where it keeps its caller's frame and address */
	__u64 return_address;
	__u64 start_ktime_ns;
	__u32 depth;
	__s32 device;
	__u16 variant;
};

#endif
