/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Paths of files, as in /proc/PID/exe: bpf_d_path() is not for tracepoints. */
#ifndef OTEL_GPU_BPF_CORE_PATHS_H
#define OTEL_GPU_BPF_CORE_PATHS_H

#include "core/core_fixes.bpf.h"
#include "core/kernel_types.bpf.h"
#include "events.h"

#define MAX_PATH_STEPS	64 /* names and mounts on the way to the root */
#define PATH_OFFSET(at) ((at) & (PATH_BYTES - 1))

/*
 * How the kernel's own part of a mount begins. No header that is for others has it; it has
 * been like this since Linux 3.3.
 */
struct mount {
	void *mnt_hash[2];
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
}
#if defined(OTEL_GPU_NO_BTF)
;
#define MOUNT_OFFSET __builtin_offsetof(struct mount, mnt)
#else
__attribute__((preserve_access_index));
#define MOUNT_OFFSET bpf_core_field_offset(struct mount, mnt)
#endif

struct path_walk {
	struct dentry *dentry;
	struct vfsmount *mount;
	__u64 start; /* of the text so far, which ends with the buffer's first half */
};

/* Names are put before each other. The second half stays zero: it is for the verifier. */
struct path_buffer {
	char text[2 * PATH_BYTES];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct path_buffer);
} path_buffers __weak SEC(".maps");

static __noinline long prepend_name(__u32 step, struct path_walk *walk)
{
	struct dentry *dentry = walk->dentry, *parent = BPF_CORE_READ(dentry, d_parent);
	struct vfsmount *part = walk->mount;
	__u64 length, start;
	struct path_buffer *buffer;
	__u32 key = 0;

	if (dentry == BPF_CORE_READ(part, mnt_root)) {
		struct mount *mount = (void *)part - MOUNT_OFFSET, *outer = NULL;

		bpf_probe_read_kernel(&outer, sizeof(outer), &mount->mnt_parent);
		if (!outer || outer == mount)
			return 1;
		bpf_probe_read_kernel(&dentry, sizeof(dentry), &mount->mnt_mountpoint);
		walk->dentry = dentry;
		walk->mount = (void *)outer + MOUNT_OFFSET;
		return 0;
	}
	buffer = bpf_map_lookup_elem(&path_buffers, &key);
	length = BPF_CORE_READ(dentry, d_name.len);
	if (!buffer || length >= walk->start)
		return 1;
	start = PATH_OFFSET(walk->start - length - 1);
	length = PATH_OFFSET(length);
	barrier_var(start);
	barrier_var(length);
	buffer->text[PATH_OFFSET(start)] = '/';
	bpf_probe_read_kernel(&buffer->text[PATH_OFFSET(start) + 1], PATH_OFFSET(length),
			      BPF_CORE_READ(dentry, d_name.name));
	walk->start = start;
	walk->dentry = parent;
	/* What is nowhere, as a memfd, is its own parent. */
	return dentry == parent;
}

/*
 * Copy the path of a file, of PATH_BYTES with what is left zeroed: its end, if it is longer.
 * Returns whether there is one.
 */
static __always_inline bool copy_path(char *to, struct file *file)
{
	struct path_walk walk = {
		.dentry = BPF_CORE_READ(file, f_path.dentry),
		.mount = BPF_CORE_READ(file, f_path.mnt),
		.start = PATH_BYTES - 1,
	};
	struct path_buffer *buffer;
	__u32 key = 0;

	REPEAT(MAX_PATH_STEPS, prepend_name, &walk);
	buffer = bpf_map_lookup_elem(&path_buffers, &key);
	if (!buffer || walk.start >= PATH_BYTES - 1)
		return false;
	bpf_probe_read_kernel(to, PATH_BYTES, &buffer->text[PATH_OFFSET(walk.start)]);
	return true;
}

#endif
