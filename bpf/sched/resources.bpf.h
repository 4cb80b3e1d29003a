/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What a thread waited for, where its system call was about a file descriptor: which file on
 * which file system, or a socket's other end. As with stacks, an id stands for it.
 *
 * It is looked at when the thread is about to run again, if the wait was long: the thread is
 * still in its system call then, so the descriptor is open. Short waits go without, but those
 * for a socket, pipe or device that the thread last waited long for: programs keep these open. If
 * it is the file that was looked at last, its inode is all that is looked at again.
 */
#ifndef OTEL_GPU_BPF_SCHED_RESOURCES_H
#define OTEL_GPU_BPF_SCHED_RESOURCES_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_memory.bpf.h"
#include "core/kernel_types.bpf.h"
#include "core/maps.bpf.h"
#include "core/paths.bpf.h"
#include "core/tasks.bpf.h"
#include "events.h"
#include "sched/sockets.bpf.h"

#if defined(OTEL_GPU_NO_BTF)

static __always_inline void note_descriptor(struct thread *thread, __u64 second_argument)
{
}

static __always_inline void note_resource(struct thread *thread, struct task_struct *task,
					  __u64 now_ktime_ns, bool in_place)
{
}

#else

#define RESOURCE_FLOOR_NS 100000
/* Further files of a program are one per file system in the time account, and sockets one
 * per family: a data set can have millions. */
#define MAX_OWN_RESOURCES 64
#define MAX_SYSTEM_CALL	  448
#define FILE_TYPE	  0170000
#define FILE_REGULAR	  0100000
#define FILE_FOLDER	  0040000
#define FILE_SOCKET	  0140000

/* Where a system call has its descriptor. */
enum descriptor_place {
	DESCRIPTOR_FIRST = 1, /* its first argument is one */
	DESCRIPTOR_POLL = 2,  /* in user space's struct pollfd, if it is about one */
	DESCRIPTOR_EPOLL = 3, /* of a set: the first of it that is ready, else the set */
};

#if defined(__TARGET_ARCH_x86)
static const __u8 descriptor_places[MAX_SYSTEM_CALL] = {
	[0 ... 1] = DESCRIPTOR_FIRST,	  /* read, write */
	[7] = DESCRIPTOR_POLL,		  /* poll */
	[16 ... 20] = DESCRIPTOR_FIRST,	  /* ioctl, pread64, pwrite64, readv, writev */
	[40] = DESCRIPTOR_FIRST,	  /* sendfile */
	[42 ... 47] = DESCRIPTOR_FIRST,	  /* connect, accept, sendto, recvfrom, sendmsg, recvmsg */
	[72 ... 75] = DESCRIPTOR_FIRST,	  /* fcntl, flock, fsync, fdatasync */
	[77 ... 78] = DESCRIPTOR_FIRST,	  /* ftruncate, getdents */
	[217] = DESCRIPTOR_FIRST,	  /* getdents64 */
	[232] = DESCRIPTOR_EPOLL,	  /* epoll_wait */
	[271] = DESCRIPTOR_POLL,	  /* ppoll */
	[275 ... 276] = DESCRIPTOR_FIRST, /* splice, tee */
	[277 ... 278] = DESCRIPTOR_FIRST, /* sync_file_range, vmsplice */
	[281] = DESCRIPTOR_EPOLL,	  /* epoll_pwait */
	[285] = DESCRIPTOR_FIRST,	  /* fallocate */
	[288] = DESCRIPTOR_FIRST,	  /* accept4 */
	[295 ... 296] = DESCRIPTOR_FIRST, /* preadv, pwritev */
	[299] = DESCRIPTOR_FIRST,	  /* recvmmsg */
	[306 ... 307] = DESCRIPTOR_FIRST, /* syncfs, sendmmsg */
	[326 ... 328] = DESCRIPTOR_FIRST, /* copy_file_range, preadv2, pwritev2 */
	[426] = DESCRIPTOR_FIRST,	  /* io_uring_enter */
	[441] = DESCRIPTOR_EPOLL,	  /* epoll_pwait2 */
};
#else
static const __u8 descriptor_places[MAX_SYSTEM_CALL] = {
	[22] = DESCRIPTOR_EPOLL,	  /* epoll_pwait */
	[25] = DESCRIPTOR_FIRST,	  /* fcntl */
	[29] = DESCRIPTOR_FIRST,	  /* ioctl */
	[32] = DESCRIPTOR_FIRST,	  /* flock */
	[46 ... 47] = DESCRIPTOR_FIRST,	  /* ftruncate, fallocate */
	[61] = DESCRIPTOR_FIRST,	  /* getdents64 */
	[63 ... 71] = DESCRIPTOR_FIRST,	  /* read ... pwritev, sendfile */
	[73] = DESCRIPTOR_POLL,		  /* ppoll */
	[75 ... 77] = DESCRIPTOR_FIRST,	  /* vmsplice, splice, tee */
	[82 ... 84] = DESCRIPTOR_FIRST,	  /* fsync, fdatasync, sync_file_range */
	[202 ... 203] = DESCRIPTOR_FIRST, /* accept, connect */
	[206 ... 207] = DESCRIPTOR_FIRST, /* sendto, recvfrom */
	[211 ... 212] = DESCRIPTOR_FIRST, /* sendmsg, recvmsg */
	[242 ... 243] = DESCRIPTOR_FIRST, /* accept4, recvmmsg */
	[267] = DESCRIPTOR_FIRST,	  /* syncfs */
	[269] = DESCRIPTOR_FIRST,	  /* sendmmsg */
	[285 ... 287] = DESCRIPTOR_FIRST, /* copy_file_range, preadv2, pwritev2 */
	[426] = DESCRIPTOR_FIRST,	  /* io_uring_enter */
	[441] = DESCRIPTOR_EPOLL,	  /* epoll_pwait2 */
};
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct epoll_filefd {
	struct file *file;
};

