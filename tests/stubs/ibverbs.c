/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub libibverbs.so.1, with the prototypes and symbol versions of the real one: calls of
 * IBVERBS_1.0 make those of IBVERBS_1.1, which are the default. A registration of no bytes and a
 * change of no attribute fail, as they do with adapters. stub_raise_event() makes one asynchronous
 * event, for which a thread may wait.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default"), noinline))

struct ibv_context {
	int read_fd, write_fd;
};

struct ibv_async_event {
	union {
		void *element;
		int port_num;
	} element;
	int event_type;
};

/* Whatever is made is an address that no other has. */
static void *made(int is_good)
{
	if (is_good)
		return malloc(16);
	errno = EINVAL;
	return NULL;
}

static int unmade(void *what)
{
	if (!what)
		return EINVAL;
	free(what);
	return 0;
}

EXPORT struct ibv_context *ibv_open_device(void *device)
{
	struct ibv_context *context = malloc(sizeof(*context));
	int ends[2];

	if (pipe(ends))
		abort();
	context->read_fd = ends[0];
	context->write_fd = ends[1];
	return context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
	close(context->read_fd);
	close(context->write_fd);
	free(context);
	return 0;
}

__asm__(".symver reg_mr_of_1_1, ibv_reg_mr@@IBVERBS_1.1");
EXPORT void *reg_mr_of_1_1(void *pd, void *address, size_t length, int access)
{
	return made(length > 0);
}

/* As programs that are linked with the first version call it. */
__asm__(".symver reg_mr_of_1_0, ibv_reg_mr@IBVERBS_1.0");
EXPORT void *reg_mr_of_1_0(void *pd, void *address, size_t length, int access)
{
	void *memory = reg_mr_of_1_1(pd, address, length, access);

	/* So that it is no tail call. */
	__asm__ volatile("" : "+r"(memory));
	return memory;
}

EXPORT void *ibv_reg_mr_iova(void *pd, void *address, size_t length, uint64_t iova, int access)
{
	return made(length > 0);
}

EXPORT void *ibv_reg_mr_iova2(void *pd, void *address, size_t length, uint64_t iova,
			      unsigned int access)
{
	return made(length > 0);
}

EXPORT void *ibv_reg_dmabuf_mr(void *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
			       int access)
{
	return made(length > 0);
}

EXPORT int ibv_dereg_mr(void *memory)
{
	return unmade(memory);
}

EXPORT void *ibv_create_cq(void *context, int entries, void *cq_context, void *channel, int vector)
{
	return made(entries > 0);
}

EXPORT int ibv_destroy_cq(void *cq)
{
	return unmade(cq);
}

EXPORT void *ibv_create_qp(void *pd, void *attributes)
{
	return made(1);
}

EXPORT int ibv_modify_qp(void *qp, void *attributes, int mask)
{
	return mask ? 0 : EINVAL;
}

EXPORT int ibv_destroy_qp(void *qp)
{
	return unmade(qp);
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	int type;

	if (read(context->read_fd, &type, sizeof(type)) != sizeof(type))
		return -1;
	event->event_type = type;
	event->element.port_num = 1;
	return 0;
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	__asm__ volatile("" : : "r"(event) : "memory");
}

EXPORT void stub_raise_event(struct ibv_context *context, int type)
{
	if (write(context->write_fd, &type, sizeof(type)) != sizeof(type))
		abort();
}
