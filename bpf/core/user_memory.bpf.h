/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Which memory is read: that of the current thread, or that of the thread which an iterator
 * visits. One walk serves both, and is compiled for each.
 *
 * What reads the memory of others may sleep, and takes a typed pointer, which a global function
 * cannot be given on all kernels: so its functions are static.
 */
#ifndef OTEL_GPU_BPF_CORE_USER_MEMORY_H
#define OTEL_GPU_BPF_CORE_USER_MEMORY_H

#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"

#if defined(OTEL_GPU_OTHER_THREADS)

typedef struct task_struct *user_memory;

/* A step of a loop has it from what it works on. */
#define KEPT_MEMORY		  user_memory memory;
#define KEEP_MEMORY(work, memory) ((work)->memory = (memory))
#define MEMORY_OF(work)		  ((work)->memory)
#define LINKAGE			  static
#define TASK_OF(memory)		  (memory)
/* Non-zero: it cannot be read. */
#define READ_MEMORY(memory, to, size, from)                                                        \
	bpf_copy_from_user_task(to, size, (const void *)(from), memory, 0)

#else

typedef __u32 user_memory;

/* The BPF stack is too small for what is always the same. */
#define KEPT_MEMORY
#define KEEP_MEMORY(work, memory)	    ((void)(memory))
#define MEMORY_OF(work)			    CURRENT_MEMORY
#define CURRENT_MEMORY			    0
#define LINKAGE				    __weak
#define TASK_OF(memory)			    bpf_get_current_task_btf()
#define READ_MEMORY(memory, to, size, from) bpf_probe_read_user(to, size, (const void *)(from))

#endif

#endif
