// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * The programs of CUDA calls, for kernels that attach uprobes one by one. Those for kernels
 * that attach many at once are in sched/context_switches.bpf.c.
 */
#include "core/kernel_types.bpf.h"
#include "cuda/call_probes.bpf.h"

SEC("uprobe")
int enter_call(struct pt_regs *ctx)
{
	return enter(ctx, false);
}

SEC("uretprobe")
int exit_call(struct pt_regs *ctx)
{
	return leave(ctx, false);
}