struct epitem {
	struct list_head rdllink;
	struct epoll_filefd ffd;
};

struct eventpoll {
	struct list_head rdllist;
};

#pragma clang attribute pop

/* Too large for the BPF stack. As stack_walk. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct resource);
} resource_scratch __weak SEC(".maps");

static __always_inline enum descriptor_place descriptor_place_of(__s32 system_call)
{
	__u32 number = system_call;

	return number < MAX_SYSTEM_CALL ? descriptor_places[number] : 0;
}

/*
 * The thread leaves the CPU to wait: here its memory can be read. So what is looked at later is
 * known by its number.
 */
static __always_inline void note_descriptor(struct thread *thread, __u64 second_argument)
{
	enum descriptor_place place = descriptor_place_of(thread->system_call);

	if (place == DESCRIPTOR_POLL) {
		if (second_argument == 1)
			bpf_probe_read_user(&thread->descriptor, sizeof(thread->descriptor),
					    (void *)thread->argument);
	} else if (place) {
		thread->descriptor = thread->argument;
	}
}

static __always_inline __u32 id_of(const struct resource_identity *identity)
{
	const __u64 *words = (const __u64 *)identity;
	__u64 hash = 0;

	for (__u32 i = 0; i < sizeof(*identity) / sizeof(*words); i++)
		hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15ULL;
	hash >>= 33;
	return hash ? hash : 1;
}

static __always_inline bool is_same(const struct resource_identity *one,
				    const struct resource_identity *other)
{
	const __u64 *words = (const __u64 *)one, *others = (const __u64 *)other;
	__u64 differences = 0;

	for (__u32 i = 0; i < sizeof(*one) / sizeof(*words); i++)
		differences |= words[i] ^ others[i];
	return !differences;
}

/* In an epoll set, a file that is ready: that is what the wait was for. */
static __always_inline __u64 ready_file(struct file *set)
{
	struct eventpoll *poll = BPF_CORE_READ(set, private_data);
	struct list_head *first;
	struct epitem *item;
	struct file *file;

	if (!bpf_core_type_exists(struct epitem) || !bpf_core_type_exists(struct eventpoll))
		return (__u64)set;
	first = BPF_CORE_READ(poll, rdllist.next);
	if (!first ||
	    (void *)first == (void *)poll + bpf_core_field_offset(struct eventpoll, rdllist))
		return (__u64)set;
	item = (void *)first - bpf_core_field_offset(struct epitem, rdllink);
	file = BPF_CORE_READ(item, ffd.file);
	return (__u64)(file ? file : set);
}

