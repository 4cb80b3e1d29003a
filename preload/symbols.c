// SPDX-License-Identifier: Apache-2.0
/*
 * How calls come to the preload library: by name, since it is preloaded; and by what dlsym() and the driver's
 * own lookups give out, which is wrapped here.
 *
 * A process may have several libraries that export the same function: two versions of the runtime,
 * or another tool's wrappers. So which function a wrapper goes on to depends on who calls it: what
 * comes after the preload library in the order of the program, as for any preloaded library, or what the
 * caller's own libraries have. It is looked up once for each place that calls, and never unloaded
 * from then on.
 *
 * dlsym() may ask who calls it. Such calls go on to the real one as they came.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "compiler.h"
#include "copies.h"
#include "glibc.h"
#include "layout.h"
#include "names.h"
#include "row.h"
#include "state.h"
#include "symbols.h"

#define PROBES	      8
#define MAX_LIBRARIES 8
#define MAX_PATH      1024

typedef void *(*find_symbol)(void *, const char *);

struct place preload_places[PLACES];
HIDDEN find_symbol preload_real_dlsym;

/* dlvsym() is not wrapped, so it finds the next one. */
HIDDEN find_symbol preload_find_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};

	for (unsigned i = 0; i < sizeof(versions) / sizeof(*versions) && !preload_real_dlsym; i++)
		preload_real_dlsym = (find_symbol)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	return preload_real_dlsym;
}

static void *real_dlsym(void *handle, const char *name)
{
	find_symbol find = preload_real_dlsym ? preload_real_dlsym : preload_find_dlsym();

	return find ? find(handle, name) : NULL;
}

void *preload_next(const char *name)
{
	return real_dlsym(RTLD_NEXT, name);
}

/* Whether an address is in a CUDA library, and not in the program or in another tool. */
static bool is_in_cuda(const void *address)
{
	Dl_info info;

	return dladdr(address, &info) && preload_is_cuda(info.dli_fname);
}

static const void *base_of(const void *address)
{
	Dl_info info;

	return dladdr(address, &info) ? info.dli_fbase : NULL;
}

static bool is_in(const void *address, const void *base)
{
	return base && base_of(address) == base;
}

