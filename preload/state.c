// SPDX-License-Identifier: Apache-2.0
/* Where the memory is, and what this thread keeps to itself. */
#include "state.h"

struct guard *door_guard;
char *door_memory;
OWN struct self door_self;

void door_count_loss(enum door_loss loss)
{
	if (door_guard && __atomic_load_n(&door_guard->state, __ATOMIC_ACQUIRE) == MEMORY_READY)
		add_shared(&HEADER->lost[loss], 1);
}
