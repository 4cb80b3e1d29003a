// SPDX-License-Identifier: Apache-2.0
/*
 * The memory that the preload library counts in: made at the first call of a process, and a slot of it taken at
 * the first call of a thread. Whatever fails leaves the program's calls as they are, uncounted.
 *
 * A fork has a memory of its own: the shared one is not inherited, and a page that the kernel wipes
 * in the child shows that, however the child was made.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "glibc.h"
#include "interruptions.h"
#include "layout.h"
#include "memory.h"
#include "names.h"
#include "reported_calls.h"
#include "series.h"
#include "state.h"
#include "step_detection.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8
#endif

#define TRIES_WHILE_BEGUN 100000
#define RETRY_CALLS	  4096 /* of a thread without a slot, before it tries again */

static pthread_key_t exit_key;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

/* A file above the program's limit would be its end. */
static bool may_be_as_large(void)
{
	struct rlimit limit;

	return !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur >= PRELOAD_BYTES;
}

static char *map_memory(void)
{
	char *mapped = MAP_FAILED;
	int file;

	if (!may_be_as_large())
		return MAP_FAILED;
	file = syscall(SYS_memfd_create, PRELOAD_NAME,
		       MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (file < 0 && errno == EINVAL) /* before Linux 6.3 */
		file = syscall(SYS_memfd_create, PRELOAD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (file < 0)
		return MAP_FAILED;
	if (!ftruncate(file, PRELOAD_BYTES) &&
	    !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		mapped = mmap(NULL, PRELOAD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	if (mapped == MAP_FAILED)
		return mapped;
	if (madvise(mapped, PRELOAD_BYTES, MADV_DONTFORK)) {
		munmap(mapped, PRELOAD_BYTES);
		return MAP_FAILED;
	}
	madvise(mapped, PRELOAD_BYTES, MADV_DONTDUMP); /* of cores, which would be larger */
	return mapped;
}

static void begin_memory(void)
{
	char *mapped = map_memory();
	__u64 now_ktime_ns;

	if (mapped == MAP_FAILED) {
		__atomic_store_n(&preload_guard->state, MEMORY_REFUSED, __ATOMIC_RELEASE);
		return;
	}
	preload_memory = mapped;
	preload_begin_clock();
	now_ktime_ns = ktime_ns(&preload_self.clock);
	HEADER->size_bytes = PRELOAD_BYTES;
	HEADER->start_ktime_ns = now_ktime_ns;
	HEADER->version = PRELOAD_VERSION;
	HEADER->pid = getpid();
	HEADER->clock = preload_rate.is_usable ? PRELOAD_CLOCK_CYCLES : PRELOAD_CLOCK_SYSTEM;
	__atomic_store_n(&HEADER->magic, PRELOAD_MAGIC, __ATOMIC_RELEASE);
	__atomic_store_n(&preload_guard->epoch, now_ktime_ns, __ATOMIC_RELAXED);
	__atomic_store_n(&preload_guard->state, MEMORY_READY, __ATOMIC_RELEASE);
}

/*
 * The thread ends: its slot is another one's, with what it has counted. The agent's probe is the last
 * to see in which calls it was.
 */
static void leave_slot(void *slot)
{
	if (preload_self.slot != slot || preload_guard->epoch != preload_self.epoch)
		return;
	if (CONTROL->generation)
		otel_gpu_preload_thread(NO_SLOT, preload_memory);
	leave_detector();
	preload_self.slot = NULL;
	preload_self.epoch = 0;
	((struct preload_slot *)slot)->depth = 0;
	__atomic_store_n(&((struct preload_slot *)slot)->tid, 0, __ATOMIC_RELEASE);
}

static void make_exit_key(void)
{
	struct guard *page = mmap(NULL, sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const char *wanted = getenv("OTEL_GPU_PRELOAD");

	if (page == MAP_FAILED)
		return;
	if (getauxval(AT_SECURE) || (wanted && !strcmp(wanted, "0")) ||
	    madvise(page, sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) ||
	    pthread_key_create(&exit_key, leave_slot)) {
		munmap(page, sysconf(_SC_PAGESIZE));
		return;
	}
	preload_find_sequence_names();
	preload_guard = page;
}

/* Whether there is a memory, after all that can be done about it was done. */
static bool is_ready(void)
{
	__u32 state = MEMORY_NONE;

	pthread_once(&exit_key_once, make_exit_key);
	if (!preload_guard)
		return false;
	if (__atomic_compare_exchange_n(&preload_guard->state, &state, MEMORY_BEGUN, false,
					__ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
		begin_memory();
	for (int i = 0; i < TRIES_WHILE_BEGUN; i++) {
		state = __atomic_load_n(&preload_guard->state, __ATOMIC_ACQUIRE);
		if (state != MEMORY_BEGUN)
			break;
		sched_yield();
	}
	return state == MEMORY_READY;
}

static bool take_slot(struct preload_slot *slot, __u32 from_tid, __u32 tid)
{
	return __atomic_compare_exchange_n(&slot->tid, &from_tid, tid, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/* A free slot; where there is none, one of a thread that has ended without saying so. */
static struct preload_slot *find_slot(__u32 tid)
{
	for (__u32 i = 0; i < PRELOAD_SLOTS; i++) {
		__u32 holder = SLOTS[i].tid; /* or of one that had the same number */

		if ((!holder || holder == tid) && take_slot(&SLOTS[i], holder, tid))
			return &SLOTS[i];
	}
	for (__u32 i = 0; i < PRELOAD_SLOTS; i++) {
		__u32 holder = SLOTS[i].tid;

		if (holder && syscall(SYS_tgkill, getpid(), holder, 0) && errno == ESRCH &&
		    take_slot(&SLOTS[i], holder, tid))
			return &SLOTS[i];
	}
	return NULL;
}

/* The agent has to count by probes then. It may have come a moment ago. */
static void say_refusal(void)
{
	if (!preload_guard || preload_guard->state == MEMORY_REFUSED)
		otel_gpu_preload_thread(NULL, NULL);
}

/* As the agent's probe has it of this thread. */
static const struct preload_slot *own_slot(void)
{
	return preload_self.epoch && !preload_self.slot ? NO_SLOT : preload_self.slot;
}

/* Whether there is a memory; leaves errno as it is. */
static bool begin_early(void)
{
	sigset_t every_signal, kept_signals;
	int kept_errno = errno;
	bool has_memory;

	/* See preload_begin_thread(). */
	sigfillset(&every_signal);
	pthread_sigmask(SIG_SETMASK, &every_signal, &kept_signals);
	has_memory = is_ready();
	pthread_sigmask(SIG_SETMASK, &kept_signals, NULL);
	errno = kept_errno;
	return has_memory;
}

void preload_begin_early(bool is_reported)
{
	if (begin_early() && is_reported)
		otel_gpu_preload_thread(own_slot(), preload_memory);
}

/* If no agent is there yet, a later one reads it in the memory. */
void preload_bind_past(void)
{
	if (!begin_early())
		return;
	preload_count_loss(PRELOAD_LOST_BOUND_PAST);
	otel_gpu_preload_thread(own_slot(), NULL);
}

static int is_cuda_library(struct dl_phdr_info *info, size_t size, void *nothing)
{
	(void)size;
	(void)nothing;
	return preload_is_cuda(info->dlpi_name);
}

/* A program that is linked with CUDA was stopped for its probes before, and stops here once more. */
__attribute__((constructor)) static void begin_with_program(void)
{
	if (dl_iterate_phdr(is_cuda_library, NULL))
		preload_begin_early(true);
}

/* The first call of a thread in this process. Never called with a slot that is its own. */
void preload_begin_thread(void)
{
	sigset_t every_signal, kept_signals;
	int kept_errno = errno;
	struct preload_slot *slot = NULL;
	__u64 known_epoch = preload_self.epoch;
	__u32 begun;

	preload_self.slot = NULL;
	preload_self.epoch = 0;
	preload_self.detector = NULL;
	preload_self.until_detector = 0;
	preload_self.until_retry = RETRY_CALLS;
	/* Their handlers may make calls, and would wait for what this thread has begun. */
	sigfillset(&every_signal);
	pthread_sigmask(SIG_SETMASK, &every_signal, &kept_signals);
	if (!is_ready()) {
		say_refusal();
		goto done;
	}
	slot = find_slot(syscall(SYS_gettid));
	preload_self.epoch = preload_guard->epoch;
	if (!slot || pthread_setspecific(exit_key, slot)) {
		if (slot)
			__atomic_store_n(&slot->tid, 0, __ATOMIC_RELEASE);
		if (known_epoch != preload_self.epoch) {
			preload_count_loss(PRELOAD_LOST_SLOTS_FULL);
			otel_gpu_preload_thread(NULL, preload_memory);
		}
		goto done;
	}
	begun = __atomic_load_n(&HEADER->slots_begun, __ATOMIC_RELAXED);
	while (begun <= slot - SLOTS &&
	       !__atomic_compare_exchange_n(&HEADER->slots_begun, &begun, slot - SLOTS + 1, false,
					    __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
	slot->depth = 0;
	slot->device = preload_self.device;
	slot->last_return_ktime_ns = 0;
	slot->last_api = 0;
	/* Threads that make few calls go on from each other; the first one begins anywhere. */
	if (!slot->threads)
		slot->until_sample = (__u32)(cycles_now() * 2654435761u >> 8);
	slot->generation = CONTROL->generation;
	slot->threads++;
	slot->begun_ktime_ns = ktime_ns(&preload_self.clock);
	preload_self.sequence_name = preload_sequence_name();
	memset(preload_self.series, 0, sizeof(preload_self.series));
	for (__u32 i = 0; i < slot->series_begun && i < PRELOAD_SLOT_SERIES; i++)
		index_series(slot, i);
	preload_self.slot = slot;
	otel_gpu_preload_thread(slot, preload_memory);
done:
	pthread_sigmask(SIG_SETMASK, &kept_signals, NULL);
	errno = kept_errno;
}
