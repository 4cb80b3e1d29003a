"""
Processes in uninterruptible waits in the kernel.

Such a process can hold the lock of its memory map. While another task waits to change that map, as the
kernel does for a probe, no process can read it: neither its command line nor the files that it maps. No
function here takes that lock.
"""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from otel_gpu.procfs.proc_files import read_file, stat_fields

# The kernel function that waits for a FUSE server. A signal can end that wait until the server has
# accepted the request.
# Compilers can inline that function into its callers.
_FOR_SERVER: Final = ("request_wait_answer", "fuse_", "__fuse_")
_MAX_THREADS: Final = 2_000


_changes: set[str] = set()


def note_change(what: str, *, waits: bool) -> None:
    """Record whether ``what`` waits to change memory maps at present."""
    (_changes.add if waits else _changes.discard)(what)


def is_locked(pid: int) -> bool:
    """Whether reading the memory map of a process could block now."""
    return bool(_changes) and bool(place_of_wait(pid))


def check_lock(pid: int) -> None:
    """
    Check that reading the memory map of a process does not block.

    Raises:
        OSError: It could block.
    """
    if _changes and (place := place_of_wait(pid)):
        raise OSError(errno.EAGAIN, f"its memory map may be locked, as it waits in {place}")


class KernelWait(NamedTuple):
    """A process, and the kernel function in which one of its threads waits."""

    pid: int
    place: str


class Sleep(NamedTuple):
    """An uninterruptible sleep of a thread, identified by how often the thread has run."""

    tid: int
    runs: int


def sleeps_of(pid: int) -> set[Sleep]:
    """Return the uninterruptible sleeps of a process's threads."""
    found = set()
    for tid in _tids(pid):
        folder = f"/proc/{pid}/task/{tid}"
        runs = read_file(f"{folder}/schedstat", 256).split()[2:]
        if runs and stat_fields(folder)[:1] == [b"D"]:
            found.add(Sleep(tid, int(runs[0])))
    return found


def place_of_wait(pid: int) -> str:
    """Return the kernel function in which a thread of a process waits uninterruptibly, or nothing."""
    return next((place for place in _places(pid) if place), "")


def find_waits(pids: Iterable[int]) -> Iterator[KernelWait]:
    """Yield uninterruptible waits of processes; reads a bounded number of threads in total."""
    checked = 0
    for pid in pids:
        for place in _places(pid):
            checked += 1
            if place:
                yield KernelWait(pid, place)
                break
        if checked >= _MAX_THREADS:
            return


def waits_for_server(wait: KernelWait) -> bool:
    """Whether a process waits for the server of a FUSE file system."""
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
