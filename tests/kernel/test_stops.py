"""What was stopped for its probes goes on, also where the capture ends before it was looked at."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.lifecycle import Lifecycle
from otel_gpu.capture.programs import Programs
from otel_gpu.capture.session import Session
from otel_gpu.capture.watchlist import Watchlist
from otel_gpu.config import load
from otel_gpu.faults import Faults
from tests.kernel.agent import wait_until

pytestmark = pytest.mark.kernel

CONFIG = load(None, {}, {})
SHELL = ("sh", "-c", "echo began; read line; exec true")
GOES_ON_S = 60


@contextmanager
def stopped_at_exec(programs: Programs, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Shells that became another program, and stand still since."""
    with ExitStack() as stack:
        shells = []
        for _ in range(count):
            shell = subprocess.Popen(SHELL, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            shells.append(stack.enter_context(shell))
            stack.callback(shell.kill)
        for shell in shells:
            assert shell.stdin
            assert shell.stdout
            # Its own exec is over.
            assert shell.stdout.readline() == b"began\n"
            programs.processes.watch(shell.pid, wire.PROCESS_STOP_ON_LOAD)
            shell.stdin.close()
        for shell in shells:
            wait_until(lambda pid=shell.pid: state_of(pid) == "T", "the stop")
        yield shells


def state_of(pid: int) -> str:
    """Return the one letter for what its first thread does."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_the_end_of_a_capture_leaves_nothing_stopped() -> None:
    """Nobody read the records of three stops; the programs are closed, and all three go on."""
    programs = Programs(CONFIG, watch_all=False)
    programs.attach()

    with stopped_at_exec(programs, 3) as shells:
        programs.close()

        assert [shell.wait(GOES_ON_S) for shell in shells] == [0, 0, 0]


@pytest.mark.parametrize(
    ("place", "at"),
    [(Watchlist, "_place_probes"), (Watchlist, "_probes"), (Lifecycle, "_handle")],
)
def test_errors_about_stopped_processes_leave_nothing_stopped(
    monkeypatch: pytest.MonkeyPatch, place: type, at: str
) -> None:
    """
    Where each of three records is an error, all three processes go on, and so does the capture.
    """
    faults = Faults()

    def fail(self: object, *about: object) -> Iterator[bytes]:
        raise RuntimeError(self, about)

    with Programs(CONFIG, watch_all=False) as programs:
        session = Session(programs, CONFIG, pids=[], faults=faults)
        batches = session.batches()
        next(batches)
        monkeypatch.setattr(place, at, fail)
        with stopped_at_exec(programs, 3) as shells:
            while any(shell.poll() is None for shell in shells):
                next(batches)

            assert [shell.returncode for shell in shells] == [0, 0, 0]
        monkeypatch.undo()
        session.stop()
        assert list(batches)[-1]
    assert sum(faults.status()["errors"].values()) >= 1


def test_an_interrupted_capture_leaves_nothing_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The first of three records is not survived; the processes of the others go on all the same.
    """

    def interrupt(self: Watchlist, pid: int) -> Iterator[bytes]:
        raise KeyboardInterrupt(self, pid)

    with Programs(CONFIG, watch_all=False) as programs:
        batches = Session(programs, CONFIG, pids=[]).batches()
        next(batches)
        monkeypatch.setattr(Watchlist, "_probes", interrupt)
        with stopped_at_exec(programs, 3) as shells:
            with pytest.raises(KeyboardInterrupt):
                list(batches)

            assert [shell.wait(GOES_ON_S) for shell in shells] == [0, 0, 0]
