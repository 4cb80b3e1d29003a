"""Reads capabilities of processes from /proc, and reduces the agent's own."""

import ctypes
import os
from collections.abc import Iterable
from typing import Final

from otel_gpu.procfs.proc_files import read_file

# From include/uapi/linux/capability.h, in its order: the index is the number.
_NAMES: Final = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID",
    "SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW",
    "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT",
    "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD",
    "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG",
    "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)  # fmt: skip
CAPABILITY_NUMBERS: Final = {name: number for number, name in enumerate(_NAMES)}
"""Numbers by name, without ``CAP_``."""
_MAX_STATUS_BYTES: Final = 1 << 16
_VERSION_3: Final = 0x20080522
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2


def names_in(mask: int) -> frozenset[str]:
    """Return the names of a set, without ``CAP_`` and without numbers unknown here."""
    return frozenset(name for name, number in CAPABILITY_NUMBERS.items() if mask >> number & 1)


def mask_of(names: Iterable[str]) -> int:
    """Return the bit mask of some names."""
    return sum(1 << CAPABILITY_NUMBERS[name] for name in set(names))


def effective_capabilities(pid: int) -> list[str] | None:
    """Return full names of a process's effective capabilities (main thread); None: not readable."""
    _, found, rest = read_file(f"/proc/{pid}/status", _MAX_STATUS_BYTES).partition(b"\nCapEff:")
    held = names_in(int(rest.split(None, 1)[0], 16)) if found else ()
    return [f"CAP_{name}" for name in sorted(held)] if found else None


def permitted_mask() -> int:
    """
    Return the permitted set of this thread.

    Raises:
        OSError: capget(2) failed.
    """
    found = (ctypes.c_uint32 * 6)()
    _checked(_libc().capget((ctypes.c_uint32 * 2)(_VERSION_3, 0), found))
    return int(found[1]) | int(found[4]) << 32


def set_capabilities(permitted: int, effective: int, inheritable: int = 0) -> None:
    """
    Set the capabilities of this thread; only inheritable ones stay ambient.

    Raises:
        OSError: The thread does not have them.
    """
    masks = effective, permitted, inheritable
    halves = [mask >> shift & 0xFFFFFFFF for shift in (0, 32) for mask in masks]
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    _checked(_libc().capset(header, (ctypes.c_uint32 * 6)(*halves)))


def pass_on_capabilities(kept: int) -> None:
    """
    Make capabilities ambient, so that executed programs keep them under any user.

    Raises:
        OSError: The thread does not have them.
    """
    set_capabilities(kept, kept, kept)
    for number in CAPABILITY_NUMBERS.values():
        if kept >> number & 1:
            _checked(_libc().prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0))


def knows_capability(name: str) -> bool:
    """Whether the running kernel has this capability."""
    return bool(_libc().prctl(_PR_CAPBSET_READ, CAPABILITY_NUMBERS[name], 0, 0, 0) >= 0)


def limit_capabilities(kept: int) -> None:
    """
    Remove all others from the bounding set, so that no executed program gets them.

    Raises:
        OSError: ``SETPCAP`` is not effective.
    """
    libc = _libc()
    number = 0
    # Also those that a newer kernel adds.
    while libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        if not kept >> number & 1:
            _checked(libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0))
        number += 1


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
