// SPDX-License-Identifier: Apache-2.0
/*
 * The wrappers: one for each name that a program may be linked with, and a few of each function for
 * what it looks up.
 *
 * All arguments of CUDA's functions are integers, pointers, or structures that are passed like
 * them, in registers and then on the stack; a wrapper passes on more of the stack than there are.
 */
#include "calls.h"
#include "compiler.h"
#include "copies.h"
#include "frame.h"
#include "layout.h"
#include "probe_table.h"
#include "row.h"
#include "symbols.h"

#define NO_DEVICE 100 /* cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE: without the library */

typedef __u64 slot;

#define SIX    slot a, slot b, slot c, slot d, slot e, slot f
#define TWELVE SIX, slot g, slot h, slot i, slot j, slot k, slot l
#define A_TO_F a, b, c, d, e, f
#define A_TO_L A_TO_F, g, h, i, j, k, l
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))

typedef int (*narrow)(SIX);
typedef int (*wide)(TWELVE);

#define CALL(row, variant, target, type, arguments...)                                             \
	struct frame frame;                                                                        \
	int status;                                                                                \
                                                                                                   \
	frame.record = __builtin_frame_address(0);                                                 \
	preload_enter(&frame, row, variant);                                                       \
	status = ((type)target)(arguments);                                                        \
	preload_leave(&frame, row, status, (const slot[]){arguments});                             \
	return status

#define LINKED_AS(number, symbol, variant, type, parameters, arguments...)                         \
	EXPORTED int symbol(parameters)                                                            \
	{                                                                                          \
		void *target = preload_target(number * 16 + variant, #symbol, CALLER);             \
                                                                                                   \
		if (unlikely(!target))                                                             \
			return NO_DEVICE;                                                          \
		CALL(&preload_rows[number], variant, target, type, arguments);                     \
	}

#define COPY_AS(number, index, type, parameters, arguments...)                                     \
	static int copy_##number##_##index(parameters)                                             \
	{                                                                                          \
		const struct copy *own = &preload_copies[number][index];                           \
                                                                                                   \
		CALL(&preload_rows[number], own->variant, own->target, type, arguments);           \
	}

#define LIST(arguments...) arguments

/* Spellings that any version of CUDA exports; a name that none has does no harm. */
#define SPELLINGS(number, name, type, parameters, arguments...)                                    \
	LINKED_AS(number, name, 0, type, LIST(parameters), arguments)                              \
	LINKED_AS(number, name##_v2, 1, type, LIST(parameters), arguments)                         \
	LINKED_AS(number, name##_ptsz, 3, type, LIST(parameters), arguments)                       \
	LINKED_AS(number, name##_ptds, 4, type, LIST(parameters), arguments)                       \
	LINKED_AS(number, name##_v2_ptsz, 5, type, LIST(parameters), arguments)                    \
	LINKED_AS(number, name##_v2_ptds, 6, type, LIST(parameters), arguments)

#define EACH_COPY(number, type, parameters, arguments...)                                          \
	COPY_AS(number, 0, type, LIST(parameters), arguments)                                      \
	COPY_AS(number, 1, type, LIST(parameters), arguments)                                      \
	COPY_AS(number, 2, type, LIST(parameters), arguments)                                      \
	COPY_AS(number, 3, type, LIST(parameters), arguments)                                      \
	COPY_AS(number, 4, type, LIST(parameters), arguments)                                      \
	COPY_AS(number, 5, type, LIST(parameters), arguments)

#define NARROW(number, name)                                                                       \
	SPELLINGS(number, name, narrow, LIST(SIX), A_TO_F)                                         \
	EACH_COPY(number, narrow, LIST(SIX), A_TO_F)
#define WIDE(number, name)                                                                         \
	SPELLINGS(number, name, wide, LIST(TWELVE), A_TO_L)                                        \
	EACH_COPY(number, wide, LIST(TWELVE), A_TO_L)
#define COPIES_OF(number, name)                                                                    \
	{copy_##number##_0, copy_##number##_1, copy_##number##_2,                                  \
	 copy_##number##_3, copy_##number##_4, copy_##number##_5},

const __u32 preload_row_count = sizeof(preload_rows) / sizeof(*preload_rows);
struct copy preload_copies[sizeof(preload_rows) / sizeof(*preload_rows)][COPIES];
PRELOAD_APIS(NARROW, WIDE)
void *const preload_copy_wrappers[][COPIES] = {PRELOAD_APIS(COPIES_OF, COPIES_OF)};

/* Other names of cudaLaunchKernel, which jump to it inside their library: PyTorch's. */
LINKED_AS(LAUNCH_ROW, __cudaLaunchKernel, 0, wide, LIST(TWELVE), A_TO_L)
LINKED_AS(LAUNCH_ROW, __cudaLaunchKernel_ptsz, 3, wide, LIST(TWELVE), A_TO_L)

/* Gives out functions: (symbol, where to put it, ...). */
static int resolve(void *target, SIX)
{
	int status = ((narrow)target)(A_TO_F);

	if (!status && b)
		*(void **)b = preload_wrapped((const char *)a, *(void **)b);
	return status;
}

#define LINKED_LOOKUP(number, symbol)                                                              \
	EXPORTED int symbol(SIX)                                                                   \
	{                                                                                          \
		void *target = preload_target(number, #symbol, CALLER);                            \
                                                                                                   \
		return target ? resolve(target, A_TO_F) : NO_DEVICE;                               \
	}

#define LOOKUP_COPY(index)                                                                         \
	static int lookup_copy_##index(SIX)                                                        \
	{                                                                                          \
		return resolve(preload_lookup_copies[index].target, A_TO_F);                       \
	}

/* Their keys are behind those of all rows. */
#define LOOKUP_NUMBER(index) ((sizeof(preload_rows) / sizeof(*preload_rows)) * 16 + (index))

LINKED_LOOKUP(LOOKUP_NUMBER(0), cuGetProcAddress)
LINKED_LOOKUP(LOOKUP_NUMBER(1), cuGetProcAddress_v2)
LINKED_LOOKUP(LOOKUP_NUMBER(2), cudaGetDriverEntryPoint)
LINKED_LOOKUP(LOOKUP_NUMBER(3), cudaGetDriverEntryPoint_ptsz)
LINKED_LOOKUP(LOOKUP_NUMBER(4), cudaGetDriverEntryPointByVersion)
LINKED_LOOKUP(LOOKUP_NUMBER(5), cudaGetDriverEntryPointByVersion_ptsz)

LOOKUP_COPY(0)
LOOKUP_COPY(1)
LOOKUP_COPY(2)
LOOKUP_COPY(3)
LOOKUP_COPY(4)
LOOKUP_COPY(5)

struct copy preload_lookup_copies[COPIES];
void *const preload_lookup_wrappers[COPIES] = {
	lookup_copy_0, lookup_copy_1, lookup_copy_2, lookup_copy_3, lookup_copy_4, lookup_copy_5,
};
