// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Which device a thread works on, where the program asks for that.
 *
 * A thread works on the first device until it sets another one, in a call that has a probe.
 * Only the device of a thread that is older than the agent has to be learned. Frameworks ask ten times
 * per launch, so these probes stand for some seconds only, and what they see is not counted as a call.
 */
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

SEC("uprobe")
int ask_device(struct pt_regs *ctx)
{
	struct thread *thread = find_thread(tid_of(bpf_get_current_task_btf()));

	if (!thread)
		return 0;
	thread->entries++;
	thread->device_answer = PT_REGS_PARM1(ctx);
	return 0;
}

SEC("uretprobe")
int learn_device(struct pt_regs *ctx)
{
	struct thread *thread = find_thread(tid_of(bpf_get_current_task_btf()));
	__s32 device;

	if (!thread)
		return 0;
	thread->returns++;
	if (!PT_REGS_RC(ctx) && thread->device_answer &&
	    !bpf_probe_read_user(&device, sizeof(device), (const void *)thread->device_answer))
		thread->device = device;
	thread->device_answer = 0;
	return 0;
}

char LICENSE[] __weak SEC("license") = "Dual BSD/GPL";
