"""Programs that make a given number of cudaStreamSynchronize calls on demand."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.kernel.agent import environment_for
from tests.stubs.build import StubLibraries, workload

OTHER_USER = 1001
_HIDDEN = (
    "mount -t tmpfs -o mode=700,uid=$1,gid=$1 none /mnt && cp $2 $3 /mnt && "
    'exec setpriv --reuid=$1 --regid=$1 --clear-groups "/mnt/${2##*/}" "/mnt/${3##*/}"'
)


def hidden(stubs: StubLibraries, *namespaces: str) -> list[str]:
    """
    Return the command of a meter of another user, in its own namespaces.

    The program and its library are in a folder without access for others, on a private file system.
    """
    script = ("sh", "-c", _HIDDEN, "sh", OTHER_USER, workload("timed"), stubs.runtime)
    return list(map(str, ("unshare", "--mount", *namespaces, *script)))


class Meter:
    """
    The program ``timed``, as a context manager.

    Args:
        command: What runs it.

    Attributes:
        pid: As the process itself sees it.
    """

    def __init__(self, command: Sequence[str | Path]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=environment_for(None),
        )
        self.pid = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        assert self.process.stdout
        self.process.stdout.close()

    def make(self, calls: int) -> int:
        """Make this many calls, and return after the last."""
        assert self.process.stdin
        self.process.stdin.write(f"{calls}\n")
        assert self._answer() > 0
        return calls

    def end(self) -> None:
        """End the program, and wait for its end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())


def open_meter(stubs: StubLibraries) -> Meter:
    """Start a meter of this user, visible to all processes."""
    return Meter([workload("timed"), stubs.runtime])
