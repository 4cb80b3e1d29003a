/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands in for the device and the network in the stub of NCCL: ranks, in as many processes
 * as one likes, that wait for each other.
 *
 * The unique id names a memory file of the process that made it. There, each communicator has one
 * `struct group`, in which each rank says how far it has come. A collective is done once all ranks
 * have queued the one of its number, and asked for the same. Work on streams and events is a list
 * of collectives that have to be done.
 */
#ifndef NCCL_WORLD_H
#define NCCL_WORLD_H

#include "stub.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#define MAX_RANKS   16
#define MAX_GROUPS  64
#define MAX_AHEAD   512 /* collectives that a rank may queue before the last one does */
#define MAX_SPLITS  8
#define MAX_TICKETS 4
#define MAX_HANDLES 4096
#define ID_BYTES    128
#define NOT_READY   600

typedef struct stub_handle *stream_t, *event_t;

struct slot {
	uint64_t number, signature, done_ns;
	uint32_t arrived, padding;
};

struct split {
	int child, arrived;
	int color[MAX_RANKS], key[MAX_RANKS];
};

/* One communicator. */
struct group {
	_Atomic uint32_t lock, attached, aborted;
	uint32_t ranks;
	uint64_t hash;
	uint64_t never_from; /* collectives that will not be done */
	_Atomic uint64_t called[MAX_RANKS];
	struct split splits[MAX_SPLITS];
	struct slot slots[MAX_AHEAD];
};

struct world {
	_Atomic uint32_t lock;
	uint32_t used;
	struct group groups[MAX_GROUPS];
};

/* The first field is what makes the names of larger communicators, as in the real one. */
struct unique_id {
	uint64_t magic;
	char stub[16];
	int pid, file;
	char random[ID_BYTES - 32];
};

/* Of all collectives of this process; see `settle`. */
static uint64_t never_from = UINT64_MAX, device_ns;
static int launches = 1; /* kernels, through the stub of the runtime */

static void lock(_Atomic uint32_t *word)
{
	while (atomic_exchange(word, 1))
		sched_yield();
}

static void unlock(_Atomic uint32_t *word)
{
	atomic_store(word, 0);
}

/* As in NCCL, so that a communicator has the same number here and there. */
static void eat(uint64_t state[2], const void *bytes, size_t size)
{
	const char *at = bytes;

	state[0] ^= size;
	while (size) {
		size_t chunk = size < 8 ? size : 8;
		uint64_t read = 0;

		state[0] += state[1];
		state[1] ^= state[0];
		state[0] ^= state[0] >> 31;
		state[0] *= 0x9de62bbc8cef3ce3;
		state[1] ^= state[1] >> 32;
		state[1] *= 0x485cd6311b599e79;
		memcpy(&read, at, chunk);
		at += chunk;
		size -= chunk;
		state[0] += read;
	}
}

static uint64_t digest(const uint64_t state[2])
{
	uint64_t hash = state[0];

	hash ^= hash >> 31;
	hash *= 0xbac3bd562846de6b;
	hash += state[1];
	hash ^= hash >> 32;
	return hash * 0x995a187a14e7b445;
}

static uint64_t hash_of_id(const void *id)
{
	uint64_t state[2] = {1, 1};

	eat(state, id, ID_BYTES);
	return digest(state);
}

static uint64_t hash_of_child(uint64_t parent, int child, int color)
{
	uint64_t state[2] = {1, 1};

	eat(state, &parent, sizeof(parent));
	eat(state, &child, sizeof(child));
	eat(state, &color, sizeof(color));
	return digest(state);
}

static uint64_t combine(uint64_t base, uint64_t value)
{
	uint64_t state[2] = {1, 1};

	eat(state, &base, sizeof(base));
	eat(state, &value, sizeof(value));
	return digest(state);
}

static int make_id(struct unique_id *id)
{
	int file = memfd_create("nccl stub", MFD_CLOEXEC);

	if (file < 0 || ftruncate(file, sizeof(struct world)) || getentropy(id, sizeof(*id)))
		return -1;
	memcpy(id->stub, "nccl stub world", sizeof(id->stub));
	id->pid = getpid();
	id->file = file;
	return 0;
}

static struct world *open_world(const struct unique_id *id)
{
	struct world *world;
	char path[64];
	int file;

	if (memcmp(id->stub, "nccl stub world", sizeof(id->stub)))
		return NULL;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", id->pid, id->file);
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file < 0)
		return NULL;
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return world == MAP_FAILED ? NULL : world;
}

/* The communicator of this number, which the first rank makes. NULL: there are too many. */
static struct group *group_of(struct world *world, uint64_t hash, int ranks)
{
	struct group *found = NULL;

	lock(&world->lock);
	for (uint32_t i = 0; i < world->used && !found; i++)
		if (world->groups[i].hash == hash && world->groups[i].ranks == (uint32_t)ranks)
			found = &world->groups[i];
	if (!found && world->used < MAX_GROUPS) {
		found = &world->groups[world->used++];
		found->hash = hash;
		found->ranks = ranks;
		found->never_from = UINT64_MAX;
	}
	unlock(&world->lock);
	return found;
}

static uint64_t least_called(const struct group *group)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < group->ranks; i++)
		if (group->called[i] < least)
			least = group->called[i];
	return least;
}

