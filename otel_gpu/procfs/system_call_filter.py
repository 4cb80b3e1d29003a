"""
System call filters (seccomp): generation and installation of their classic BPF programs.

A refused call fails with ``EPERM``. The kernel keeps a bitmap of the calls that a filter allows with
any arguments, so these do not run the program.
"""

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple


class Numbers(NamedTuple):
    """The numbers of a system call; None: the architecture does not have it."""

    x86_64: int | None
    aarch64: int | None


# Calls that no capture makes, and that an attacker in the agent would use to regain rights, to reach
# other processes, or parts of the kernel with many vulnerabilities.
REFUSED_TO_AGENT: Final[Mapping[str, Numbers]] = {
    # another user, or a namespace with all capabilities
    "setuid": Numbers(105, 146), "setgid": Numbers(106, 144), "setreuid": Numbers(113, 145),
    "setregid": Numbers(114, 143), "setgroups": Numbers(116, 159), "setresuid": Numbers(117, 147),
    "setresgid": Numbers(119, 149), "setfsuid": Numbers(122, 151), "setfsgid": Numbers(123, 152),
    "unshare": Numbers(272, 97), "setns": Numbers(308, 268), "chroot": Numbers(161, 51),
    "pivot_root": Numbers(155, 41), "personality": Numbers(135, 92),
    # other processes; their memory is read through /proc
    "ptrace": Numbers(101, 117), "process_vm_writev": Numbers(311, 271), "kcmp": Numbers(312, 272),
    "pidfd_getfd": Numbers(438, 438),
    # files without their paths
    "open_by_handle_at": Numbers(304, 265), "mknod": Numbers(133, None),
    "mknodat": Numbers(259, 33),
    # mounts
    "mount": Numbers(165, 40), "umount2": Numbers(166, 39), "open_tree": Numbers(428, 428),
    "move_mount": Numbers(429, 429), "fsopen": Numbers(430, 430), "fsconfig": Numbers(431, 431),
    "fsmount": Numbers(432, 432), "fspick": Numbers(433, 433), "mount_setattr": Numbers(442, 442),
    # the machine
    "init_module": Numbers(175, 105), "finit_module": Numbers(313, 273),
    "delete_module": Numbers(176, 106), "kexec_load": Numbers(246, 104),
    "kexec_file_load": Numbers(320, 294), "reboot": Numbers(169, 142),
    "swapon": Numbers(167, 224), "swapoff": Numbers(168, 225), "iopl": Numbers(172, None),
    "ioperm": Numbers(173, None), "modify_ldt": Numbers(154, None), "acct": Numbers(163, 89),
    "quotactl": Numbers(179, 60), "quotactl_fd": Numbers(443, 443), "vhangup": Numbers(153, 58),
    "sethostname": Numbers(170, 161), "setdomainname": Numbers(171, 162),
    "settimeofday": Numbers(164, 170), "adjtimex": Numbers(159, 171),
    "clock_settime": Numbers(227, 112), "clock_adjtime": Numbers(305, 266),
    # io_uring, which a filter cannot check, and keys
    "io_uring_setup": Numbers(425, 425), "io_uring_enter": Numbers(426, 426),
    "io_uring_register": Numbers(427, 427), "userfaultfd": Numbers(323, 282),
    "add_key": Numbers(248, 217), "request_key": Numbers(249, 218), "keyctl": Numbers(250, 219),
}  # fmt: skip
# Enough for an interpreter that waits, reads, writes and allocates.
ALLOWED_TO_CALCULATE: Final[Mapping[str, Numbers]] = {
    "read": Numbers(0, 63), "write": Numbers(1, 64), "close": Numbers(3, 57),
    "poll": Numbers(7, None), "ppoll": Numbers(271, 73), "select": Numbers(23, None),
    "pselect6": Numbers(270, 72), "mmap": Numbers(9, 222), "mprotect": Numbers(10, 226),
    "munmap": Numbers(11, 215), "mremap": Numbers(25, 216), "brk": Numbers(12, 214),
    "madvise": Numbers(28, 233), "futex": Numbers(202, 98), "sched_yield": Numbers(24, 124),
    "clock_gettime": Numbers(228, 113), "getrandom": Numbers(318, 278),
    "rt_sigaction": Numbers(13, 134), "rt_sigprocmask": Numbers(14, 135),
    "rt_sigreturn": Numbers(15, 139), "restart_syscall": Numbers(219, 128),
    "exit": Numbers(60, 93), "exit_group": Numbers(231, 94),
}  # fmt: skip

# struct sock_filter: what to do, jumps if true and if false, a constant.
_INSTRUCTION: Final = struct.Struct("=HBBI")
# From include/uapi/linux/bpf_common.h, seccomp.h and audit.h.
_LOAD_WORD, _JUMP_IF_EQUAL, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM
_ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# Numbers of x32, the calls with 32-bit pointers, start here.
_X32: Final = 0x40000000
_PR_SET_NO_NEW_PRIVS: Final = 38
_SECCOMP: Final = Numbers(317, 277)
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_SPEC_ALLOW = 1, 4


def make_filter(
    calls: Mapping[str, Numbers], *, allowed: bool, machine: str = platform.machine()
) -> bytes:
    """
    Return a program that allows, or refuses, only these calls; empty: the architecture is unknown.

    Calls of another architecture, such as 32 bits, are refused.
    """
    if machine not in _ARCHITECTURES:
        return b""
    numbers = [
        number for one in calls.values() if (number := getattr(one, machine, None)) is not None
    ]
    named, others = (_ALLOW, _REFUSE) if allowed else (_REFUSE, _ALLOW)
    # After the comparisons: the results for other calls, for these calls, and for other architectures.
    program = [
        (_LOAD_WORD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_IF_EQUAL, 0, len(numbers) + 4, _ARCHITECTURES[machine]),
        (_LOAD_WORD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_IF_AT_LEAST, len(numbers) + 2, 0, _X32),
    ]
    for index, number in enumerate(numbers):
        program.append((_JUMP_IF_EQUAL, len(numbers) - index, 0, number))
    program += [(_RETURN, 0, 0, others), (_RETURN, 0, 0, named), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(_INSTRUCTION.pack(*one) for one in program)


def forbid_new_privileges() -> None:
    """Prevent that executed programs gain rights (PR_SET_NO_NEW_PRIVS)."""
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def install_filter(program: bytes) -> None:
    """
    Install a filter for this thread and its future children.

    Speculation mitigations stay unchanged: kernels before 5.16 would enable some for programs with a
    filter, which slows them down.

    Raises:
        OSError: The kernel has no filters, or ``forbid_new_privileges`` was not called.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack(
        "HxxxxxxQ", len(program) // _INSTRUCTION.size, ctypes.addressof(instructions)
    )
    result = libc.syscall(
        ctypes.c_long(getattr(_SECCOMP, platform.machine())),
        ctypes.c_long(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_long(_SECCOMP_FILTER_FLAG_SPEC_ALLOW),
        ctypes.c_char_p(header),
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
