/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub libnccl.so.2: prototypes, aliases, by-value ids and groups of the real one; the
 * communicators and collectives of one or several ranks, in this and other processes. Calls inside
 * a group only queue. See stub.h for what each function can be told to do, nccl_world.h for how
 * ranks wait for each other.
 */
#include "nccl_world.h"

#define SUCCESS	       0
#define INVALID_ARG    4
#define INTERNAL_ERROR 3
#define IN_PROGRESS    7
#define COMM_MAGIC     0x280028002800280ull
#define NO_COLOR       (-1)
#define NO_REDUCTION   255

typedef struct ncclComm *ncclComm_t;
typedef struct {
	char internal[ID_BYTES];
} ncclUniqueId;
typedef struct {
	size_t size;
	unsigned int magic, version;
	int blocking;
} ncclConfig_t; /* its first fields */

/* A communicator that is being made. */
struct job {
	struct ncclComm *comm, *parent;
	struct ncclComm **where; /* of a child; NULL: it is there already */
	int child, color, waits;
};

struct ncclComm {
	uint64_t magic;
	struct world *world;
	struct group *group;
	uint64_t number, connections; /* see ncclCommGrow */
	int rank, children, device;
	_Atomic int async_error;
	int has_job;
	struct job job;
	struct ncclComm *next_free;
};

struct task {
	struct ncclComm *comm;
	stream_t stream;
	uint64_t number, signature;
};

#define MAX_JOBS 64

static __thread int depth, jobs_waiting;
static __thread struct job jobs[MAX_JOBS];
static __thread struct task *tasks;
static __thread size_t tasks_queued, tasks_room;

static struct ncclComm *free_comms;
static pthread_mutex_t comms_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Of the stub of the runtime, where it is loaded. */
static int (*launch)(const void *config, const void *function, void **parameters);
static int (*get_device)(int *device);

__attribute__((constructor)) static void find_runtime(void)
{
	void *runtime = dlopen("libcudart.so.12", RTLD_NOLOAD | RTLD_NOW);
	void (*set_streams)(const struct stub_streams *);

	settle();
	if (!runtime)
		return;
	set_streams = dlsym(runtime, "stub_set_streams");
	if (set_streams)
		set_streams(&streams);
	if (launches)
		launch = dlsym(runtime, "cudaLaunchKernelExC");
	get_device = dlsym(runtime, "cudaGetDevice");
}

/* The last one that was destroyed is the first that is used again. */
static struct ncclComm *new_comm(struct world *world)
{
	struct ncclComm *comm;

	pthread_mutex_lock(&comms_mutex);
	comm = free_comms;
	if (comm)
		free_comms = comm->next_free;
	pthread_mutex_unlock(&comms_mutex);
	if (!comm)
		comm = malloc(sizeof(*comm));
	memset(comm, 0, sizeof(*comm));
	comm->magic = COMM_MAGIC;
	comm->world = world;
	if (get_device)
		get_device(&comm->device);
	return comm;
}

static void free_comm(struct ncclComm *comm)
{
	pthread_mutex_lock(&comms_mutex);
	comm->magic = 0;
	comm->next_free = free_comms;
	free_comms = comm;
	pthread_mutex_unlock(&comms_mutex);
}

static int is_comm(const struct ncclComm *comm)
{
	return comm && comm->magic == COMM_MAGIC;
}

/* Who is in a child, and where: by color, in order of key and rank. */
static void join_child(struct job *job, const struct split *split)
{
	struct group *parent = job->parent->group;
	int ranks = 0, rank = 0, mine = job->parent->rank;

	for (int i = 0; i < (int)parent->ranks; i++) {
		if (split->color[i] != job->color)
			continue;
		ranks++;
		rank += split->key[i] < split->key[mine] ||
			(split->key[i] == split->key[mine] && i < mine);
	}
	job->comm->rank = rank;
	job->comm->group = group_of(job->parent->world,
				    hash_of_child(parent->hash, job->child, job->color), ranks);
}

/* Whether a communicator is there now. */
static int finish(struct job *job)
{
	if (!job->where)
		return job->comm->group->attached == job->comm->group->ranks ||
		       job->comm->group->aborted;
	if (job->waits) {
		struct group *parent = job->parent->group;
		struct split *split = &parent->splits[job->child % MAX_SPLITS];

		if (split->child == job->child && split->arrived < (int)parent->ranks)
			return 0;
		if (job->color != NO_COLOR)
			join_child(job, split);
	}
	if (job->comm)
		job->comm->connections = job->comm->group->hash;
	*job->where = job->color == NO_COLOR ? NULL : job->comm;
	return 1;
}

static void finish_all(void)
{
	for (int i = 0; i < jobs_waiting; i++)
		while (!finish(&jobs[i]))
			sleep_for(50000);
	jobs_waiting = 0;
}

