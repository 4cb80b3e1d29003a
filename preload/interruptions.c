// SPDX-License-Identifier: Apache-2.0
/* Whether a thread was interrupted between two of its steps: see interruptions.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#include "glibc.h"
#include "interruptions.h"
#include "layout.h"

#define NAME_OFFSET    8 /* in struct rseq, of its rseq_cs */
#define MIN_AREA_BYTES 20
#define GLIBC	       "GLIBC_2.35"

#if defined(__aarch64__)
#define SIGNATURE 0xd428bc00
#else
#define SIGNATURE 0x53053053
#endif

static const __u32 signature[] = {SIGNATURE, 0};

const struct sequence preload_nobodys_sequence = {
	.start = (__u64)&preload_nobodys_sequence, /* data, and a byte of it */
	.size = 1,
	.abort = (__u64)&signature[1],
};

static char *thread_pointer(void)
{
#if defined(__x86_64__)
	char *pointer; /* older compilers know no builtin for it */

	__asm__("mov %%fs:0, %0" : "=r"(pointer));
	return pointer;
#else
	return __builtin_thread_pointer();
#endif
}

static ptrdiff_t name_offset; /* from the thread pointer; 0: there is none */

void preload_find_sequence_names(void)
{
	const ptrdiff_t *area_offset = dlvsym(RTLD_DEFAULT, "__rseq_offset", GLIBC);
	const unsigned int *area_bytes = dlvsym(RTLD_DEFAULT, "__rseq_size", GLIBC);

	if (area_offset && area_bytes && *area_bytes >= MIN_AREA_BYTES)
		name_offset = *area_offset + NAME_OFFSET;
}

volatile __u64 *preload_sequence_name(void)
{
	static __thread __u64 nobody_clears_it __attribute__((tls_model("initial-exec")));

	if (!name_offset)
		return &nobody_clears_it;
	return (volatile __u64 *)(thread_pointer() + name_offset);
}
