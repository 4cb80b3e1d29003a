/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs LIBCUDART LIBIBVERBS CALLS THREADS EVENTS...
 *
 * From THREADS threads, as fast as it can: CALLS calls of verbs of some kinds, of which some fail,
 * while another thread waits for the EVENTS (numbers of enum ibv_event_type), which are raised once
 * a line comes on stdin; another thread acknowledges each. Prints its pid, and at the end what it
 * made.
 */
#include "workload.h"

#define KINDS 7

struct event {
	void *element;
	int type;
};

static const char *const names[KINDS] = {
	"ibv_reg_mr",	 "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "ibv_dereg_mr",
	"ibv_modify_qp", "failed_reg_mr",    "failed_modify_qp",
};

static struct {
	void *(*open_device)(void *);
	void *(*reg_mr)(void *, void *, size_t, int);
	void *(*old_reg_mr)(void *, void *, size_t, int);
	void *(*reg_mr_iova2)(void *, void *, size_t, uint64_t, unsigned);
	void *(*reg_dmabuf_mr)(void *, uint64_t, size_t, uint64_t, int, int);
	int (*dereg_mr)(void *);
	void *(*create_cq)(void *, int, void *, void *, int);
	void *(*create_qp)(void *, void *);
	int (*modify_qp)(void *, void *, int);
	int (*get_async_event)(void *, struct event *);
	void (*ack_async_event)(struct event *);
	void (*raise_event)(void *, int);
} verbs;

static struct cuda cuda;
static void *context;
static struct event event;
static int seen_fd[2], acknowledged_fd[2];

struct worker {
	pthread_t thread;
	uint64_t first, calls;
	uint64_t made[KINDS];
	uint64_t registered_bytes;
};

static void open_verbs(const char *path)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!handle)
		fail(dlerror());
	verbs.open_device = symbol(handle, "ibv_open_device");
	verbs.reg_mr = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.1");
	verbs.old_reg_mr = dlvsym(handle, "ibv_reg_mr", "IBVERBS_1.0");
	verbs.reg_mr_iova2 = symbol(handle, "ibv_reg_mr_iova2");
	verbs.reg_dmabuf_mr = symbol(handle, "ibv_reg_dmabuf_mr");
	verbs.dereg_mr = symbol(handle, "ibv_dereg_mr");
	verbs.create_cq = symbol(handle, "ibv_create_cq");
	verbs.create_qp = symbol(handle, "ibv_create_qp");
	verbs.modify_qp = symbol(handle, "ibv_modify_qp");
	verbs.get_async_event = symbol(handle, "ibv_get_async_event");
	verbs.ack_async_event = symbol(handle, "ibv_ack_async_event");
	verbs.raise_event = symbol(handle, "stub_raise_event");
	if (!verbs.reg_mr || !verbs.old_reg_mr || verbs.reg_mr == verbs.old_reg_mr)
		fail("the library has no two versions of ibv_reg_mr");
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	void *memory = NULL;
	size_t size_bytes = 0;

	for (uint64_t i = worker->first; i < worker->first + worker->calls; i++) {
		unsigned kind = i % KINDS;

		if (kind == 3) {
			/* The last of the three that were registered. */
			verbs.dereg_mr(memory);
			worker->registered_bytes -= size_bytes;
		} else if (kind < 3) {
			size_bytes = 4096 + i;
			worker->registered_bytes += size_bytes;
		}
		switch (kind) {
		case 0:
			memory = (i % 2 ? verbs.reg_mr : verbs.old_reg_mr)(context, &cuda,
									   size_bytes, 7);
			break;
		case 1:
			memory = verbs.reg_mr_iova2(context, &cuda, size_bytes, 1, 7);
			break;
		case 2:
			memory = verbs.reg_dmabuf_mr(context, 0, size_bytes, 1, 3, 7);
			break;
		case 4:
			verbs.modify_qp(context, NULL, 1);
			break;
		case 5:
			verbs.reg_mr(context, &cuda, 0, 7);
			break;
		case 6:
			verbs.modify_qp(context, NULL, 0);
			break;
		}
		worker->made[kind]++;
	}
	return NULL;
}

static void *wait_for_events(void *argument)
{
	int count = *(int *)argument;
	char one = 1;

	for (int i = 0; i < count; i++) {
		if (verbs.get_async_event(context, &event))
			fail("ibv_get_async_event");
		if (write(seen_fd[1], &one, 1) != 1 || read(acknowledged_fd[0], &one, 1) != 1)
			fail("a pipe");
	}
	return NULL;
}

int main(int argc, char **argv)
{
	uint64_t calls, threads, next = 0, registered_bytes = 0;
	struct worker *workers;
	pthread_t waiter;
	int events = argc - 5;
	char one;

	if (argc < 5)
		fail("verbs LIBCUDART LIBIBVERBS CALLS THREADS EVENTS...");
	calls = number(argv[3]);
	threads = number(argv[4]);
	workers = calloc(threads, sizeof(*workers));
	cuda_open(&cuda, argv[1]);
	open_verbs(argv[2]);
	if (pipe(seen_fd) || pipe(acknowledged_fd))
		fail("pipe");
	context = verbs.open_device(NULL);
	verbs.create_cq(context, 1, NULL, NULL, 0);
	verbs.create_qp(context, NULL);
	if (pthread_create(&waiter, NULL, wait_for_events, &events))
		fail("pthread_create");
	printf("{\"pid\": %d}\n", getpid());
	fflush(stdout);
	if (read(0, &one, 1) != 1)
		fail("stdin");
	/* A process that feeds a device, as far as it is asked. */
	cuda.device_synchronize();
	for (uint64_t t = 0; t < threads; t++) {
		workers[t].first = next;
		workers[t].calls = calls / threads + (t < calls % threads);
		/* Each begins with a registration. */
		workers[t].calls -= workers[t].calls % KINDS;
		next += workers[t].calls;
		if (pthread_create(&workers[t].thread, NULL, work, &workers[t]))
			fail("pthread_create");
	}
	for (int i = 0; i < events; i++) {
		verbs.raise_event(context, number(argv[5 + i]));
		if (read(seen_fd[0], &one, 1) != 1)
			fail("a pipe");
		verbs.ack_async_event(&event);
		if (write(acknowledged_fd[1], &one, 1) != 1)
			fail("a pipe");
	}
	pthread_join(waiter, NULL);
	printf("{");
	for (uint64_t t = 0; t < threads; t++) {
		pthread_join(workers[t].thread, NULL);
		registered_bytes += workers[t].registered_bytes;
	}
	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t made = 0;

		for (uint64_t t = 0; t < threads; t++)
			made += workers[t].made[kind];
		printf("\"%s\": %" PRIu64 ", ", names[kind], made);
	}
	printf("\"registered_bytes\": %" PRIu64 "}\n", registered_bytes);
	return 0;
}