/* At once, at the end of the group, or when the program asks whether it is done. */
static int begin(struct job job, struct ncclComm *holder, const ncclConfig_t *config)
{
	if (config && !config->blocking) {
		holder->job = job;
		holder->has_job = 1;
		return IN_PROGRESS;
	}
	if (jobs_waiting == MAX_JOBS)
		return INTERNAL_ERROR;
	jobs[jobs_waiting++] = job;
	if (!depth)
		finish_all();
	return SUCCESS;
}

static void queue(struct ncclComm *comm, uint64_t signature, uint64_t number, stream_t stream)
{
	if (tasks_queued == tasks_room) {
		tasks_room = tasks_room ? tasks_room * 2 : 64;
		tasks = realloc(tasks, tasks_room * sizeof(*tasks));
	}
	tasks[tasks_queued++] = (struct task){comm, stream, number, signature};
}

static void launch_all(void)
{
	struct {
		unsigned grid[3], block[3];
		size_t shared_bytes;
		stream_t stream;
		void *attributes;
		unsigned attribute_count;
	} config = {{1, 1, 1}, {512, 1, 1}, 0, NULL, NULL, 0};

	for (size_t i = 0; i < tasks_queued; i++) {
		struct task *task = &tasks[i];

		if (task->number) {
			arrive(task->comm->group, task->comm->rank, task->number, task->signature);
			queue_on(task->stream, task->comm->group, task->number);
		}
		/* One kernel does what follows each other on one stream. */
		if (launch && (i + 1 == tasks_queued || tasks[i + 1].comm != task->comm ||
			       tasks[i + 1].stream != task->stream)) {
			config.stream = task->stream;
			launch(&config, launch_all, NULL);
		}
	}
	tasks_queued = 0;
}

/* Sends and receives have no number that all ranks share. */
static int call(struct ncclComm *comm, int operation, size_t count, int datatype, int reduction,
		int root, stream_t stream, int is_collective)
{
	uint64_t asked[5] = {operation, count, datatype, reduction, root}, state[2] = {1, 1};

	if (!is_comm(comm))
		return INVALID_ARG;
	eat(state, asked, sizeof(asked));
	queue(comm, digest(state), is_collective ? ++comm->number : 0, stream);
	if (!depth)
		launch_all();
	return SUCCESS;
}

/* The real names are weak aliases of those that begin with a p. */
#define NCCL(name, parameters, arguments, work)                                                    \
	EXPORT int name parameters __attribute__((weak));                                          \
	STUB(name, parameters, arguments, work)                                                    \
	EXPORT int p##name parameters __attribute__((alias(#name)));

#define COLLECTIVE(name, parameters, arguments, work)                                              \
	NCCL(name, parameters, arguments, work)                                                    \
	NCCL(name##Config, (WITHOUT parameters, const void *config), (WITHOUT arguments, config),  \
	     work)
#define WITHOUT(...) __VA_ARGS__

enum operation {
	ALL_REDUCE = 1,
	BROADCAST,
	REDUCE,
	ALL_GATHER,
	REDUCE_SCATTER,
	ALL_TO_ALL,
	GATHER,
	SCATTER,
	SEND,
	RECEIVE
};

COLLECTIVE(ncclAllReduce,
	   (const void *from, void *to, size_t count, int datatype, int op, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, op, comm, stream),
	   result = call(comm, ALL_REDUCE, count, datatype, op, -1, stream, 1))
COLLECTIVE(ncclReduce,
	   (const void *from, void *to, size_t count, int datatype, int op, int root,
	    ncclComm_t comm, stream_t stream),
	   (from, to, count, datatype, op, root, comm, stream),
	   result = call(comm, REDUCE, count, datatype, op, root, stream, 1))
COLLECTIVE(ncclBroadcast,
	   (const void *from, void *to, size_t count, int datatype, int root, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, root, comm, stream),
	   result = call(comm, BROADCAST, count, datatype, NO_REDUCTION, root, stream, 1))
NCCL(ncclBcast,
     (void *buffer, size_t count, int datatype, int root, ncclComm_t comm, stream_t stream),
     (buffer, count, datatype, root, comm, stream),
     result = ncclBroadcast(buffer, buffer, count, datatype, root, comm, stream))
COLLECTIVE(ncclReduceScatter,
	   (const void *from, void *to, size_t count, int datatype, int op, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, op, comm, stream),
	   result = call(comm, REDUCE_SCATTER, count, datatype, op, -1, stream, 1))
COLLECTIVE(ncclAllGather,
	   (const void *from, void *to, size_t count, int datatype, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, comm, stream),
	   result = call(comm, ALL_GATHER, count, datatype, NO_REDUCTION, -1, stream, 1))
