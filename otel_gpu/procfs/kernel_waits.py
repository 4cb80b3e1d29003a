"""
Which processes wait inside the kernel, where no signal ends the wait.

Whoever waits so may hold the lock of its memory map. While somebody else waits to change that map, as the
kernel does for a probe, nobody can read it either: not its command line, nor which files it maps. Nothing
here takes that lock.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_gpu.procfs.proc_files import read_file, stat_fields

# Where the kernel has what waits for the server of a file system (FUSE). That is a wait that a signal
# could end, until the server has begun with it.
# Compilers may have put that function into its callers.
_FOR_SERVER: Final = ("request_wait_answer", "fuse_", "__fuse_")
_MAX_THREADS: Final = 2_000


_changes: set[str] = set()


def note_change(what: str, *, waits: bool) -> None:
    """Note whether something waits to change memory maps, for however long."""
    (_changes.add if waits else _changes.discard)(what)


def is_locked(pid: int) -> bool:
    """Say whether the memory map of a process may not be readable now."""
    return bool(_changes) and bool(place_of_wait(pid))


def check_lock(pid: int) -> None:
    """
    See that the memory map of a process can be read.

    Raises:
        OSError: It could keep us waiting.
    """
    if _changes and (place := place_of_wait(pid)):
        raise OSError(errno.EAGAIN, f"its memory map may be locked, as it waits in {place}")


class KernelWait(NamedTuple):
    """A process, and the function of the kernel in which one of its threads waits."""

    pid: int
    place: str


class Sleep(NamedTuple):
    """A sleep of a thread that no signal ends; while it lasts, the thread has run so many times."""

    tid: int
    runs: int


def sleeps_of(pid: int) -> set[Sleep]:
    """Return the sleeps of this kind that threads of a process are in."""
    found = set()
    for tid in _tids(pid):
        folder = f"/proc/{pid}/task/{tid}"
        runs = read_file(f"{folder}/schedstat", 256).split()[2:]
        if runs and stat_fields(folder)[:1] == [b"D"]:
            found.add(Sleep(tid, int(runs[0])))
    return found


def place_of_wait(pid: int) -> str:
    """Return in which function of the kernel a thread of a process waits so; empty: none does."""
    return next((place for place in _places(pid) if place), "")


def find_waits(pids: Iterable[int]) -> Iterator[KernelWait]:
    """Yield those of some processes of which a thread waits so: of no more than some thousand threads."""
    looked_at = 0
    for pid in pids:
        for place in _places(pid):
            looked_at += 1
            if place:
                yield KernelWait(pid, place)
                break
        if looked_at >= _MAX_THREADS:
            return


def waits_for_server(wait: KernelWait) -> bool:
    """Say whether it is a wait for the server of a file system (FUSE)."""
    return wait.place.startswith(_FOR_SERVER)


def _places(pid: int) -> Iterator[str]:
    tids = _tids(pid)
    if len(tids) > _MAX_THREADS:
        yield "one of too many threads"
    for tid in tids[:_MAX_THREADS]:
        folder = f"/proc/{pid}/task/{tid}"
        place = read_file(f"{folder}/wchan", 256).decode("ascii", "replace").strip("0 \n")
        is_stuck = place.startswith(_FOR_SERVER) or stat_fields(folder)[:1] == [b"D"]
        yield (place or "the kernel") if is_stuck else ""


def _tids(pid: int) -> list[int]:
    try:
        return list(map(int, os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208 -- no paths needed
    except OSError:
        return []
