"""
Test processes beside each other, and tests that have this machine to themselves.

A test that is marked ``alone`` begins when no other test process has a test under way, and
until it has ended none begins another one. Those that follow each other share a turn.

Tests that load BPF programs wait half of their time. So there is a process more than CPUs, which
takes unit tests meanwhile, and stands back where the others want the CPU.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARED = "tests/packaging/"
# A file is run by one process, so the longest are begun before the others.
LONGEST = (SHARED, "tests/unit/test_many_processes.py")
FOLDER = Path(__file__).resolve().parents[1] / ".output" / "tests"
BEHIND = 5


def processes() -> int:
    """How many test processes there are."""
    return len(os.sched_getaffinity(0)) + 1


def is_alone(item: pytest.Item | None) -> bool:
    """Whether a test is marked so."""
    return item is not None and item.get_closest_marker("alone") is not None


def order(item: pytest.Item) -> tuple[bool, bool, bool]:
    """
    Sorts tests: alone, then what takes long, then the rest.

    Unit tests come last, where they are taken from both ends.
    """
    is_long = item.nodeid.startswith(LONGEST)
    return not is_alone(item), not is_long, "unit" in item.path.parts


class Groups(LoadScopeScheduling):
    """
    Gives a test process a file at a time, as its tests share fixtures.

    A wheel, and the host that it is installed on, are shared by a folder.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return SHARED if path.startswith(SHARED) else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        if stands_back(node.gateway.id, self.numnodes):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def stands_back(worker: str, count: int) -> bool:
    """Whether a test process is the one that takes what the others leave."""
    return count > 1 and worker == f"gw{count - 1}"


class Turns:
    """The turns of this test process among those of this checkout."""

    def __init__(self) -> None:
        self._room: TextIO | None = None
        self._is_beside_others = "PYTEST_XDIST_WORKER" in os.environ
        if self._is_beside_others and stands_back(
            os.environ["PYTEST_XDIST_WORKER"], int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        ):
            os.nice(BEHIND)

    @contextmanager
    def turn(self, *, alone: bool, stays_alone: bool) -> Iterator[None]:
        """Wait for a test's turn; the next one has its turn with it where both are alone."""
        if self._is_beside_others and self._room is None:
            self._room = _enter(alone=alone)
        try:
            yield
        finally:
            if self._room is not None and not (alone and stays_alone):
                self._room.close()
                self._room = None


def _enter(*, alone: bool) -> TextIO:
    FOLDER.mkdir(parents=True, exist_ok=True)
    room = (FOLDER / "room.lock").open("w")
    with (FOLDER / "door.lock").open("w") as door:
        # Who waits to be alone holds the door, so that nobody goes in meanwhile.
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
    return room
