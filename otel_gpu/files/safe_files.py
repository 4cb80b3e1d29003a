"""
Files at untrusted paths: opened, created and read with checks.

The agent runs as root, or with equivalent capabilities, and some of its paths are in folders such
as ``/tmp``, where other users write. They can put a symbolic link, a named pipe, or a file of their
own at such a path. A link redirects a write, a pipe blocks it, and their file stays readable and
writable to them. So the agent writes only to regular files of its own user, with mode 0600.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

PRIVATE_MODE = 0o600


class UntrustedError(OSError):
    """The file at a path is not a regular file of the agent's user; ``strerror`` has the reason."""


def check_own(path: Path, status: os.stat_result) -> None:
    """Raise ``UntrustedError`` unless a status is that of a regular file of the agent's user."""
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedError(errno.ELOOP, "is a symbolic link", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedError(errno.EINVAL, "is not a file", str(path))
    if status.st_uid != os.geteuid():
        raise UntrustedError(
            errno.EPERM, f"belongs to another user (uid {status.st_uid})", str(path)
        )


def check_own_if_there(path: Path) -> os.stat_result | None:
    """Check the file at a path as ``check_own`` does; return its status, or None without a file."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    check_own(path, status)
    return status


def open_own(path: Path, flags: int) -> int:
    """
    Open a file of the agent's user, or create one with mode 0600; return its descriptor.

    ``flags`` are those of ``os.open``, without ``O_TRUNC``, which would act before the checks.
    Raises ``OSError`` with the reason in ``strerror``.
    """
    check_own_if_there(path)
    # Between the check and the opening, another user can replace the file.
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, PRIVATE_MODE)
    try:
        check_own(path, os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private(path: Path) -> None:
    """
    Set mode 0600 on a file of the agent's user; links are not followed.

    Raises ``OSError`` with the reason in ``strerror``.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        check_own(path, os.fstat(descriptor))
        Path(f"/proc/self/fd/{descriptor}").chmod(PRIVATE_MODE)
    finally:
        os.close(descriptor)


def replace_own(path: Path, check: Callable[[Path], None] = lambda _path: None) -> int:
    """
    Create a file with mode 0600 in place of one of the agent's user; return its descriptor.

    The new file is renamed over the old one. So readers of the old file are not disturbed, and a file
    that appears at the path after the checks is not written to. ``check`` can refuse to replace
    a file that is not empty. Raises ``OSError`` with the reason
    in ``strerror``.
    """
    found = check_own_if_there(path)
    if found is not None and found.st_size:
        check(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        os.fchmod(descriptor, PRIVATE_MODE)
        Path(temporary).replace(path)
    except OSError:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)
        raise
    return descriptor


def read_regular(path: Path, max_bytes: int) -> bytes:
    """
    Read a whole file of at most ``max_bytes``; links are followed.

    Raises ``OSError`` with the reason in ``strerror``: it cannot be read, is a folder, a
    pipe or a device, or is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a file", str(path))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes:,} bytes", str(path))
    return content