static __always_inline struct sock *identify_socket(struct resource *scratch, struct file *file,
						    bool in_place)
{
	struct socket *socket = TYPED(LOAD(file, private_data), struct socket);
	struct sock *sk = LOAD(socket, sk);

	scratch->identity.family = LOAD(sk, __sk_common.skc_family);
	scratch->identity.socket_type = LOAD(socket, type);
	if (scratch->identity.family == AF_INET || scratch->identity.family == AF_INET6) {
		read_addresses(scratch, sk, in_place);
		if (scratch->identity.is_remote)
			be_known_by_peer(&scratch->identity);
	}
	return sk;
}

static __always_inline void describe_local_socket(struct resource *scratch, struct sock *sk)
{
	struct unix_sock *own = (void *)sk, *peer;

	if (!bpf_core_type_exists(struct unix_sock))
		return;
	peer = (void *)BPF_CORE_READ(own, peer);
	if (peer)
		scratch->peer_inode =
			BPF_CORE_READ((struct sock *)peer, sk_socket, file, f_inode, i_ino);
	if (!read_unix_path(scratch->path, own) && peer)
		read_unix_path(scratch->path, peer);
}

static __always_inline void describe_file(struct resource *scratch, struct file *file)
{
	struct super_block *file_system = BPF_CORE_READ(file, f_inode, i_sb);

	bpf_probe_read_kernel_str(scratch->file_system, FILE_SYSTEM_BYTES,
				  BPF_CORE_READ(file_system, s_type, name));
	bpf_probe_read_kernel_str(scratch->subtype, FILE_SYSTEM_BYTES,
				  BPF_CORE_READ(file_system, s_subtype));
	scratch->special_device = BPF_CORE_READ(file, f_inode, i_rdev);
	copy_path(scratch->path, file);
}

/* Add what this CPU found under its id, if it is not there. Returns 0 if the map is full. */
static __always_inline struct resource *add_resource(__u32 id, const struct resource *scratch)
{
	struct resource *known;

	/* BPF_NOEXIST: another CPU may have met the same. */
	bpf_map_update_elem(&resources, &id, scratch, BPF_NOEXIST);
	known = bpf_map_lookup_elem(&resources, &id);
	return known && is_same(&known->identity, &scratch->identity) ? known : NULL;
}

/* What stands in the account for many: a file system, or a family of sockets. */
static __always_inline void generalize(struct resource_identity *identity)
{
	identity->inode = 0;
	identity->operations = 0;
	identity->local_port = 0;
	identity->remote_port = 0;
	__builtin_memset(identity->remote_address, 0, ADDRESS_BYTES);
}

/* Describe what was met for the first time, and add it. */
static __always_inline struct resource *meet(const struct thread *thread, struct resource *scratch,
					     __u32 id, struct file *file, struct sock *sk)
{
	struct resource_identity general = scratch->identity;
	struct process *process = find_process(thread->pid);
	struct resource *known;
	__u32 shared = id;

	if (process && __sync_fetch_and_add(&process->resources, 1) >= MAX_OWN_RESOURCES) {
		generalize(&general);
		shared = id_of(&general);
	}
	scratch->program_ktime_ns = thread->program_ktime_ns;
	scratch->pid = thread->pid;
	scratch->shared = shared;
	scratch->peer_inode = 0;
	scratch->retransmits = 0;
	scratch->special_device = 0;
	__builtin_memset(scratch->file_system, 0, FILE_SYSTEM_BYTES);
	__builtin_memset(scratch->subtype, 0, FILE_SYSTEM_BYTES);
	__builtin_memset(scratch->path, 0, PATH_BYTES);
	if (!sk)
		describe_file(scratch, file);
	else if (scratch->identity.family == AF_UNIX)
		describe_local_socket(scratch, sk);
	known = add_resource(id, scratch);
	if (shared != id && !bpf_map_lookup_elem(&resources, &shared)) {
		scratch->identity = general;
		scratch->inode = 0;
		scratch->peer_inode = 0;
		scratch->special_device = 0;
		scratch->local_port = 0;
		__builtin_memset(scratch->local_address, 0, ADDRESS_BYTES);
		__builtin_memset(scratch->path, 0, PATH_BYTES);
		add_resource(shared, scratch);
	}
	return known;
}

static __always_inline void clear_scratch(struct resource *scratch)
{
	__builtin_memset(&scratch->identity, 0, sizeof(scratch->identity));
	__builtin_memset(scratch->local_address, 0, ADDRESS_BYTES);
	scratch->local_port = 0;
}

