// SPDX-License-Identifier: Apache-2.0
/*
 * What a program loads: CUDA, whose calls will come soon; or a library that binds past the preload library.
 * With RTLD_DEEPBIND a library takes functions of its own dependencies before those of preloaded
 * libraries, and with dlmopen() it has a namespace of its own. Its calls are not seen here, so the
 * agent is notified to count them with probes.
 *
 * dlopen() asks who calls it, for that one's search path: the calls go on as they came.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "compiler.h"
#include "memory.h"
#include "names.h"
#include "symbols.h"

void *preload_next_dlopen(const char *path, int flags);
void *preload_next_dlmopen(Lmid_t namespace, const char *path, int flags);

HIDDEN void *preload_next_dlopen(const char *path, int flags)
{
	if (path && flags & RTLD_DEEPBIND)
		preload_bind_past();
	/* The agent reads the program's maps when the library is there, and finds the memory. */
	else if (preload_is_cuda(path))
		preload_begin_early(false);
	return preload_next("dlopen");
}

HIDDEN void *preload_next_dlmopen(Lmid_t namespace, const char *path, int flags)
{
	if (path && (namespace != LM_ID_BASE || flags & RTLD_DEEPBIND))
		preload_bind_past();
	return preload_next("dlmopen");
}

#if defined(__x86_64__)
#define PASS_ON(name)                                                                              \
	__asm__(".text\n"                                                                          \
		".globl " name "\n"                                                                \
		".type " name ", @function\n" name ":\n"                                           \
		"	.cfi_startproc\n"                                                                \
		"	endbr64\n"                                                                       \
		"	pushq %rdi\n"                                                                    \
		"	.cfi_adjust_cfa_offset 8\n"                                                      \
		"	pushq %rsi\n"                                                                    \
		"	.cfi_adjust_cfa_offset 8\n"                                                      \
		"	pushq %rdx\n"                                                                    \
		"	.cfi_adjust_cfa_offset 8\n"                                                      \
		"	call preload_next_" name "\n"                                              \
		"	popq %rdx\n"                                                                     \
		"	.cfi_adjust_cfa_offset -8\n"                                                     \
		"	popq %rsi\n"                                                                     \
		"	.cfi_adjust_cfa_offset -8\n"                                                     \
		"	popq %rdi\n"                                                                     \
		"	.cfi_adjust_cfa_offset -8\n"                                                     \
		"	testq %rax, %rax\n"                                                              \
		"	je 1f\n"                                                                         \
		"	jmp *%rax\n"                                                                     \
		"1:	ret\n"                                                                         \
		"	.cfi_endproc\n"                                                                  \
		".size " name ", . - " name "\n")
#elif defined(__aarch64__)
#define PASS_ON(name)                                                                              \
	__asm__(".text\n"                                                                          \
		".globl " name "\n"                                                                \
		".type " name ", %function\n" name ":\n"                                           \
		"	.cfi_startproc\n"                                                                \
		"	hint #34\n"                                                                      \
		"	stp x29, x30, [sp, #-48]!\n"                                                     \
		"	.cfi_adjust_cfa_offset 48\n"                                                     \
		"	.cfi_rel_offset x30, 8\n"                                                        \
		"	stp x0, x1, [sp, #16]\n"                                                         \
		"	str x2, [sp, #32]\n"                                                             \
		"	bl preload_next_" name "\n"                                                \
		"	mov x16, x0\n"                                                                   \
		"	ldr x2, [sp, #32]\n"                                                             \
		"	ldp x0, x1, [sp, #16]\n"                                                         \
		"	ldp x29, x30, [sp], #48\n"                                                       \
		"	.cfi_adjust_cfa_offset -48\n"                                                    \
		"	.cfi_restore x30\n"                                                              \
		"	cbz x16, 1f\n"                                                                   \
		"	br x16\n"                                                                        \
		"1:	mov x0, #0\n"                                                                  \
		"	ret\n"                                                                           \
		"	.cfi_endproc\n"                                                                  \
		".size " name ", . - " name "\n")
#endif

PASS_ON("dlopen");
PASS_ON("dlmopen");
