"""A program that runs on its own, and makes as many calls of cudaStreamSynchronize as it is asked."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kernel.agent import environment_for
from tests.stubs.build import StubLibraries, workload


@contextmanager
def meter(stubs: StubLibraries) -> Iterator[subprocess.Popen[str]]:
    """A call meter that runs on its own."""
    with subprocess.Popen(
        [workload("timed"), stubs.runtime],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment_for(None),
    ) as process:
        assert process.stdout
        assert process.stdin
        assert int(process.stdout.readline()) == process.pid
        yield process
        process.stdin.close()


def ask(process: subprocess.Popen[str], count: int) -> int:
    """Have the meter make calls; returns when they are made."""
    assert process.stdout
    assert process.stdin
    process.stdin.write(f"{count}\n")
    assert int(process.stdout.readline()) > 0
    return count
