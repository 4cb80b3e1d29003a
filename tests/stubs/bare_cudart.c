/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime that needs no C library, so that programs of any C library can open it. */
#define EXPORT __attribute__((visibility("default"), noinline))

EXPORT int cudaMalloc(void **address, unsigned long size)
{
	*address = (void *)size;
	return 0;
}

EXPORT int cudaFree(void *address)
{
	__asm__ volatile("" : : "r"(address));
	return 0;
}