/* Keep the library of a found function loaded, even if the program closes it. */
static void pin(const void *address)
{
	Dl_info info;

	if (dladdr(address, &info) && *info.dli_fname)
		dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

/* What the libraries of the caller have, in their order. */
static void *find_for(const char *symbol, const void *caller)
{
	struct link_map *map = NULL;
	void *handle, *found = NULL;
	Dl_info info;

	if (!dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) || !map)
		return NULL;
	handle = dlopen(*map->l_name ? map->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
	if (!handle)
		return NULL;
	found = real_dlsym(handle, symbol);
	dlclose(handle);
	return found && !is_in(found, base_of((const void *)preload_find_dlsym)) &&
			       !is_in(found, info.dli_fbase)
		       ? found
		       : NULL;
}

/* Libraries of CUDA that are loaded. */
struct libraries {
	unsigned count;
	char paths[MAX_LIBRARIES][MAX_PATH];
};

/* Only this: nothing can be opened while the lock of this is held. */
static int note_library(struct dl_phdr_info *info, size_t size, void *argument)
{
	struct libraries *libraries = argument;
	size_t length = strlen(info->dlpi_name);

	(void)size;
	if (preload_is_cuda(info->dlpi_name) && length < MAX_PATH)
		memcpy(libraries->paths[libraries->count++], info->dlpi_name, length + 1);
	return libraries->count == MAX_LIBRARIES;
}

/* In a library that is not in the caller's scope: its functions were passed to the caller. */
static void *find_anywhere(const char *symbol)
{
	struct libraries libraries = {.count = 0};
	void *found = NULL;

	dl_iterate_phdr(note_library, &libraries);
	for (unsigned i = 0; i < libraries.count && !found; i++) {
		void *handle = dlopen(libraries.paths[i], RTLD_LAZY | RTLD_NOLOAD);

		if (handle) {
			found = real_dlsym(handle, symbol);
			dlclose(handle);
		}
	}
	return found;
}

/* What the caller would have without the preload library. */
static void *find_in_scope(const char *symbol, const void *caller)
{
	void *next = real_dlsym(RTLD_NEXT, symbol), *own;

	if (next && !is_in_cuda(next)) /* another tool's, which comes after the preload library */
		return next;
	own = find_for(symbol, caller);
	/* Another tool, which comes before the preload library, has the name as well. */
	return own && (is_in_cuda(own) || !next) ? own : next;
}

/*
 * The function that a place that calls means, where it is not the first one with its hash. A place is
 * never taken back, so that threads may read while others add.
 */
void *preload_resolve(__u64 key, const char *symbol, const void *caller)
{
	__u32 at = place_of(key);
	sigset_t every_signal, kept_signals;
	int kept_errno;
	void *target;

	for (int i = 0; i < PROBES; i++) {
		struct place *place = &preload_places[(at + i) % PLACES];
		__u64 held = __atomic_load_n(&place->key, __ATOMIC_ACQUIRE);

		if (held == key)
			return place->target;
		if (!held)
			break;
	}
	kept_errno = errno;
	/* A handler that resolves a symbol as well would wait for what this thread holds. */
	sigfillset(&every_signal);
	pthread_sigmask(SIG_SETMASK, &every_signal, &kept_signals);
	target = find_in_scope(symbol, caller);
	if (!target)
		target = find_anywhere(symbol);
	if (target)
		pin(target);
	pthread_sigmask(SIG_SETMASK, &kept_signals, NULL);
	for (int i = 0; target && i < PROBES; i++) {
		struct place *place = &preload_places[(at + i) % PLACES];
		void *unset = NULL;

		if (__atomic_compare_exchange_n(&place->target, &unset, target, false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			__atomic_store_n(&place->key, key, __ATOMIC_RELEASE);
			break;
		}
	}
	errno = kept_errno;
	return target;
}

/* A wrapper of a function of its own; one that there is already for it, or a new one. */
static void *take_copy(struct copy *copies, void *const *wrappers, void *found, __u16 variant)
{
	for (int i = 0; i < COPIES; i++) {
		void *unset = NULL;

		if (__atomic_load_n(&copies[i].target, __ATOMIC_ACQUIRE) == found)
			return wrappers[i];
		if (__atomic_compare_exchange_n(&copies[i].target, &unset, found, false,
						__ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			copies[i].variant = variant;
			pin(found);
			return wrappers[i];
		}
		if (unset == found)
			return wrappers[i];
	}
	preload_count_loss(PRELOAD_LOST_COPIES_FULL);
	return found;
}

/* What a caller gets for a function that it resolves; the function itself, if no row has it. */
void *preload_wrapped(const char *symbol, void *found)
{
	const struct row *row;
	__u16 variant = 0, exported;
	int kept_errno = errno;
	Dl_info info;

	if (!found || !symbol || (strncmp(symbol, "cu", 2) && strncmp(symbol, "__cu", 4)))
		return found;
	if (preload_is_lookup(symbol)) {
		if (is_in_cuda(found))
			found = take_copy(preload_lookup_copies, preload_lookup_wrappers, found, 0);
		errno = kept_errno;
		return found;
	}
	row = preload_find_row(symbol, &variant);
	if (row && is_in_cuda(found)) {
		/* The driver is asked for a function, and its answer shows which spelling was meant. */
		if (dladdr(found, &info) && info.dli_saddr == found && info.dli_sname &&
		    preload_find_row(info.dli_sname, &exported) == row)
			variant = exported;
		found = take_copy(preload_copies[row - preload_rows],
				  preload_copy_wrappers[row - preload_rows], found, variant);
	}
	errno = kept_errno;
	return found;
}

/* dlsym() with a handle, which does not depend on the caller. */
HIDDEN void *preload_dlsym(void *handle, const char *name)
{
	return preload_wrapped(name, real_dlsym(handle, name));
}

static bool is_own(const void *address)
{
	Dl_info own, other;

	return dladdr(preload_places, &own) && dladdr(address, &other) &&
	       own.dli_fbase == other.dli_fbase;
}

/*
 * Whether a caller asks for a function that, in its scope, only the preload library has: so programs
 * find out whether CUDA is installed.
 */
HIDDEN int preload_is_alone(const char *name, const void *caller)
{
	__u16 variant;
	void *first;

	if (!name || (strncmp(name, "cu", 2) && strncmp(name, "__cu", 4)))
		return 0;
	if (!preload_find_row(name, &variant) && !preload_is_lookup(name))
		return 0;
	/* The program may have it, which comes before the preload library. */
	first = real_dlsym(RTLD_DEFAULT, name);
	if ((first && !is_own(first)) || find_in_scope(name, caller))
		return 0;
	real_dlsym(RTLD_NEXT, name); /* so that dlerror() has the reason */
	return 1;
}

#if defined(__x86_64__)
/* RTLD_NEXT is -1 and RTLD_DEFAULT 0: their meaning depends on the return address. */
__asm__(".text\n"
	".globl dlsym\n"
	".type dlsym, @function\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	cmpq $-1, %rdi\n"
	"	je 2f\n"
	"	testq %rdi, %rdi\n"
	"	je 1f\n"
	"	jmp preload_dlsym\n"
	"1:	pushq %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	movq %rsi, %rdi\n"
	"	movq 8(%rsp), %rsi\n"
	"	call preload_is_alone\n"
	"	popq %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	xorl %edi, %edi\n"
	"	testl %eax, %eax\n"
	"	je 2f\n"
	"	xorl %eax, %eax\n"
	"	ret\n"
	"2:	movq preload_real_dlsym(%rip), %rax\n"
	"	testq %rax, %rax\n"
	"	je 3f\n"
	"	jmp *%rax\n"
	"3:	pushq %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	pushq %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	subq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call preload_find_dlsym\n"
	"	addq $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	popq %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	jmp *%rax\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
	".globl dlsym\n"
	".type dlsym, %function\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	hint #34\n"
	"	cmn x0, #1\n"
	"	b.eq 2f\n"
	"	cbz x0, 1f\n"
	"	b preload_dlsym\n"
	"1:	stp x29, x30, [sp, #-32]!\n"
	"	.cfi_adjust_cfa_offset 32\n"
	"	.cfi_rel_offset x30, 8\n"
	"	str x1, [sp, #16]\n"
	"	mov x0, x1\n"
	"	mov x1, x30\n"
	"	bl preload_is_alone\n"
	"	ldr x1, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	.cfi_adjust_cfa_offset -32\n"
	"	.cfi_restore x30\n"
	"	mov w2, w0\n"
	"	mov x0, #0\n"
	"	cbz w2, 2f\n"
	"	ret\n"
	"2:	adrp x16, preload_real_dlsym\n"
	"	ldr x16, [x16, :lo12:preload_real_dlsym]\n"
	"	cbz x16, 3f\n"
	"	br x16\n"
	"3:	stp x29, x30, [sp, #-32]!\n"
	"	.cfi_adjust_cfa_offset 32\n"
	"	.cfi_rel_offset x30, 8\n"
	"	stp x0, x1, [sp, #16]\n"
	"	bl preload_find_dlsym\n"
	"	mov x16, x0\n"
	"	ldp x0, x1, [sp, #16]\n"
	"	ldp x29, x30, [sp], #32\n"
	"	.cfi_adjust_cfa_offset -32\n"
	"	.cfi_restore x30\n"
	"	br x16\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n");
#endif
