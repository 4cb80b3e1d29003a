"""
Test processes beside each other, and tests that have this machine to themselves.

A test that is marked ``alone`` begins when no other test process has a test under way, and
until it has ended none begins another one.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

SHARED = "tests/packaging/"
FOLDER = Path(__file__).resolve().parents[1] / ".output" / "tests"


class Groups(LoadScopeScheduling):
    """
    Gives a test process a file at a time, as its tests share fixtures.

    A wheel, and the host that it is installed on, are shared by a folder.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return SHARED if path.startswith(SHARED) else path


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Wait for a test's turn among the test processes of this checkout."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        room = held.enter_context((FOLDER / "room.lock").open("w"))
        with (FOLDER / "door.lock").open("w") as door:
            # Who waits to be alone holds the door, so that nobody goes in meanwhile.
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
