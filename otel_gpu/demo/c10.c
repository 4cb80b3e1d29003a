/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for PyTorch's allocator of device memory. It keeps what it takes from cudart.c in
 * segments of 2 MiB for small requests, of 20 MiB for middling ones and of whole 2 MiB for large
 * ones, hands out the smallest free block that is large enough, and splits it where enough is left.
 * What does not fit has the cached segments released, is tried again, and fails.
 *
 * Each block, and each request that fails, is reported as libc10.so does it, with the allocator's
 * lock held. -DOLD_SPELLING gives the functions the names that they had until PyTorch 1.13.
 */
#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default"), noinline, noclone))

#if defined(OLD_SPELLING)
#define report_memory_usage  _ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE
#define report_out_of_memory _ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE
#else
#define report_memory_usage  _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
#define report_out_of_memory _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE
#endif

#define MIB		((size_t)1 << 20)
#define GRAIN_BYTES	512
#define SMALL_BYTES	MIB /* the largest small request */
#define MIDDLING_BYTES	(10 * MIB)
#define MAX_DEVICES	8
#define BINS		64
#define DEVICE_OF_CUDA	1
#define ROUND(size, to) (((size) + (to)-1) / (to) * (to))

int cudaMalloc(void **address, size_t size_bytes);
int cudaFree(void *address);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaSetDevice(int device);

struct device {
	int8_t type;
	int8_t index;
};

struct block {
	uintptr_t address;
	size_t size_bytes;
	struct block *left, *right;    /* in its segment */
	struct block *previous, *next; /* in its bin, while it is free */
	int device;
	bool is_small, is_used;
};

/* Free blocks by the power of two that their size begins at. */
struct pool {
	struct block *bins[BINS];
};

