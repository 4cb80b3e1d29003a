// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/* Ring-buffer payloads and enums reach BTF only through a global: these are the anchors. */
#define OTEL_GPU_BPF
#include "core.bpf.h"
#include "events.h"

const volatile struct settings settings SEC(".rodata.settings");

#define ANCHOR(kind, name) const kind name *wire_anchor_##name __attribute__((unused))

ANCHOR(enum, record_kind);
ANCHOR(enum, counter);
ANCHOR(enum, api_family);
ANCHOR(enum, api_layer);
ANCHOR(enum, launch_shape);
ANCHOR(enum, copy_kind);
ANCHOR(enum, sample_moment);
ANCHOR(enum, choice);
ANCHOR(enum, metric);
ANCHOR(enum, switch_type);
ANCHOR(enum, library_flag);
ANCHOR(enum, exit_flag);
ANCHOR(enum, stream_capture);
ANCHOR(enum, physical_memory);
ANCHOR(enum, memory_key);
ANCHOR(enum, process_flag);
ANCHOR(struct, record_header);
ANCHOR(struct, cuda_call_record);
ANCHOR(struct, stall_record);
ANCHOR(struct, gap_record);
ANCHOR(struct, cpu_sample_record);
ANCHOR(struct, times_key);
ANCHOR(struct, times);
ANCHOR(struct, times_record);
ANCHOR(struct, interpreter);
ANCHOR(enum, python_status);
ANCHOR(enum, python_frame_flag);
ANCHOR(struct, python_frame);
ANCHOR(struct, saved_return);
ANCHOR(struct, sample_record);
ANCHOR(enum, look_flag);
ANCHOR(struct, look_record);
ANCHOR(struct, code_text);
ANCHOR(struct, code_record);
ANCHOR(struct, interval);
ANCHOR(enum, thread_state);
ANCHOR(enum, call_context);
ANCHOR(enum, stall_flag);
ANCHOR(struct, fork_record);
ANCHOR(struct, exec_record);
ANCHOR(struct, exit_record);
ANCHOR(struct, library_record);
ANCHOR(struct, device_record);
ANCHOR(struct, clock_record);
ANCHOR(struct, counters_record);
ANCHOR(struct, open_call_record);
ANCHOR(struct, aggregate_key);
ANCHOR(struct, aggregate);
ANCHOR(struct, aggregates_record);
ANCHOR(struct, api_descriptor);
ANCHOR(struct, settings);
ANCHOR(struct, process);
ANCHOR(struct, threshold_key);
ANCHOR(struct, look_key);
ANCHOR(struct, file_key);
ANCHOR(struct, open_call);
ANCHOR(struct, cpu_time);
ANCHOR(struct, wait_link);
ANCHOR(struct, thread);
ANCHOR(struct, allocation_key);
ANCHOR(struct, allocation);
ANCHOR(struct, kernel_stack);
