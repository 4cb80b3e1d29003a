/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What a thread publishes that counts its calls itself, as it was when it was last looked at. */
#ifndef OTEL_GPU_BPF_CORE_PRELOAD_VIEW_H
#define OTEL_GPU_BPF_CORE_PRELOAD_VIEW_H

#include "../preload/layout.h"
#include "core/kernel_types.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

_Static_assert(sizeof(((struct thread *)0)->preload_view) ==
		       __builtin_offsetof(struct preload_slot, places),
	       "all that is before the places");

static __always_inline struct preload_slot *view_of(struct thread *thread)
{
	return (struct preload_slot *)thread->preload_view;
}

/* Read what a thread publishes, which is the current one. */
static __always_inline bool read_preload_view(struct thread *thread)
{
	if (!thread->preload_slot || thread->preload_slot == NO_SLOT)
		return false;
	return !bpf_probe_read_user(thread->preload_view, sizeof(thread->preload_view),
				    (const void *)thread->preload_slot);
}

#endif
