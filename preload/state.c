// SPDX-License-Identifier: Apache-2.0
/* Where the memory is, and what this thread keeps to itself. */
#include "state.h"

struct guard *preload_guard;
char *preload_memory;
OWN struct self preload_self;

void preload_count_loss(enum preload_loss loss)
{
	if (preload_guard &&
	    __atomic_load_n(&preload_guard->state, __ATOMIC_ACQUIRE) == MEMORY_READY)
		add_shared(&HEADER->lost[loss], 1);
}
