"""
Scheduling of tests over test processes, and of tests that need the machine alone.

A test marked ``alone`` begins when no other test process runs a test, and no other test begins before it
has ended. ``alone(among="kernel")`` excludes only tests that load BPF programs; ``alone(among="preload")``
only tests that are the agent of preloaded programs, as every agent that watches all processes is.
Successive tests with the same mark share one turn.

Tests that load BPF programs wait half of their time, and one that is alone makes the others wait. So
there is one process more than CPUs. It runs unit tests at a lower priority. A second such process would
save a minute on free CPUs, but on busy CPUs tests that compare times would fail.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# What tests of a folder share takes long: a wheel and a host, and runs of scenarios.
SHARED = ("tests/packaging/", "tests/scenarios/")
# A file is run by one process, so the longest are begun before the others.
LONGEST = (SHARED[0], "tests/kernel/test_stacks.py", "tests/unit/recorder/test_many_processes.py")
# From the widest one on.
PLACES = ("room", "kernel", "preload")
# Its tests write to programs which calls an agent wants to be reported.
WITH_PRELOAD = "tests/unit/preload/"
FOLDER = Path(__file__).resolve().parents[1] / ".output" / "tests"
# How many processes stand back, and what is added to their niceness.
STANDING_BACK = 1
BEHIND = 5


def processes() -> int:
    """Return the number of test processes."""
    return len(os.sched_getaffinity(0)) + STANDING_BACK


class Place(NamedTuple):
    """
    A lock that tests hold while they run.

    Attributes:
        name: Name of its files.
        alone: Whether one test holds it exclusively.
    """

    name: str
    alone: bool


def places_of(item: pytest.Item | None) -> tuple[Place, ...]:
    """Return the locks that a test needs, in the order of locking."""
    if item is None:
        return ()
    alone = item.get_closest_marker("alone")
    among = alone.kwargs.get("among", "room") if alone is not None else None
    places = [Place("room", alone=among == "room")]
    if item.get_closest_marker("kernel") is not None:
        places.append(Place("kernel", alone=among in ("room", "kernel")))
    if among in ("kernel", "preload") or item.nodeid.startswith(WITH_PRELOAD):
        places.append(Place("preload", alone=among is not None))
    return tuple(places)


def order(item: pytest.Item) -> tuple[int, bool, bool]:
    """
    Sort tests: those that run alone, then long ones, then the rest.

    Unit tests come last, where processes take them from both ends.
    """
    alone = (PLACES.index(place.name) for place in places_of(item) if place.alone)
    return (
        min(alone, default=len(PLACES)),
        not item.nodeid.startswith(LONGEST),
        "unit" in item.path.parts,
    )


class Groups(LoadScopeScheduling):
    """Assigns tests to processes by file or by folder, because they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next(filter(path.startswith, SHARED), path)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if stands_back(node.gateway.id, self.numnodes):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def stands_back(worker: str, count: int) -> bool:
    """Return whether a test process has a lower priority, and runs unit tests."""
    last = range(max(1, count - STANDING_BACK), count)
    return worker in {f"gw{number}" for number in last}


class Turns:
    """The locks of this test process among those of this checkout."""

    def __init__(self) -> None:
        self._places: tuple[Place, ...] = ()
        self._held = ExitStack()
        self._is_beside_others = "PYTEST_XDIST_WORKER" in os.environ
        if self._is_beside_others and stands_back(
            os.environ["PYTEST_XDIST_WORKER"], int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        ):
            os.nice(BEHIND)

    @contextmanager
    def turn(self, item: pytest.Item, following: pytest.Item | None) -> Iterator[None]:
        """Hold the locks of a test; the next test keeps them if both run alone."""
        places = places_of(item)
        if self._is_beside_others and self._places != places:
            self._held.close()
            for place in places:
                self._held.enter_context(_inside(place))
            self._places = places
        try:
            yield
        finally:
            if places_of(following) != places or not any(place.alone for place in places):
                self._held.close()
                self._places = ()


def _inside(place: Place) -> TextIO:
    FOLDER.mkdir(parents=True, exist_ok=True)
    room = (FOLDER / f"{place.name}.lock").open("w")
    with (FOLDER / f"{place.name}.queue.lock").open("w") as queue:
        # Who waits to be alone holds the queue, so that no other test begins.
        fcntl.flock(queue, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if place.alone else fcntl.LOCK_SH)
    return room