/* Queue a collective; waits while the rank is too far ahead of others. */
static void arrive(struct group *group, int rank, uint64_t number, uint64_t signature)
{
	struct slot *slot = &group->slots[number % MAX_AHEAD];

	while (number >= least_called(group) + MAX_AHEAD && !group->aborted)
		sleep_for(50000);
	lock(&group->lock);
	if (slot->number != number)
		*slot = (struct slot){.number = number, .signature = signature};
	if (slot->signature != signature && number < group->never_from)
		group->never_from = number;
	if (++slot->arrived == group->ranks)
		slot->done_ns = monotonic_ns() + device_ns;
	group->called[rank] = number;
	unlock(&group->lock);
}

static int is_done(struct group *group, uint64_t number)
{
	struct slot *slot = &group->slots[number % MAX_AHEAD];
	int done;

	if (group->aborted)
		return 1;
	if (number >= never_from || number >= group->never_from)
		return 0;
	lock(&group->lock);
	done = slot->number > number || (slot->number == number && slot->arrived == group->ranks &&
					 slot->done_ns <= monotonic_ns());
	unlock(&group->lock);
	return done;
}

/* Streams and events. */

struct ticket {
	struct group *group;
	uint64_t number;
};

struct handle {
	uintptr_t key; /* 0: free */
	struct ticket tickets[MAX_TICKETS];
};

static struct handle handles[MAX_HANDLES];
static pthread_mutex_t handles_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Handles are multiples of 16. */
#define STREAM_KEY(stream) ((uintptr_t)(stream) + 1)
#define EVENT_KEY(event)   ((uintptr_t)(event) + 2)

/* With the mutex held. */
static struct handle *handle_of(uintptr_t key)
{
	uintptr_t at = key * 0x9e3779b97f4a7c15 >> 32;

	for (int i = 0; i < MAX_HANDLES; i++, at++) {
		struct handle *handle = &handles[at % MAX_HANDLES];

		if (!handle->key)
			handle->key = key;
		if (handle->key == key)
			return handle;
	}
	fprintf(stderr, "stub: too many streams and events\n");
	abort();
}

static void add_ticket(struct handle *handle, struct ticket ticket)
{
	struct ticket *place = NULL;

	for (int i = 0; i < MAX_TICKETS; i++)
		if (handle->tickets[i].group == ticket.group)
			place = &handle->tickets[i];
	for (int i = 0; i < MAX_TICKETS && !place; i++)
		if (!handle->tickets[i].group ||
		    is_done(handle->tickets[i].group, handle->tickets[i].number))
			place = &handle->tickets[i];
	if (!place) {
		fprintf(stderr, "stub: too many communicators on one stream\n");
		abort();
	}
	if (place->group != ticket.group || place->number < ticket.number)
		*place = ticket;
}

static void queue_on(stream_t stream, struct group *group, uint64_t number)
{
	pthread_mutex_lock(&handles_mutex);
	add_ticket(handle_of(STREAM_KEY(stream)), (struct ticket){group, number});
	pthread_mutex_unlock(&handles_mutex);
}

static void stream_waits(stream_t stream, event_t event)
{
	pthread_mutex_lock(&handles_mutex);
	for (int i = 0; i < MAX_TICKETS; i++) {
		struct ticket ticket = handle_of(EVENT_KEY(event))->tickets[i];

		if (ticket.group)
			add_ticket(handle_of(STREAM_KEY(stream)), ticket);
	}
	pthread_mutex_unlock(&handles_mutex);
}

static void record(event_t event, stream_t stream)
{
	pthread_mutex_lock(&handles_mutex);
	memcpy(handle_of(EVENT_KEY(event))->tickets, handle_of(STREAM_KEY(stream))->tickets,
	       sizeof(struct ticket) * MAX_TICKETS);
	pthread_mutex_unlock(&handles_mutex);
}

static int result_of(uintptr_t key)
{
	struct handle handle;

	pthread_mutex_lock(&handles_mutex);
	handle = *handle_of(key);
	pthread_mutex_unlock(&handles_mutex);
	for (int i = 0; i < MAX_TICKETS; i++)
		if (handle.tickets[i].group &&
		    !is_done(handle.tickets[i].group, handle.tickets[i].number))
			return NOT_READY;
	return 0;
}

static int event_result(event_t event)
{
	return result_of(EVENT_KEY(event));
}

static int stream_result(stream_t stream)
{
	return result_of(STREAM_KEY(stream));
}

static void await_event(event_t event)
{
	while (event_result(event))
		sleep_for(50000);
}

static void await_stream(stream_t stream)
{
	while (stream_result(stream))
		sleep_for(50000);
}

static void await_device(void)
{
	for (int i = 0; i < MAX_HANDLES; i++)
		while (handles[i].key && result_of(handles[i].key))
			sleep_for(50000);
}

struct stub_streams {
	void (*record)(event_t event, stream_t stream);
	void (*stream_waits)(stream_t stream, event_t event);
	int (*event_result)(event_t event);
	int (*stream_result)(stream_t stream);
	void (*await_event)(event_t event);
	void (*await_stream)(stream_t stream);
	void (*await_device)(void);
};

static const struct stub_streams streams = {
	record, stream_waits, event_result, stream_result, await_event, await_stream, await_device,
};

/*
 * NCCL_STUB="never_from=N,device_ns=N,launch=0": collectives from N on are never done; others take
 * so long; no kernels are launched for them.
 */
static void settle(void)
{
	const char *text = getenv("NCCL_STUB");
	const char *never = text ? strstr(text, "never_from=") : NULL;
	const char *takes = text ? strstr(text, "device_ns=") : NULL;

	launches = !text || !strstr(text, "launch=0");
	if (never)
		never_from = strtoull(never + strlen("never_from="), NULL, 0);
	if (takes)
		device_ns = strtoull(takes + strlen("device_ns="), NULL, 0);
}

#endif
