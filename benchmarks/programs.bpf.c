// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Floors and alternatives for the benchmarks.
 *
 * The empty pair is what a uprobe and a uretprobe cost by themselves. The timing pair does no more than
 * it takes to count calls and their durations: two reads of the clock, three lookups, two atomic
 * additions. The counting
 * programs add to a histogram many times in one hit, so that the map and not the
 * probe is what gets measured: shared and atomic, or one value per CPU. So do those that look
 * for something.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define BUCKETS	  192
#define ADDITIONS 2000
#define SERIES	  64

struct histogram {
	__u64 sum;
	__u64 buckets[BUCKETS];
};

struct time_spent {
	__u64 ns;
	__u64 additions;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, SERIES);
	__type(key, __u64);
	__type(value, struct histogram);
} shared SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, SERIES);
	__type(key, __u64);
	__type(value, struct histogram);
} per_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct time_spent);
} spent SEC(".maps");

/* As the agent has it: how many processes publish the context of their threads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} publishers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u64);
} started SEC(".maps");

static const struct histogram empty_histogram;

SEC("uprobe")
int empty_enter(void *ctx)
{
	return 0;
}

SEC("uretprobe")
int empty_exit(void *ctx)
{
	return 0;
}

SEC("uprobe")
int timing_enter(void *ctx)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 *start_ns = bpf_map_lookup_elem(&started, &tid), none = 0;

	if (!start_ns) {
		bpf_map_update_elem(&started, &tid, &none, BPF_ANY);
		return 0;
	}
	*start_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("uretprobe")
int timing_exit(void *ctx)
{
	__u64 now_ns = bpf_ktime_get_ns(), key = 1;
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 *start_ns = bpf_map_lookup_elem(&started, &tid);
	struct histogram *histogram = bpf_map_lookup_elem(&shared, &key);

	if (!histogram)
		bpf_map_update_elem(&shared, &key, &empty_histogram, BPF_NOEXIST);
	if (!start_ns || !histogram)
		return 0;
	__sync_fetch_and_add(&histogram->sum, now_ns - *start_ns);
	__sync_fetch_and_add(&histogram->buckets[(now_ns - *start_ns) / 256 % 128], 1);
	return 0;
}

static long add_shared(__u32 index, void *unused)
{
	__u64 key = 0;
	struct histogram *histogram = bpf_map_lookup_elem(&shared, &key);

	if (!histogram) {
		bpf_map_update_elem(&shared, &key, &empty_histogram, BPF_NOEXIST);
		return 0;
	}
	__sync_fetch_and_add(&histogram->sum, index);
	__sync_fetch_and_add(&histogram->buckets[index % BUCKETS & 255 ? 17 : 18], 1);
	return 0;
}

static long add_per_cpu(__u32 index, void *unused)
{
	__u64 key = 0;
	struct histogram *histogram = bpf_map_lookup_elem(&per_cpu, &key);

	if (!histogram) {
		bpf_map_update_elem(&per_cpu, &key, &empty_histogram, BPF_NOEXIST);
		return 0;
	}
	histogram->sum += index;
	histogram->buckets[index % BUCKETS & 255 ? 17 : 18]++;
	return 0;
}

static long ask_for_publishers(__u32 index, void *unused)
{
	__u32 key = 0;
	const __u32 *number = bpf_map_lookup_elem(&publishers, &key);

	return number && *number;
}

static long ask_nothing(__u32 index, void *unused)
{
	return index > ADDITIONS;
}

static void note(__u64 start_ns)
{
	__u32 key = 0;
	struct time_spent *time = bpf_map_lookup_elem(&spent, &key);

	if (!time)
		return;
	__sync_fetch_and_add(&time->ns, bpf_ktime_get_ns() - start_ns);
	__sync_fetch_and_add(&time->additions, ADDITIONS);
}

SEC("uprobe")
int count_shared(void *ctx)
{
	__u64 start_ns = bpf_ktime_get_ns();

	bpf_loop(ADDITIONS, add_shared, NULL, 0);
	note(start_ns);
	return 0;
}

SEC("uprobe")
int count_per_cpu(void *ctx)
{
	__u64 start_ns = bpf_ktime_get_ns();

	bpf_loop(ADDITIONS, add_per_cpu, NULL, 0);
	note(start_ns);
	return 0;
}

SEC("uprobe")
int look_for_publishers(void *ctx)
{
	__u64 start_ns = bpf_ktime_get_ns();

	bpf_loop(ADDITIONS, ask_for_publishers, NULL, 0);
	note(start_ns);
	return 0;
}

SEC("uprobe")
int look_for_nothing(void *ctx)
{
	__u64 start_ns = bpf_ktime_get_ns();

	bpf_loop(ADDITIONS, ask_nothing, NULL, 0);
	note(start_ns);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
