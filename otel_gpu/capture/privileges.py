"""
Privileges that a capture gives up once they are not needed any more.

Root has all capabilities; a capture takes six (docs/security.md says what each is for). The others are
given up after the command was forked, which keeps what its caller has, and before anything else is
done. Capabilities are of threads, so this has to be while the agent has one thread.
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
"""What every capture needs; the units in ``deploy/`` give the same."""
COMMAND_CAPABILITIES: Final = frozenset({"KILL"})
"""
What a command needs beside them.

Its processes can become another user's. They are to get the signals that are passed on, and to go on
after a stop for probes.
"""
_WRITE_CAPABILITY: Final = "DAC_OVERRIDE"
_FACCESSAT2: Final = 439  # the same number on x86-64 and AArch64
_AT_FDCWD, _AT_EACCESS = -100, 0x200

_logger = logging.getLogger(__name__)


def give_up_privileges(needed: frozenset[str], written: Iterable[Path] = ()) -> None:
    """
    Give up all capabilities but those that are needed, and the chance to get others.

    Where there are none to give up, nothing changes. ``written`` are files that will be written:
    where that takes a capability, as for root in a folder of another user, it is kept. What fails
    is logged, and leaves privileges as they are.
    """
    try:
        permitted = permitted_mask()
        kept = permitted & mask_of(needed)
        # Older kernels want CAP_SYS_ADMIN in place of some.
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
            # What reads other users' processes is a program of its own, and needs them too.
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
    # Where it does not help, as on a file system that is read-only, it is not kept.
    for place in filter(_is_writable, refused):
        _logger.info("CAP_%s is kept to write %s", _WRITE_CAPABILITY, place)
        return override
    return 0


def _places(path: Path) -> Iterable[Path]:
    """Yield what has to be writable for a file: itself, and the folder that it or its first new one is in."""
    path = path.absolute()
    if path.exists():
        yield path
    yield next(folder for folder in path.parents if folder.is_dir())


def _is_writable(path: Path) -> bool:
    # access(2) asks for what is permitted, and not for what is effective.
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
