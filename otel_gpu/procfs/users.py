"""Users of a process: the real one, and the one that opens files, from ``/proc/PID/status``."""

import functools
import os
import pwd
import re
from typing import NamedTuple

from otel_gpu.procfs.proc_files import read_file
from otel_gpu.wire import UNKNOWN_USER


class User(NamedTuple):
    """The identity for opening files: the file system user, and all groups."""

    uid: int
    gids: frozenset[int]


ANYBODY = User(-1, frozenset())
"""Opens files that all users of a host can open."""
OWN = User(0, frozenset())
"""Opens files that the agent can open."""

# After the name, in which line ends are escaped.
_FILE_USER = re.compile(rb"\nUid:\t\d+\t\d+\t\d+\t(\d+)\n")


def user_of(pid: int) -> User:
    """Return the identity with which a process opens files; ``ANYBODY``: it has ended."""
    uid, gids = -1, frozenset[int]()
    for line in read_file(f"/proc/{pid}/status", 1 << 20).splitlines():
        name, _, rest = line.partition(b":")
        if name == b"Uid":
            uid = int(rest.split()[-1])
        elif name == b"Gid":
            gids |= {int(rest.split()[-1])}
        elif name == b"Groups":
            gids |= set(map(int, rest.split()))
    return User(uid, gids)


def is_trusted(uid: int) -> bool:
    """Whether a user is root or the agent's own, who control the agent anyway."""
    return uid in (0, os.geteuid())


def file_user(pid: int) -> int:
    """Return the user with which a process opens files; ``ANYBODY.uid``: it has ended."""
    found = _FILE_USER.search(read_file(f"/proc/{pid}/status", 4096))
    return int(found[1]) if found else ANYBODY.uid


def real_uid(pid: int) -> int:
    """Return the real user of a process; ``UNKNOWN_USER``: it has ended."""
    for line in read_file(f"/proc/{pid}/status", 1 << 20).splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return UNKNOWN_USER


@functools.lru_cache(maxsize=1024)
def user_number(name: str) -> int:
    """Return the number of a user from the result of ``user_name``, or ``UNKNOWN_USER``."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if name.isdecimal() else UNKNOWN_USER


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the name of a user, its number without a name, or nothing for an unknown user."""
    if not 0 <= uid < UNKNOWN_USER:
        return ""
    # Cached, as it can query a directory server.
    try:
        return os.fsencode(pwd.getpwuid(uid).pw_name).decode(errors="replace")
    except (KeyError, OverflowError):
        return str(uid)