COLLECTIVE(ncclAlltoAll,
	   (const void *from, void *to, size_t count, int datatype, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, comm, stream),
	   result = call(comm, ALL_TO_ALL, count, datatype, NO_REDUCTION, -1, stream, 1))
COLLECTIVE(ncclGather,
	   (const void *from, void *to, size_t count, int datatype, int root, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, root, comm, stream),
	   result = call(comm, GATHER, count, datatype, NO_REDUCTION, root, stream, 1))
COLLECTIVE(ncclScatter,
	   (const void *from, void *to, size_t count, int datatype, int root, ncclComm_t comm,
	    stream_t stream),
	   (from, to, count, datatype, root, comm, stream),
	   result = call(comm, SCATTER, count, datatype, NO_REDUCTION, root, stream, 1))
NCCL(ncclSend,
     (const void *from, size_t count, int datatype, int peer, ncclComm_t comm, stream_t stream),
     (from, count, datatype, peer, comm, stream),
     result = call(comm, SEND, count, datatype, NO_REDUCTION, peer, stream, 0))
NCCL(ncclRecv, (void *to, size_t count, int datatype, int peer, ncclComm_t comm, stream_t stream),
     (to, count, datatype, peer, comm, stream),
     result = call(comm, RECEIVE, count, datatype, NO_REDUCTION, peer, stream, 0))

NCCL(ncclGroupStart, (void), (), depth++)

static int end_group(void)
{
	if (!depth)
		return INVALID_ARG + 1;
	if (!--depth) {
		finish_all();
		launch_all();
	}
	return SUCCESS;
}

NCCL(ncclGroupEnd, (void), (), result = end_group())

NCCL(ncclGetVersion, (int *version), (version), *version = 23205)
NCCL(ncclGetUniqueId, (ncclUniqueId * id), (id),
     result = make_id((struct unique_id *)id) ? INTERNAL_ERROR : SUCCESS)

static int make_comm(ncclComm_t *where, int ranks, const ncclUniqueId *id, int rank,
		     const ncclConfig_t *config)
{
	struct world *world = open_world((const struct unique_id *)id);
	struct ncclComm *comm;

	if (!world || rank < 0 || rank >= ranks || ranks > MAX_RANKS)
		return INVALID_ARG;
	comm = *where = new_comm(world);
	comm->group = group_of(world, hash_of_id(id), ranks);
	comm->rank = rank;
	comm->connections = ((const struct unique_id *)id)->magic;
	comm->group->attached++;
	return begin((struct job){.comm = comm}, comm, config);
}

NCCL(ncclCommInitRank, (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank),
     (comm, ranks, id, rank), result = make_comm(comm, ranks, &id, rank, NULL))
NCCL(ncclCommInitRankConfig,
     (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, const ncclConfig_t *config),
     (comm, ranks, id, rank, config), result = make_comm(comm, ranks, &id, rank, config))
NCCL(ncclCommInitRankScalable,
     (ncclComm_t * comm, int ranks, int rank, int ids_count, const ncclUniqueId *ids,
      const ncclConfig_t *config),
     (comm, ranks, rank, ids_count, ids, config),
     result = make_comm(comm, ranks, &ids[0], rank, config))

static int make_all(ncclComm_t *comms, int count)
{
	ncclUniqueId id;
	int result = ncclGetUniqueId(&id);

	depth++;
	for (int i = 0; i < count && !result; i++)
		result = make_comm(&comms[i], count, &id, i, NULL);
	depth--;
	if (!depth && !result)
		finish_all();
	return result;
}

NCCL(ncclCommInitAll, (ncclComm_t * comms, int count, const int *devices), (comms, count, devices),
     result = make_all(comms, count))

static int split(struct ncclComm *parent, int color, int key, ncclComm_t *where,
		 const ncclConfig_t *config)
{
	struct split *split;
	struct job job = {.parent = parent, .where = where, .color = color, .waits = 1};

	if (!is_comm(parent))
		return INVALID_ARG;
	*where = NULL;
	job.child = ++parent->children;
	if (color != NO_COLOR)
		job.comm = new_comm(parent->world);
	split = &parent->group->splits[job.child % MAX_SPLITS];
	lock(&parent->group->lock);
	if (split->child != job.child)
		*split = (struct split){.child = job.child};
	split->color[parent->rank] = color;
	split->key[parent->rank] = key;
	split->arrived++;
	unlock(&parent->group->lock);
	return begin(job, parent, config);
}

NCCL(ncclCommSplit,
     (ncclComm_t comm, int color, int key, ncclComm_t *child, const ncclConfig_t *config),
     (comm, color, key, child, config), result = split(comm, color, key, child, config))