static struct allocator {
	size_t allocated_bytes, reserved_bytes;
	struct pool pools[2];
} allocators[MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *used_blocks; /* a tree by address */
static __thread bool is_profiled;
static volatile uint64_t profiled;

/* The original's first instructions: probes of the second cost least (otel_gpu/capture/probes/probe_sites.py). */
#if defined(__x86_64__)
#define BEGIN_AS_THE_ORIGINAL()                                                                    \
	__asm__ volatile("movq %0, %%rax\n\tpushq %%r14\n\tpopq %%r14" : : "m"(profiled) : "rax")
#else
#define BEGIN_AS_THE_ORIGINAL()
#endif

/* Like the originals, they do nothing in a thread that is not profiled. */
EXPORT void report_memory_usage(void *address, int64_t size_bytes, size_t allocated_bytes,
				size_t reserved_bytes, struct device device)
{
	BEGIN_AS_THE_ORIGINAL();
	if (is_profiled)
		profiled++;
}

EXPORT void report_out_of_memory(int64_t size_bytes, size_t allocated_bytes, size_t reserved_bytes,
				 struct device device)
{
	if (is_profiled)
		profiled++;
}

static struct device device_of(int index)
{
	return (struct device){DEVICE_OF_CUDA, index};
}

static struct block **bin_of(const struct block *block)
{
	struct pool *pool = &allocators[block->device].pools[block->is_small];

	return &pool->bins[63 - __builtin_clzll(block->size_bytes)];
}

static void put_into_bin(struct block *block)
{
	struct block **bin = bin_of(block);

	block->previous = NULL;
	block->next = *bin;
	if (*bin)
		(*bin)->previous = block;
	*bin = block;
}

static void take_from_bin(struct block *block)
{
	if (block->previous)
		block->previous->next = block->next;
	else
		*bin_of(block) = block->next;
	if (block->next)
		block->next->previous = block->previous;
}

static struct block *smallest_fitting(int device, size_t size_bytes)
{
	struct pool *pool = &allocators[device].pools[size_bytes <= SMALL_BYTES];
	struct block *best = NULL;

	for (int bin = 63 - __builtin_clzll(size_bytes); bin < BINS && !best; bin++)
		for (struct block *block = pool->bins[bin]; block; block = block->next)
			if (block->size_bytes >= size_bytes &&
			    (!best || block->size_bytes < best->size_bytes ||
			     (block->size_bytes == best->size_bytes &&
			      block->address < best->address)))
				best = block;
	return best;
}

static struct block *new_segment(int device, size_t size_bytes)
{
	size_t whole_bytes = size_bytes <= SMALL_BYTES	   ? 2 * MIB
			     : size_bytes < MIDDLING_BYTES ? 20 * MIB
							   : ROUND(size_bytes, 2 * MIB);
	struct block *block;
	void *address;

	if (cudaMalloc(&address, whole_bytes))
		return NULL;
	block = calloc(1, sizeof(*block));
	block->address = (uintptr_t)address;
	block->size_bytes = whole_bytes;
	block->device = device;
	block->is_small = size_bytes <= SMALL_BYTES;
	allocators[device].reserved_bytes += whole_bytes;
	put_into_bin(block);
	return block;
}

/* Give back the segments of a device that are free as a whole. */
static void release_cached(int device)
{
	for (int pool = 0; pool < 2; pool++)
		for (int bin = 0; bin < BINS; bin++) {
			struct block *next, *block = allocators[device].pools[pool].bins[bin];

			for (; block; block = next) {
				next = block->next;
				if (block->left || block->right)
					continue;
				take_from_bin(block);
				allocators[device].reserved_bytes -= block->size_bytes;
				cudaFree((void *)block->address);
				free(block);
			}
		}
}

/* Leave what a request does not need of its block to others. */
static void split(struct block *block, size_t size_bytes)
{
	size_t rest_bytes = block->size_bytes - size_bytes;
	struct block *rest;

	if (rest_bytes < GRAIN_BYTES || (!block->is_small && rest_bytes <= SMALL_BYTES))
		return;
	rest = calloc(1, sizeof(*rest));
	*rest = (struct block){
		.address = block->address + size_bytes,
		.size_bytes = rest_bytes,
		.left = block,
		.right = block->right,
		.device = block->device,
		.is_small = block->is_small,
	};
	if (rest->right)
		rest->right->left = rest;
	block->right = rest;
	block->size_bytes = size_bytes;
	put_into_bin(rest);
}

/* Make one of two free neighbours; the right one is gone. */
static void merge(struct block *left, struct block *right)
{
	left->size_bytes += right->size_bytes;
	left->right = right->right;
	if (left->right)
		left->right->left = left;
	free(right);
}

static int by_address(const void *one, const void *other)
{
	uintptr_t left = ((const struct block *)one)->address;
	uintptr_t right = ((const struct block *)other)->address;

	return (left > right) - (left < right);
}

static struct block *allocate(int device, size_t size_bytes)
{
	struct allocator *allocator = &allocators[device];
	struct block *block = smallest_fitting(device, size_bytes);
	size_t free_bytes, total_bytes;

	if (!block)
		block = new_segment(device, size_bytes);
	if (!block) {
		release_cached(device);
		block = new_segment(device, size_bytes);
	}
	if (!block) {
		cudaMemGetInfo(&free_bytes, &total_bytes);
		report_out_of_memory(size_bytes, allocator->allocated_bytes,
				     allocator->reserved_bytes, device_of(device));
		return NULL;
	}
	take_from_bin(block);
	split(block, size_bytes);
	block->is_used = true;
	tsearch(block, &used_blocks, by_address);
	allocator->allocated_bytes += block->size_bytes;
	report_memory_usage((void *)block->address, block->size_bytes, allocator->allocated_bytes,
			    allocator->reserved_bytes, device_of(device));
	return block;
}

static void give_back(struct block *block)
{
	struct allocator *allocator = &allocators[block->device];

	tdelete(block, &used_blocks, by_address);
	block->is_used = false;
	allocator->allocated_bytes -= block->size_bytes;
	report_memory_usage((void *)block->address, -(int64_t)block->size_bytes,
			    allocator->allocated_bytes, allocator->reserved_bytes,
			    device_of(block->device));
	if (block->right && !block->right->is_used) {
		take_from_bin(block->right);
		merge(block, block->right);
	}
	if (block->left && !block->left->is_used) {
		take_from_bin(block->left);
		block = block->left;
		merge(block, block->right);
	}
	put_into_bin(block);
}

/* A block of a device; NULL: the memory is full, or the device does not exist. */
EXPORT void *c10_malloc(int device, size_t size_bytes)
{
	static __thread int current = -1;
	struct block *block;
	void *address;

	if (device < 0 || device >= MAX_DEVICES || size_bytes > SIZE_MAX / 2)
		return NULL;
	if (device != current)
		cudaSetDevice(current = device);
	pthread_mutex_lock(&lock);
	block = allocate(device, size_bytes ? ROUND(size_bytes, GRAIN_BYTES) : GRAIN_BYTES);
	/* Once it is in other hands, it may be free again. */
	address = block ? (void *)block->address : NULL;
	pthread_mutex_unlock(&lock);
	return address;
}

/* The size of the block that is free again; 0: nothing was allocated there. */
EXPORT size_t c10_free(void *address)
{
	struct block key = {.address = (uintptr_t)address}, **found;
	size_t size_bytes = 0;

	pthread_mutex_lock(&lock);
	found = tfind(&key, &used_blocks, by_address);
	if (found) {
		size_bytes = (*found)->size_bytes;
		give_back(*found);
	}
	pthread_mutex_unlock(&lock);
	return size_bytes;
}

/* The size of a block in use; 0: nothing was allocated there. */
EXPORT size_t c10_block_bytes(void *address)
{
	struct block key = {.address = (uintptr_t)address}, **found;
	size_t size_bytes;

	pthread_mutex_lock(&lock);
	found = tfind(&key, &used_blocks, by_address);
	size_bytes = found ? (*found)->size_bytes : 0;
	pthread_mutex_unlock(&lock);
	return size_bytes;
}

EXPORT void c10_empty_cache(int device)
{
	pthread_mutex_lock(&lock);
	release_cached(device);
	pthread_mutex_unlock(&lock);
}

EXPORT size_t c10_allocated_bytes(int device)
{
	return allocators[device].allocated_bytes;
}

EXPORT size_t c10_reserved_bytes(int device)
{
	return allocators[device].reserved_bytes;
}

/* The largest block that could be handed out without asking the device. */
EXPORT size_t c10_largest_free_bytes(int device)
{
	size_t largest_bytes = 0;

	pthread_mutex_lock(&lock);
	for (int pool = 0; pool < 2; pool++)
		for (int bin = 0; bin < BINS; bin++)
			for (struct block *block = allocators[device].pools[pool].bins[bin]; block;
			     block = block->next)
				if (block->size_bytes > largest_bytes)
					largest_bytes = block->size_bytes;
	pthread_mutex_unlock(&lock);
	return largest_bytes;
}
