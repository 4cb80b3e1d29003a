"""
Drops the privileges that a capture does not need.

Root has all capabilities; a capture needs six (see docs/security.md). The others are dropped after the
command was forked, which keeps its caller's, and before anything else is done. Capabilities belong to
threads, so the agent must have only one thread at that time.
"""

import ctypes
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from otel_gpu.procfs.capabilities import (
    knows_capability,
    limit_capabilities,
    mask_of,
    names_in,
    pass_on_capabilities,
    permitted_mask,
    set_capabilities,
)
from otel_gpu.procfs.system_call_filter import (
    REFUSED_TO_AGENT,
    forbid_new_privileges,
    install_filter,
    make_filter,
)

CAPTURE_CAPABILITIES: Final = frozenset(
    {"BPF", "PERFMON", "SYS_PTRACE", "DAC_READ_SEARCH", "CHECKPOINT_RESTORE", "SYSLOG"}
)
"""Capabilities of every capture, as in the units in ``deploy/``."""
COMMAND_CAPABILITIES: Final = frozenset({"KILL"})
"""
Further capabilities for a command.

Its processes can change to another user. The agent forwards signals to them, and continues them after
a stop for probes.
"""
_WRITE_CAPABILITY: Final = "DAC_OVERRIDE"
_FACCESSAT2: Final = 439  # the same number on x86-64 and AArch64
_AT_FDCWD, _AT_EACCESS = -100, 0x200

_logger = logging.getLogger(__name__)


def give_up_privileges(needed: frozenset[str], written: Iterable[Path] = ()) -> None:
    """
    Drop all capabilities but ``needed``, and forbid the process to gain others.

    ``written`` are files to be written later. If that takes CAP_DAC_OVERRIDE, as for root in another
    user's folder, it is kept. A failure is logged and leaves privileges unchanged.
    """
    try:
        permitted = permitted_mask()
        kept = permitted & mask_of(needed)
        # Kernels without some of these capabilities require CAP_SYS_ADMIN instead.
        if kept == permitted or not all(map(knows_capability, needed)):
            return
        if (threads := len(os.listdir("/proc/self/task"))) > 1:  # noqa: PTH208 -- no names needed
            _logger.warning("no privileges are given up: there are %d threads by now", threads)
            return
        kept |= permitted & _needed_to_write(kept, permitted, written)
        if "SETPCAP" in names_in(permitted):
            set_capabilities(permitted, permitted)
            limit_capabilities(kept)
        set_capabilities(kept, kept)
        if os.geteuid():
            # The child program that reads other users' processes needs them, too.
            pass_on_capabilities(kept)
        forbid_new_privileges()
    except OSError as error:
        _logger.warning("privileges are not given up: %s", error.strerror)
        return
    _filter_system_calls()


def _needed_to_write(kept: int, permitted: int, written: Iterable[Path]) -> int:
    override = mask_of({_WRITE_CAPABILITY})
    set_capabilities(permitted, kept)
    refused = [place for path in written for place in _places(path) if not _is_writable(place)]
    set_capabilities(permitted, kept | permitted & override)
    # Not kept where it does not help, as on a read-only file system.
    for place in filter(_is_writable, refused):
        _logger.info("CAP_%s is kept to write %s", _WRITE_CAPABILITY, place)
        return override
    return 0


def _places(path: Path) -> Iterable[Path]:
    # The file, if it exists, and its closest existing folder.
    path = path.absolute()
    if path.exists():
        yield path
    yield next(folder for folder in path.parents if folder.is_dir())


def _is_writable(path: Path) -> bool:
    # access(2) tests the permitted capabilities, not the effective ones.
    found: int = ctypes.CDLL(None).syscall(
        ctypes.c_long(_FACCESSAT2),
        ctypes.c_int(_AT_FDCWD),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_int(os.W_OK),
        ctypes.c_int(_AT_EACCESS),
    )
    return found == 0


def _filter_system_calls() -> None:
    if program := make_filter(REFUSED_TO_AGENT, allowed=False):
        try:
            install_filter(program)
        except OSError as error:
            _logger.info("system calls are not filtered: %s", error.strerror)
