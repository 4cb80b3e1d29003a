/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The kernel types that the programs read, and only their fields that they read.
 *
 * preserve_access_index makes libbpf fix every offset to the running kernel's BTF
 * at load time, so these need not match any kernel's layout: only names matter.
 */
#ifndef OTEL_GPU_BPF_CORE_KERNEL_TYPES_H
#define OTEL_GPU_BPF_CORE_KERNEL_TYPES_H

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef signed short __s16;
typedef unsigned int __u32;
typedef signed int __s32;
typedef unsigned long long __u64;
typedef signed long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

enum {
	false = 0,
	true = 1
};

/* For bpf_tracing.h: registers have the kernel's names, not user space's. */
#define __VMLINUX_H__

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_EXIST = 2,
};

enum {
	BPF_RB_NO_WAKEUP = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

enum {
	BPF_F_MMAPABLE = 1 << 10,
};

enum bpf_func_id {
	BPF_FUNC_loop = 181,
};

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct pid_namespace {
	struct ns_common ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct thread_info {
	__u32 cpu; /* x86 and arm64 keep it here since CONFIG_THREAD_INFO_IN_TASK */
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 prev_sum_exec_runtime; /* when the task was last put on a CPU */
};

/* Moments of the scheduler's own clock, which is near ktime. */
struct sched_info {
	unsigned long long last_arrival; /* on a CPU */
	unsigned long long last_queued;	 /* 0: it does not wait for a CPU */
};

struct tty_struct;

struct signal_struct {
	struct {
		int counter;
	} live;
	struct {
		struct {
			void *next;
		} head;
	} wait_chldexit;
	struct pid *pids[1];
	unsigned int flags;
	int leader;
	struct tty_struct *tty;
};

struct xol_area {
	unsigned long vaddr;
};

struct uprobes_state {
	struct xol_area *xol_area;
};

struct mm_struct {
	unsigned long start_stack;
	struct uprobes_state uprobes_state;
};

struct return_instance {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance *next;
};

struct uprobe_task {
	struct return_instance *return_instances;
};

/* What a thread had at its last switch: the stack pointer, and user space's thread pointer. */
struct thread_struct {
#if defined(__TARGET_ARCH_x86)
	unsigned long sp;
	unsigned long fsbase;
#else
	struct {
		unsigned long tp_value;
	} uw;
#endif
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct bpf_run_ctx;

struct task_struct {
	struct thread_info thread_info;
	struct files_struct *files;
	struct mm_struct *mm;
	struct sched_entity se;
	struct sched_info sched_info;
	int on_cpu;
	int pid;
	int tgid;
	int exit_code;
	unsigned int in_iowait : 1;
	__u64 start_boottime;
	char comm[16];
	unsigned int ptrace;
	unsigned long jobctl;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	struct signal_struct *signal;
	struct uprobe_task *utask;
	struct thread_struct thread;
	void *stack;
	struct bpf_run_ctx *bpf_ctx;
};

struct bpf_uprobe {
	__u64 cookie;
};

struct bpf_uprobe_multi_run_ctx {
	struct bpf_uprobe *uprobe;
};

struct file_system_type {
	const char *name;
};

struct super_block {
	__u32 s_dev;
	struct file_system_type *s_type;
	const char *s_subtype;
};

struct inode {
	__u16 i_mode;
	__u32 i_rdev;
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct qstr {
	__u32 len;
	const unsigned char *name;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	const void *f_op;
	void *private_data;
	struct inode *f_inode;
	struct path f_path;
};

struct linux_binprm {
	struct file *file;
	const char *filename;
};

#pragma clang attribute pop

/* Registers are ABI: their layout does not change between kernels. */
#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax;
	unsigned long ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
struct pt_regs {
	struct user_pt_regs user_regs;
	__u64 orig_x0;
	__s32 syscallno;
	__u32 padding;
};
#else
#error "build with -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif

/* The context of a tick; its registers are those that it has interrupted. */
struct bpf_perf_event_data {
#if defined(__TARGET_ARCH_x86)
	struct pt_regs regs;
#else
	struct user_pt_regs regs;
#endif
	__u64 sample_period;
	__u64 addr;
};

#include <bpf/bpf_helpers.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#endif
