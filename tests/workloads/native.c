/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A library between Python and CUDA: three functions deep, optimised, without frame
 * pointers. What it calls is handed in, since a test has CUDA in a library of its own.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int (*allocate)(void **, size_t);
typedef int (*compare)(const void *, const void *);

/* No clone of these is made, and each does something after its call, so none is a jump. */
#define ONE_FUNCTION __attribute__((noinline, noclone, visibility("default")))

static allocate the_allocate;

ONE_FUNCTION int native_inner(size_t size_bytes)
{
	void *address = NULL;
	int status = the_allocate(&address, size_bytes);

	return status + (address == (void *)1);
}

/* A frame whose size is known at run time only: its rule needs the frame pointer. */
ONE_FUNCTION int native_middle(size_t size_bytes, size_t room)
{
	volatile char space[room];

	memset((char *)space, 1, room);
	return native_inner(size_bytes) + space[0] - 1;
}

ONE_FUNCTION int native_outer(allocate function, size_t size_bytes)
{
	the_allocate = function;
	return native_middle(size_bytes, 100 + size_bytes % 50) + 0 * (int)size_bytes;
}

static size_t compared_bytes;

/* What the C library's qsort calls. */
ONE_FUNCTION int native_compare(const void *left, const void *right)
{
	int status = native_inner(compared_bytes);

	return status + *(const int *)left - *(const int *)right;
}

ONE_FUNCTION int native_sort(allocate function, size_t size_bytes)
{
	int numbers[2] = {2, 1};

	the_allocate = function;
	compared_bytes = size_bytes;
	qsort(numbers, 2, sizeof(numbers[0]), native_compare);
	return numbers[0] - 1;
}