/* Find out what a file is, and note it in the thread. */
static __always_inline int identify_file(struct thread *thread, __u64 address, bool in_place)
{
	struct file *file;
	__u32 zero = 0, id, type;
	struct resource *scratch = bpf_map_lookup_elem(&resource_scratch, &zero), *known;
	struct sock *sk = NULL;
	bool is_of_set;

	if (!thread || !scratch)
		return 0;
	is_of_set = descriptor_place_of(thread->system_call) == DESCRIPTOR_EPOLL;
	if (is_of_set)
		address = ready_file((void *)address);
	file = TYPED(address, struct file);
	clear_scratch(scratch);
	scratch->inode = LOAD(file, f_inode, i_ino);
	scratch->mode = LOAD(file, f_inode, i_mode);
	scratch->identity.inode = scratch->inode;
	scratch->identity.operations = (__u64)LOAD(file, f_op);
	scratch->identity.device = LOAD(file, f_inode, i_sb, s_dev);
	type = scratch->mode & FILE_TYPE;
	if (type == FILE_SOCKET)
		sk = identify_socket(scratch, file, in_place);
	id = id_of(&scratch->identity);
	known = bpf_map_lookup_elem(&resources, &id);
	if (!known)
		known = meet(thread, scratch, id, (void *)address, sk);
	else if (!is_same(&known->identity, &scratch->identity))
		known = NULL;
	if (!known) {
		count(COUNTER_LOST_RESOURCE);
		return 0;
	}
	thread->resource = id;
	thread->shared_resource = known->shared;
	if (is_of_set)
		return 0;
	/* The next datagram can have another destination. */
	if (!sk || scratch->identity.socket_type == SOCK_STREAM)
		thread->last_file = address;
	thread->last_inode = (__u64)LOAD(file, f_inode);
	thread->last_inode_number = scratch->inode;
	thread->last_resource = id;
	thread->last_shared_resource = known->shared;
	if (type != FILE_REGULAR && type != FILE_FOLDER)
		thread->last_descriptor = thread->descriptor;
	return 0;
}

/*
 * Global functions, so that the verifier walks each once; with the address as a number, as a
 * global function takes no pointer to a file.
 */
__weak __noinline int identify_by_copies(struct thread *thread, __u64 address)
{
	return identify_file(thread, address, false);
}

__weak __noinline int identify_in_place(struct thread *thread, __u64 address)
{
	return identify_file(thread, address, true);
}

/* An address is soon that of another file; then its inode is another one, or has another number. */
static __always_inline bool is_last_file(const struct thread *thread, struct file *address,
					 bool in_place)
{
	struct file *file = TYPED(address, struct file);

	return (__u64)address == thread->last_file &&
	       (__u64)LOAD(file, f_inode) == thread->last_inode &&
	       LOAD(file, f_inode, i_ino) == thread->last_inode_number &&
	       descriptor_place_of(thread->system_call) != DESCRIPTOR_EPOLL;
}

static __always_inline struct file *file_at(struct file **slot, bool in_place)
{
	struct file *file = NULL;

#if CAN_RECALL_STACKS
	if (in_place)
		return (struct file *)word_at((__u64)slot);
#endif
	bpf_probe_read_kernel(&file, sizeof(file), slot);
	return file;
}

static __always_inline void use_last_resource(struct thread *thread)
{
	thread->resource = thread->last_resource;
	thread->shared_resource = thread->last_shared_resource;
}

/* The thread is about to run. */
static __always_inline void note_resource(struct thread *thread, struct task_struct *task,
					  __u64 now_ktime_ns, bool in_place)
{
	__s32 descriptor = thread->descriptor;
	struct file **slots, *file;
	struct fdtable *table;

	if (descriptor < 0)
		return;
	if (now_ktime_ns - thread->off_ktime_ns < RESOURCE_FLOOR_NS) {
		if (descriptor == thread->last_descriptor)
			use_last_resource(thread);
		return;
	}
	table = LOAD(TYPED(task, struct task_struct), files, fdt);
	if ((__u32)descriptor >= LOAD(table, max_fds))
		return;
	slots = LOAD(table, fd);
	file = file_at(slots + descriptor, in_place);
	if (file && is_last_file(thread, file, in_place)) {
		use_last_resource(thread);
		return;
	}
	thread->last_descriptor = -1;
	thread->last_file = 0;
	if (!file)
		return;
	if (in_place)
		identify_in_place(thread, (__u64)file);
	else
		identify_by_copies(thread, (__u64)file);
}

#endif

#endif
