"""As whom a process acts, from ``/proc/PID/status``."""

from typing import NamedTuple

from otel_gpu.procfs.proc_files import read_file


class User(NamedTuple):
    """As whom a process opens files: its file system user, and all of its groups."""

    uid: int
    gids: frozenset[int]


ANYBODY = User(-1, frozenset())
"""Opens what all users of a host can open."""
OWN = User(0, frozenset())
"""Opens what the agent can open."""


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
