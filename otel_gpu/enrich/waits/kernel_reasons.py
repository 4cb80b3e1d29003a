"""
The reason of a blocked thread, from its kernel stack or its system call.

The kernel stack is the best source. Frames are matched from the innermost outwards, and the first
one in the table decides. Frames that only show *how* a thread waits (``schedule_timeout``,
``mutex_lock``, ``wait_for_completion``) are not in the table, so their caller decides. Some rows
count only if such a frame is inside theirs: a read-write semaphore guards address spaces, but also
folders and files, and only the function that takes it shows which.

A wait for a disk can be part of a page fault or of freeing memory. Then that is the reason, since
faster reads are not what helps.

If the stack shows nothing, the system call decides, if it can only wait for one kind of thing:
``read`` is not in that table, as it reads files and pipes alike. What neither shows is ``unknown``,
and stays so.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.limits.caches import remembered


class KernelRule(NamedTuple):
    """
    A reason, and the kernel functions that mean it.

    Attributes:
        reason: The reason.
        functions: Whole names, as a pattern; a compiler's suffix can follow.
        inside: If set, one of the frames further in must have such a name.
    """

    reason: WaitReason
    functions: str
    inside: str = ""


_SEMAPHORE = r"rwsem_down_(read|write)_slowpath|__?down_(read|write).*|down_(read|write).*"
_COMPLETION = r"__wait_for_common|wait_for_common|wait_for_completion.*|wait_for_vfork_done"

# If two rows match a function, the first one counts.
RULES: tuple[KernelRule, ...] = (
    # The end of a process is handled in the code of stops, and is not a stop.
    KernelRule(WaitReason.UNKNOWN, r"do_exit|do_group_exit|(do|vfs)_coredump"),
    # Of cgroup v2 and of v1: both are inside get_signal.
    KernelRule(WaitReason.FROZEN, r"do_freezer_trap|(__)?refrigerator"),
    KernelRule(WaitReason.STOPPED, r"do_signal_stop|ptrace_stop|do_jobctl_trap|get_signal"),
    KernelRule(
        WaitReason.MMAP_LOCK,
        r"vm_mmap_pgoff|(__)?vm_munmap|do_mprotect_pkey|do_madvise.*|madvise_.*|mmap_(read|write)_.*"
        r"|lock_mm_and_find_vma|get_mmap_lock_carefully|do_user_addr_fault|do_page_fault"
        r"|exc_page_fault|__mm_populate|dup_mm(ap)?|copy_process|exit_mmap|exit_mm|__ksm_.*"
        r"|(__)?(get|pin)_user_pages.*|gup_fast_fallback|internal_get_user_pages_fast|__gup_.*"
        r"|(__)?access_remote_vm|process_vm_rw.*|m_start|proc_.*_lookup_vma|userfaultfd_.*"
        r"|vma_.*|(un)?link_file_vma|.*anon_vma.*|rmap_walk_.*|do_mlock|apply_vma_lock_flags"
        r"|(__do_sys|__x64_sys|__arm64_sys)_(brk|mremap|mlockall|remap_file_pages)"
        r"|os_lock_user_pages",
        inside=_SEMAPHORE,
    ),
    KernelRule(
        WaitReason.RECLAIM,
        r"try_to_free_(mem_cgroup_)?pages|do_try_to_free_pages|__perform_reclaim"
        r"|shrink_(node|lruvec|slab|zones|one|many|folio_list|page_list|(in)?active_list).*"
        r"|(__)?mem_cgroup_(handle_over_high|oom.*|out_of_memory)|try_charge(_memcg)?"
        r"|__alloc_pages_(slowpath|direct_.*)|try_to_compact_pages|compact_zone|out_of_memory"
        r"|throttle_direct_reclaim|reclaim_throttle|congestion_wait|wait_iff_congested",
    ),
    KernelRule(
        WaitReason.PAGE_FAULT,
        r"(__)?handle_mm_fault|do_user_addr_fault|(asm_)?exc_page_fault|do_page_fault|do_mem_abort"
        r"|filemap_fault|do_swap_page|swap_read_.*|handle_userfault|migration_entry_wait.*",
    ),
    KernelRule(
        WaitReason.DRIVER,
        r"_?nv_.*|_nv\d+rm|nvidia_.*|nvkms_.*|nvUvm.*|uvm_.*|rm_.*"
        r"|os_(acquire|cond|delay|schedule|wait|down)_?.*",
    ),
    KernelRule(
        WaitReason.LOCK,
        r"futex_.*|__futex_.*|do_futex"
        r"|(locks|flock|posix)_lock_inode_wait|fcntl_setlk(64)?|__do_sys_flock",
    ),
    KernelRule(
        WaitReason.SLEEP,
        r"(do|common|hrtimer|clock)_nanosleep(_restart)?|common_nsleep.*|timerfd_read(_iter)?",
    ),
    KernelRule(
        WaitReason.IPC,
        r"(anon_)?pipe_(read|write|wait).*|fifo_open|wait_for_partner"
        r"|(do_|ep_|epoll_)(poll|epoll_wait|epoll_pwait)|do_sys_poll|do_select"
        r"|poll_schedule_timeout|unix_.*|__unix_.*|vsock_.*|netlink_.*|inet_.*|inet6_.*|tcp_.*"
        r"|udp_.*|sk_.*|__sk_.*|skb_.*|__skb_.*|sock_.*|__sys_(accept|connect|recv|send).*"
        r"|eventfd_read|signalfd_(read|dequeue).*|inotify_read|n_tty_.*|tty_.*|ib_uverbs_.*"
        r"|do_msg(rcv|snd)|(__)?do_semtimedop|mqueue_.*|wq_sleep|do_mq_timed(send|receive)"
        r"|do_sigtimedwait|sigsuspend|__(x64|arm64)_sys_pause|__do_sys_pause",
    ),
    KernelRule(WaitReason.CHILD_WAIT, r"do_wait|kernel_wait4|kernel_waitid"),
    KernelRule(WaitReason.CHILD_WAIT, r"kernel_clone|_do_fork", inside=_COMPLETION),
    KernelRule(
        WaitReason.IO,
        r"io_schedule(_timeout)?|bit_wait_io(_timeout)?|(submit_)?bio_.*|submit_bio_wait|(__)?blk_.*"
        r"|blkdev_.*|rq_qos_wait|wbt_wait|folio_wait_.*|wait_on_page_.*|balance_dirty_pages.*"
        r"|(__)?filemap_.*|generic_file_.*|generic_perform_write|(__)?iomap_.*|jbd2_.*"
        r"|(ext4|xfs|btrfs|f2fs|nfs|nfs3|nfs4|ceph|cifs|smb2|fuse|v9fs|p9|zfs|zio|ovl)_.*|rpc_.*"
        r"|path_openat|lookup_slow|walk_component|iterate_dir|do_(unlinkat|rmdir|renameat2|mkdirat)"
        r"|filename_create|vfs_(fsync|unlink|rename|mkdir|rmdir|create).*|do_fsync|ksys_sync|iterate_supers"
        # Rings are I/O of an unknown kind; most of it is of files.
        r"|io_cqring_wait|io_uring_.*|read_events|do_io_getevents",
    ),
)

_REMEMBERED_STACKS = 16384
# What a wait for a disk can be a part of.
_BEHIND_IO = frozenset({WaitReason.RECLAIM, WaitReason.PAGE_FAULT})


class SystemCall(NamedTuple):
    """
    A system call that waits for one kind of thing only.

    Numbers differ between machines. 0 means that a machine lacks it, so ``read``, which is 0 on one
    of them, is not here.
    """

    name: str
    x86_64: int
    aarch64: int
    reason: WaitReason


SYSTEM_CALLS: tuple[SystemCall, ...] = (
    SystemCall("pread64", 17, 67, WaitReason.IO),
    SystemCall("pwrite64", 18, 68, WaitReason.IO),
    SystemCall("preadv", 295, 69, WaitReason.IO),
    SystemCall("pwritev", 296, 70, WaitReason.IO),
    SystemCall("preadv2", 327, 286, WaitReason.IO),
    SystemCall("pwritev2", 328, 287, WaitReason.IO),
    SystemCall("msync", 26, 227, WaitReason.IO),
    SystemCall("fsync", 74, 82, WaitReason.IO),
    SystemCall("fdatasync", 75, 83, WaitReason.IO),
    SystemCall("sync", 162, 81, WaitReason.IO),
    SystemCall("syncfs", 306, 267, WaitReason.IO),
    SystemCall("sync_file_range", 277, 84, WaitReason.IO),
    SystemCall("getdents64", 217, 61, WaitReason.IO),
    SystemCall("io_getevents", 208, 4, WaitReason.IO),
    SystemCall("io_pgetevents", 333, 292, WaitReason.IO),
    SystemCall("io_uring_enter", 426, 426, WaitReason.IO),
    SystemCall("poll", 7, 0, WaitReason.IPC),
    SystemCall("ppoll", 271, 73, WaitReason.IPC),
    SystemCall("select", 23, 0, WaitReason.IPC),
    SystemCall("pselect6", 270, 72, WaitReason.IPC),
    SystemCall("epoll_wait", 232, 0, WaitReason.IPC),
    SystemCall("epoll_pwait", 281, 22, WaitReason.IPC),
    SystemCall("epoll_pwait2", 441, 441, WaitReason.IPC),
    SystemCall("connect", 42, 203, WaitReason.IPC),
    SystemCall("accept", 43, 202, WaitReason.IPC),
    SystemCall("accept4", 288, 242, WaitReason.IPC),
    SystemCall("sendto", 44, 206, WaitReason.IPC),
    SystemCall("recvfrom", 45, 207, WaitReason.IPC),
    SystemCall("sendmsg", 46, 211, WaitReason.IPC),
    SystemCall("recvmsg", 47, 212, WaitReason.IPC),
    SystemCall("recvmmsg", 299, 243, WaitReason.IPC),
    SystemCall("sendmmsg", 307, 269, WaitReason.IPC),
    SystemCall("semop", 65, 193, WaitReason.IPC),
    SystemCall("semtimedop", 220, 192, WaitReason.IPC),
    SystemCall("msgsnd", 69, 189, WaitReason.IPC),
    SystemCall("msgrcv", 70, 188, WaitReason.IPC),
    SystemCall("mq_timedsend", 242, 182, WaitReason.IPC),
    SystemCall("mq_timedreceive", 243, 183, WaitReason.IPC),
    SystemCall("pause", 34, 0, WaitReason.IPC),
    SystemCall("rt_sigtimedwait", 128, 137, WaitReason.IPC),
    SystemCall("rt_sigsuspend", 130, 133, WaitReason.IPC),
    SystemCall("nanosleep", 35, 101, WaitReason.SLEEP),
    SystemCall("clock_nanosleep", 230, 115, WaitReason.SLEEP),
    SystemCall("futex", 202, 98, WaitReason.LOCK),
    SystemCall("futex_waitv", 449, 449, WaitReason.LOCK),
    SystemCall("fcntl", 72, 25, WaitReason.LOCK),
    SystemCall("flock", 73, 32, WaitReason.LOCK),
    SystemCall("wait4", 61, 260, WaitReason.CHILD_WAIT),
    SystemCall("waitid", 247, 95, WaitReason.CHILD_WAIT),
    SystemCall("vfork", 58, 0, WaitReason.CHILD_WAIT),
)

_BY_NUMBER: Mapping[str, Mapping[int, WaitReason]] = {
    machine: {number: call.reason for call in SYSTEM_CALLS if (number := getattr(call, machine))}
    for machine in ("x86_64", "aarch64")
}


class _Pattern(NamedTuple):
    reason: WaitReason
    functions: str
    inside: str | None


# When first needed: most starts need none, and compiling all takes longer than a whole import.
@functools.cache
def _compile(functions: str) -> re.Pattern[str]:
    # Compilers name the parts of a function that they split "schedule.part.0".
    return re.compile(rf"(?:{functions})(?:\..*)?")


_PATTERNS = tuple(_Pattern(rule.reason, rule.functions, rule.inside or None) for rule in RULES)


def find_reason(
    functions: Sequence[str], system_call: int, flags: int, machine: str = "x86_64"
) -> WaitReason:
    """
    Return why a thread was blocked, by the kernel: one of ``reasons.REASONS``.

    ``user_reasons.refine_reason`` can know it more exactly.

    Args:
        functions: Its kernel stack, innermost first; can be empty.
        system_call: The number of the system call that it was in; -1: none.
        flags: ``enum stall_flag``.
        machine: The architecture of the system call numbers.
    """
    # Its state decides, also without a stack.
    reason = WaitReason.STOPPED if flags & wire.STALL_STOPPED else _from_stack(tuple(functions))
    if reason is None:
        reason = _BY_NUMBER.get(machine, {}).get(system_call, WaitReason.UNKNOWN)
    if reason == WaitReason.STOPPED and flags & wire.STALL_AGENT:
        return WaitReason.CAPTURE
    if (
        reason == WaitReason.STOPPED
        and flags & wire.STALL_FROZEN
        and not flags & wire.STALL_STOPPED
    ):
        # The function of the freezer is a part of get_signal in most kernels.
        return WaitReason.FROZEN
    if reason == WaitReason.IO and flags & wire.STALL_FAULT:
        # The stack is cut at its outer end; outside system calls, only a fault reads files.
        return WaitReason.PAGE_FAULT
    # A thread can be stopped, or have to read memory, in a system call about the GIL.
    if flags & wire.STALL_GIL and reason in (WaitReason.LOCK, WaitReason.UNKNOWN):
        return WaitReason.GIL
    return reason


# Time accounting asks for every stack, every second.
@remembered("wait_reasons", _REMEMBERED_STACKS, 600)
def _from_stack(functions: tuple[str, ...]) -> WaitReason | None:
    found = None
    for index, function in enumerate(functions):
        reason = _from_frame(function, functions[:index])
        if found is None:
            found = reason
            if found not in (None, WaitReason.IO):
                return found
        elif reason in _BEHIND_IO:
            return reason
    return found


def _from_frame(function: str, inner: Sequence[str]) -> WaitReason | None:
    for reason, pattern, inside in _PATTERNS:
        if _compile(pattern).fullmatch(function) and (
            inside is None or any(map(_compile(inside).fullmatch, inner))
        ):
            return reason
    return None
