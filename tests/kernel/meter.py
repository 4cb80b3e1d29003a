"""Programs that run on their own, and make as many calls of cudaStreamSynchronize as they are asked."""

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
    The command of a meter of another user, in namespaces of its own.

    It and its library lie in a folder that is closed to others, on a file system that only it sees.
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
        """Make so many calls; returns when they were made."""
        assert self.process.stdin
        self.process.stdin.write(f"{calls}\n")
        assert self._answer() > 0
        return calls

    def end(self) -> None:
        """Let it end, and wait for that."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())


def open_meter(stubs: StubLibraries) -> Meter:
    """A meter of this user, which anybody can see."""
    return Meter([workload("timed"), stubs.runtime])
