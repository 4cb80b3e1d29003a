// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
/*
 * Noticing a CUDA library the moment it is mapped.
 *
 * The dynamic linker calls the empty function _dl_debug_state whenever its list of
 * libraries has changed, before it runs any of their code; debuggers rely on it. A
 * uprobe there walks the list. When a process that the user started through us has
 * mapped a CUDA library not seen before, it is stopped here until the probes stand,
 * so that not even its first call is missed. Others are only reported. So is what a
 * process maps after that: stacks go through it, and it may be gone before anybody asks.
 */
#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/rings.bpf.h"
#include "core/stops.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"

#define MAX_NAMESPACES	   4 /* lists: one, and one for each dlmopen namespace */
#define MAX_LIBRARIES	   2048
#define MAX_NEW_LIBRARIES  256 /* mapped by one dlopen, or at start */
#define LIST_IS_CONSISTENT 0
#define EXTENDED_VERSION   2 /* since glibc 2.35 there may be a next list */

/* What is new in a list. */
#define NOTHING	   0
#define SOME_OTHER 1
#define SOME_CUDA  3

/* struct r_debug_extended and struct link_map, as <link.h> has them. */
struct library_list {
	__s32 version;
	__s32 padding;
	__u64 first;
	__u64 changed; /* address of _dl_debug_state */
	__s32 state;
	__s32 padding_end;
	__u64 base;
	__u64 next_list; /* of version 2 */
};

struct library {
	__u64 load_address;
	__u64 name;
	__u64 dynamic_section;
	__u64 next;
	__u64 previous;
};

#define NEXT_OFFSET __builtin_offsetof(struct library, next)

struct library_key {
	__u64 start_boot_ns; /* with pid, a process; unlike a program it also exists unwatched */
	__u64 program_ktime_ns;
	__u64 library;
	__u64 name_hash; /* memory of a closed library is used again */
	__u32 pid;
	__u32 padding;
};

/* Libraries looked at already. LRU: looking twice costs time, never a call. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct library_key);
	__type(value, __u32);
} seen_libraries SEC(".maps");

/* What is too large for the stack. Another thread may run here while this one is
 * preempted; the owner is the thread that uses it. */
struct walk {
	struct library_key key;
	__u64 owner;
	char path[PATH_BYTES + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk);
} walks SEC(".maps");

/*
 * The functions with loops that follow are global, not inlined: the verifier walks the loop
 * of each once, not once for every library and namespace.
 */

/* A search through a path. */
struct scan {
	__u64 name_hash;
	__u32 has_cuda;
	__u32 padding;
};

/* Match one character of this CPU's path. Returns 1 at its end. */
static __noinline long scan_character(__u32 at, struct scan *scan)
{
	const __u64 cuda = 0x6164756362696cULL;	       /* "libcuda", little-endian */
	const __u64 nccl = 0x6c63636e62696cULL;	       /* "libnccl" */
	const __u64 allocator = 0x732e30316362696cULL; /* "libc10.s" */
	const __u64 verbs = 0x726576626962696cULL;     /* "libibver" */
	const __u64 own = 0x5f6c65746f62696cULL;       /* "libotel_" */
	const __u32 descriptor = 0x2f64662f;	       /* "/fd/": a name without meaning */
	__u32 zero = 0;
	struct walk *walk = bpf_map_lookup_elem(&walks, &zero);
	__u64 word;

	if (!walk || at >= PATH_BYTES || !walk->path[at])
		return 1;
	word = *(__u64 *)&walk->path[at];
	if ((word & 0x00ffffffffffffffULL) == cuda || (word & 0x00ffffffffffffffULL) == nccl ||
	    word == allocator || word == verbs || word == own || (__u32)word == descriptor)
		scan->has_cuda = 1;
	scan->name_hash = (scan->name_hash ^ (__u8)walk->path[at]) * 1099511628211ULL;
	return 0;
}

/*
 * Does this CPU's path contain "libcuda" (libcuda.so.1, libcudart.so.12, ...), "libnccl" or
 * "libibverbs", or is it PyTorch's libc10.so, whose blocks are followed, or one of ours, or opened
 * by a descriptor, as what is in memory is? That it has not so far is an argument, so that no verifier takes it for known: see unknown_zero().
 */
__noinline int scan_path(__u32 has_cuda)
{
	__u32 zero = 0;
	struct walk *walk = bpf_map_lookup_elem(&walks, &zero);
	struct scan scan = {.name_hash = 14695981039346656037ULL /* FNV-1a */,
			    .has_cuda = has_cuda};

	REPEAT(PATH_BYTES, scan_character, &scan);
	if (walk)
		walk->key.name_hash = scan.name_hash;
	return scan.has_cuda;
}

/* Go on to the next library of a list. Returns 1 at its end. */
static __noinline long walk_forward(__u32 step, __u64 *library)
{
	__u64 next = 0;

	if (bpf_probe_read_user(&next, sizeof(next), (void *)(*library + NEXT_OFFSET)) || !next)
		return 1;
	*library = next;
	return 0;
}

