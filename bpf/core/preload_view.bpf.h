/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a thread publishes that counts its calls itself, as it was when it was last looked at. */
#ifndef OTEL_GPU_BPF_CORE_PRELOAD_VIEW_H
#define OTEL_GPU_BPF_CORE_PRELOAD_VIEW_H

#include "../preload/layout.h"
#include "core/kernel_types.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

_Static_assert(sizeof(((struct thread *)0)->door_view) ==
		       __builtin_offsetof(struct door_slot, places),
	       "all that is before the places");

static __always_inline struct door_slot *view_of(struct thread *thread)
{
	return (struct door_slot *)thread->door_view;
}

/* Look at what a thread publishes, which is the current one. */
static __always_inline bool look_at_slot(struct thread *thread)
{
	if (!thread->door_slot || thread->door_slot == NO_SLOT)
		return false;
	return !bpf_probe_read_user(thread->door_view, sizeof(thread->door_view),
				    (const void *)thread->door_slot);
}

#endif
