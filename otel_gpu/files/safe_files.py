"""
Files at paths that another user could have prepared: opened, made and read with checks.

The agent runs as root, or with capabilities that are as good, and some of its paths are in folders
where others write, such as ``/tmp``. Another user can put a symbolic link, a named pipe, or a file
of their own at such a path. A link would make us write elsewhere, a pipe would make us wait, and a
file of theirs would stay readable, and writable, to them. So a path that is written is a regular
file of our own, never a link, with mode 0600.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

PRIVATE_MODE = 0o600


class UntrustedError(OSError):
    """There is something at a path that is no regular file of ours; ``strerror`` says what."""


def check_own(path: Path, status: os.stat_result) -> None:
    """Raise ``UntrustedError`` unless a status is that of a regular file of the user we run as."""
    if stat.S_ISLNK(status.st_mode):
        raise UntrustedError(errno.ELOOP, "is a symbolic link", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise UntrustedError(errno.EINVAL, "is not a file", str(path))
    if status.st_uid != os.geteuid():
        raise UntrustedError(
            errno.EPERM, f"belongs to another user (uid {status.st_uid})", str(path)
        )


def check_own_if_there(path: Path) -> os.stat_result | None:
    """Check the file at a path as ``check_own`` does; return its status, or None: there is none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    check_own(path, status)
    return status


def open_own(path: Path, flags: int) -> int:
    """
    Open a file of our own, or make one with mode 0600; return its descriptor.

    ``flags`` are those of ``os.open``, without ``O_TRUNC``, which would act before the checks.
    Raises ``OSError`` with the reason in ``strerror``.
    """
    check_own_if_there(path)
    # Between the check and the opening somebody can put something else there.
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
    Give a file of our own mode 0600, and never the one that a link leads to.

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
    Make a new file with mode 0600 at a path, in place of one of our own; return its descriptor.

    The new file takes the name at once, and the old one is not cut short: so a reader of the old
    one is not disturbed, and nothing that is put at the path after the checks is written to.
    ``check`` can refuse to replace a file that is not empty. Raises ``OSError`` with the reason
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
    Read a whole file of at most so many bytes; links are followed.

    Raises ``OSError`` with the reason in ``strerror``: it cannot be read, is a folder, a pipe or a
    device, or is larger.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a file", str(path))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"has more than {max_bytes:,} bytes", str(path))
    return content