/* New libraries are at the end of a list. */
__noinline __u64 find_last(__u64 library)
{
	REPEAT(MAX_LIBRARIES, walk_forward, &library);
	return library;
}

/* A walk from the end of a list back to a library seen before. */
struct walk_back {
	__u64 library;
	__u32 news;
	__u32 padding;
};

/* Check one library, and go on to the one before. Returns 1 where the walk ends. */
static __noinline long walk_back(__u32 step, struct walk_back *back)
{
	__u32 zero = 0, seen = 1;
	struct walk *walk = bpf_map_lookup_elem(&walks, &zero);
	struct library library = {};
	int found;

	if (!walk || !back->library)
		return 1;
	if (bpf_probe_read_user(&library, sizeof(library), (void *)back->library)) {
		count(COUNTER_LOST_READ_FAULT);
		return 1;
	}
	walk->key.library = back->library;
	walk->path[0] = 0;
	if (bpf_probe_read_user_str(walk->path, PATH_BYTES, (void *)library.name) < 0)
		walk->path[0] = 0;
	found = scan_path(0);
	/* Another thread has used it: one check too many is better than one too few. */
	if (walk->owner != bpf_get_current_pid_tgid()) {
		back->news = SOME_CUDA;
		return 1;
	}
	if (bpf_map_lookup_elem(&seen_libraries, &walk->key))
		return 1;
	bpf_map_update_elem(&seen_libraries, &walk->key, &seen, BPF_ANY);
	/* One is enough: the agent checks everything that is mapped. */
	if (found) {
		back->news = SOME_CUDA;
		return 1;
	}
	back->news = SOME_OTHER;
	back->library = library.previous;
	return 0;
}

/*
 * Walk back from the end to a library seen before; what is on the way? The news that there
 * are so far is an argument, so that no verifier takes it for known: see unknown_zero().
 */
__noinline int find_new(__u64 last, __u32 news)
{
	struct walk_back back = {.library = last, .news = news};

	REPEAT(MAX_NEW_LIBRARIES, walk_back, &back);
	return back.news;
}

static __always_inline void stop_or_report(struct process *process, struct task_struct *task,
					   __u32 pid, const struct walk *walk, int news)
{
	struct library_record *record = RESERVE_LIFECYCLE(pid, record);

	if (!record) {
		/* The agent would not let it go on again, so it must not stop either. */
		count(COUNTER_LOST_LIFECYCLE_RING_FULL);
		return;
	}
	fill_header(&record->header, RECORD_LIBRARY, sizeof(*record), bpf_ktime_get_ns(),
		    process ? process->program_ktime_ns : 0, pid, tid_of(task));
	record->header.flags = news == SOME_CUDA ? 0 : LIBRARY_NOT_CUDA;
	record->stopped = news == SOME_CUDA && stop_for_probes(task, process, &record->header);
	record->padding = 0;
	__builtin_memset(record->path, 0, PATH_BYTES);
	bpf_probe_read_kernel_str(record->path, PATH_BYTES, walk->path);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/*
 * The attach cookie is how far the list lies from the probed instruction, times two; plus one: a
 * pointer to the list lies there, as musl has it.
 */
SEC("uprobe")
int library_list_changed(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = pid_of(task), zero = 0;
	struct process *process = find_process(pid);
	__s64 cookie = bpf_get_attach_cookie(ctx);
	__u64 address = PT_REGS_IP(ctx) + (cookie >> 1);
	struct walk *walk = bpf_map_lookup_elem(&walks, &zero);
	int news = NOTHING;

	if ((!process && !settings.watch_all) || !pid || pid == settings.agent_pid || !walk)
		return 0;
	if (cookie & 1 && bpf_probe_read_user(&address, sizeof(address), (void *)address)) {
		count(COUNTER_LOST_READ_FAULT);
		return 0;
	}
	walk->owner = bpf_get_current_pid_tgid();
	walk->key.start_boot_ns = READ_KERNEL(task, start_boottime);
	walk->key.program_ktime_ns = process ? process->program_ktime_ns : 0;
	walk->key.pid = pid;
	walk->key.padding = 0;
	for (int i = 0; i < MAX_NAMESPACES && address && news != SOME_CUDA; i++) {
		struct library_list list = {};

		if (bpf_probe_read_user(&list, sizeof(list), (void *)address)) {
			count(COUNTER_LOST_READ_FAULT);
			break;
		}
		if (list.state == LIST_IS_CONSISTENT && list.first)
			news = find_new(find_last(list.first), news);
		address = list.version >= EXTENDED_VERSION ? list.next_list : 0;
	}
	if (news == SOME_CUDA && process)
		__sync_fetch_and_or(&process->flags, PROCESS_HAS_CUDA);
	if (news == SOME_CUDA ||
	    (news == SOME_OTHER && process && process->flags & PROCESS_HAS_CUDA))
		stop_or_report(process, task, pid, walk, news);
	return 0;
}
