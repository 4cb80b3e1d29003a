/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The maps, each with the reason for its type. Weak, so that every source file
 * may include them and the linker keeps one. Sizes here are defaults: the agent
 * sets the configured ones before it loads the object.
 *
 * All hash maps are preallocated: they are filled from scheduler tracepoints,
 * where allocating memory is not safe on every kernel that we support. Where it is, since Linux
 * kernel commit fba1a1c6c912 ("bpf: Convert hash map to bpf_mem_alloc.") (in v6.1), the agent lets
 * the threads' map grow: few hosts have as many threads as it can hold.
 */
#ifndef OTEL_GPU_BPF_CORE_MAPS_H
#define OTEL_GPU_BPF_CORE_MAPS_H

#include "core/kernel_types.bpf.h"
#include "events.h"

/* Defined in core/anchors.bpf.c, in a section of its own so that the agent finds it at
 * offset 0. */
extern const volatile struct settings settings SEC(".rodata.settings");

/* Records that become spans. Bursts may overrun it: losses are counted. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} events __weak SEC(".maps");

/* Rare records that everything else leans on, apart so that a burst of calls
 * cannot push them out. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} lifecycle __weak SEC(".maps");

/* pid -> what is being watched. Not LRU: forgetting a process would be a silent
 * loss; full is counted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct process);
} processes __weak SEC(".maps");

/* tid -> scheduling state and open calls. A hash rather than task storage, since
 * the agent walks it to find calls that hang. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct thread);
} threads __weak SEC(".maps");

/* Histograms and counts. Shared between CPUs and updated atomically: per-CPU
 * values would cost 1.5 KB times series times *possible* CPUs, 800 MB for 4096
 * series on 128, and a contended atomic is cheap beside the probe itself. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct aggregate_key);
	__type(value, struct aggregate);
} aggregates __weak SEC(".maps");

/* Durations from which a call is slow, by series; written by the agent. LRU: the
 * floor in the settings stands in for a forgotten one. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct threshold_key);
	__type(value, __u64);
} thresholds __weak SEC(".maps");

/* Sizes of live allocations, so that the bytes of a free are known. Not LRU:
 * that would forget silently; full is counted, and the agent frees what ended
 * processes leave behind. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, struct allocation_key);
	__type(value, struct allocation);
} allocations __weak SEC(".maps");

/* Streams that are being captured into a graph: what is allocated there is a node of
 * the graph, and no memory. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct stream_key);
	__type(value, struct capture);
} captures __weak SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters __weak SEC(".maps");

/* Executables whose dynamic linker and own symbols already carry probes: no need
 * to stop a process that starts one. Written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct file_key);
	__type(value, __u32);
} known_executables __weak SEC(".maps");

/* Kernel stacks of blocked threads, by id. There are few different ones. A map of stack
 * traces cannot be filled for another thread than the current one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct kernel_stack);
} stacks __weak SEC(".maps");

/* What threads waited for, by id. LRU: a host opens files for as long as it is up; what is
 * met again gets the same id again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct resource);
} resources __weak SEC(".maps");

/* Too large for the BPF stack. One for sched_switch, one for what that may interrupt, and one for
 * what interrupts both. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, struct kernel_stack);
} stack_walk __weak SEC(".maps");

/* Where the time of watched threads went, and who kept them from going on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct times_key);
	__type(value, struct times);
} thread_times __weak SEC(".maps");

/* The same without details, for what did not fit there: no time may be lost for them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct times_key);
	__type(value, struct times);
} folded_times __weak SEC(".maps");

/* pid -> where its interpreter keeps the GIL and its frames; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct interpreter);
} interpreters __weak SEC(".maps");

/* pid -> where its threads keep the context that they publish; written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct thread_context_place);
} thread_contexts __weak SEC(".maps");

/* How many processes are in that map: most hosts have none, whose calls look no further. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} publishers __weak SEC(".maps");

/* pid -> program_ktime_ns of a process that counts its own hot calls. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} preloaded __weak SEC(".maps");

/* A global function, as there is hardly a place that does not count: the verifier follows it once. */
__weak __noinline int count_many(__u32 counter, __u64 times)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &counter);

	/* Atomic although per CPU: a scheduler tracepoint can interrupt a uprobe here. */
	if (value)
		__sync_fetch_and_add(value, times);
	return 0;
}

static __always_inline void count(enum counter counter)
{
	count_many(counter, 1);
}

#endif