static int shrink(struct ncclComm *parent, const int *excluded, int count, ncclComm_t *where,
		  const ncclConfig_t *config)
{
	struct job job = {.parent = parent, .where = where};

	if (!is_comm(parent) || count < 1)
		return INVALID_ARG;
	*where = NULL;
	job.comm = new_comm(parent->world);
	job.comm->rank = parent->rank;
	for (int i = 0; i < count; i++)
		job.comm->rank -= excluded[i] < parent->rank;
	job.comm->group = group_of(parent->world, hash_of_child(parent->group->hash, 0, 0),
				   parent->group->ranks - count);
	return begin(job, parent, config);
}

NCCL(ncclCommShrink,
     (ncclComm_t comm, int *excluded, int count, ncclComm_t *child, const ncclConfig_t *config,
      int flags),
     (comm, excluded, count, child, config, flags),
     result = shrink(comm, excluded, count, child, config))

/* An id for those that are to join, by one of those that are there. */
static int make_id_to_grow(struct ncclComm *parent, struct unique_id *id)
{
	if (!is_comm(parent) || make_id(id))
		return INVALID_ARG;
	id->magic = combine(parent->connections, parent->children + 1);
	return SUCCESS;
}

NCCL(ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *id), (comm, id),
     result = make_id_to_grow(comm, (struct unique_id *)id))

static int grow(struct ncclComm *parent, int ranks, const struct unique_id *id, int rank,
		ncclComm_t *where)
{
	struct world *world = id ? open_world(id) : parent->world;
	struct ncclComm *comm;

	if (!world || (parent && !is_comm(parent)))
		return INVALID_ARG;
	comm = *where = new_comm(world);
	comm->rank = parent ? parent->rank : rank;
	comm->connections = parent ? combine(parent->connections, ++parent->children) : id->magic;
	comm->group = group_of(world, combine(comm->connections, ranks), ranks);
	return SUCCESS;
}

NCCL(ncclCommGrow,
     (ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank, ncclComm_t *larger,
      const ncclConfig_t *config),
     (comm, ranks, id, rank, larger, config),
     result = grow(comm, ranks, (const struct unique_id *)id, rank, larger))

static int end_comm(struct ncclComm *comm, int aborts)
{
	if (!is_comm(comm))
		return INVALID_ARG;
	if (aborts && comm->group)
		comm->group->aborted = 1;
	free_comm(comm);
	return SUCCESS;
}

NCCL(ncclCommFinalize, (ncclComm_t comm), (comm), result = is_comm(comm) ? SUCCESS : INVALID_ARG)
NCCL(ncclCommDestroy, (ncclComm_t comm), (comm), result = end_comm(comm, 0))
NCCL(ncclCommAbort, (ncclComm_t comm), (comm), result = end_comm(comm, 1))

static int tell_error(struct ncclComm *comm, int *error)
{
	if (!is_comm(comm))
		return INVALID_ARG;
	if (comm->has_job && finish(&comm->job))
		comm->has_job = 0;
	*error = comm->has_job ? IN_PROGRESS : comm->async_error;
	return SUCCESS;
}

NCCL(ncclCommGetAsyncError, (ncclComm_t comm, int *error), (comm, error),
     result = tell_error(comm, error))

#define TELL(name, value)                                                                          \
	NCCL(name, (const ncclComm_t comm, int *where), (comm, where),                             \
	     if (!is_comm(comm)) return INVALID_ARG;                                               \
	     *where = value)
TELL(ncclCommCount, comm->group->ranks)
TELL(ncclCommUserRank, comm->rank)
TELL(ncclCommCuDevice, comm->device)

NCCL(ncclMemAlloc, (void **address, size_t size_bytes), (address, size_bytes),
     *address = malloc(size_bytes))
NCCL(ncclMemFree, (void *address), (address), free(address))
NCCL(ncclCommRegister, (const ncclComm_t comm, void *buffer, size_t size_bytes, void **handle),
     (comm, buffer, size_bytes, handle), *handle = buffer)
NCCL(ncclCommDeregister, (const ncclComm_t comm, void *handle), (comm, handle), (void)0)

/* Exported by every libnccl, and not in the probe table. */
EXPORT const char *ncclGetErrorString(int result)
{
	return result ? "stub error" : "no error";
}

/* What ncclCommGetAsyncError says from now on. */
EXPORT void stub_async_error(ncclComm_t comm, int error)
{
	comm->async_error = error;
}

/* What NCCL calls this communicator in its log. */
EXPORT uint64_t stub_comm_hash(ncclComm_t comm)
{
	return comm->group->hash;
}

/* What NCCL would call the first communicator of an id. */
EXPORT uint64_t stub_hash_of_id(const ncclUniqueId *id)
{
	return hash_of_id(id);
}

EXPORT uint64_t stub_hash_of_child(uint64_t parent, int child, int color)
{
	return hash_of_child(parent, child, color);
}
