"""Whose a process is, and as whom it acts, from ``/proc/PID/status``."""

import functools
import os
import pwd
import re
from typing import NamedTuple

from otel_gpu.procfs.proc_files import read_file
from otel_gpu.wire import UNKNOWN_USER


class User(NamedTuple):
    """As whom a process opens files: its file system user, and all of its groups."""

    uid: int
    gids: frozenset[int]


ANYBODY = User(-1, frozenset())
"""Opens what all users of a host can open."""
OWN = User(0, frozenset())
"""Opens what the agent can open."""

# Behind the name, in which line ends are escaped.
_FILE_USER = re.compile(rb"\nUid:\t\d+\t\d+\t\d+\t(\d+)\n")


def user_of(pid: int) -> User:
    """Return as whom a process opens files; ``ANYBODY`` when it is gone."""
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
    """Say whether a user is root or the agent's own, who could do to the agent what they like anyway."""
    return uid in (0, os.geteuid())


def file_user(pid: int) -> int:
    """Return as which user a process opens files; ``ANYBODY.uid`` when it is gone."""
    found = _FILE_USER.search(read_file(f"/proc/{pid}/status", 4096))
    return int(found[1]) if found else ANYBODY.uid


def real_uid(pid: int) -> int:
    """Return the real user of a process, who started it; ``UNKNOWN_USER`` when it is gone."""
    for line in read_file(f"/proc/{pid}/status", 1 << 20).splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return UNKNOWN_USER


@functools.lru_cache(maxsize=1024)
def user_number(name: str) -> int:
    """Return the user with a name as ``user_name`` returns it; ``UNKNOWN_USER`` if there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        return int(name) if name.isdecimal() else UNKNOWN_USER


@functools.lru_cache(maxsize=1024)
def user_name(uid: int) -> str:
    """Return the name of a user, its number where it has none, or nothing if it is not known."""
    if not 0 <= uid < UNKNOWN_USER:
        return ""
    # Cached because it may ask a directory server.
    try:
        return os.fsencode(pwd.getpwuid(uid).pw_name).decode(errors="replace")
    except (KeyError, OverflowError):
        return str(uid)
