"""What was stopped for its probes goes on, also where the capture ends before it was looked at."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import AT_PRELOAD, Programs
from otel_gpu.capture.lifecycle import Lifecycle
from otel_gpu.capture.preload.preloaded_programs import PRELOAD_THREAD
from otel_gpu.capture.probes.elf_exports import exported_functions
from otel_gpu.capture.processes.stopped_processes import let_all_go_on
from otel_gpu.capture.processes.watchlist import Watchlist
from otel_gpu.capture.record_headers import header_of
from otel_gpu.capture.session import Session
from otel_gpu.config import load
from otel_gpu.faults import Faults
from tests.kernel.agent import wait_until
from tests.preloaded import LIBRARY, running
from tests.stubs.build import stub_libraries

pytestmark = pytest.mark.kernel

CONFIG = load(None, {}, {})
SHELL = ("sh", "-c", "echo began; read line; exec true")
GOES_ON_S = 60
THREE_THREADS = """
import ctypes, sys, threading
cuda = ctypes.CDLL(sys.argv[1])
input()
threads = [threading.Thread(target=cuda.cudaDeviceSynchronize) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


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

    def interrupt(self: Watchlist, pid: int, _note: object) -> Iterator[bytes]:
        raise KeyboardInterrupt(self, pid)

    with Programs(CONFIG, watch_all=False) as programs:
        batches = Session(programs, CONFIG, pids=[]).batches()
        next(batches)
        monkeypatch.setattr(Watchlist, "_probes", interrupt)
        with stopped_at_exec(programs, 3) as shells:
            with pytest.raises(KeyboardInterrupt):
                list(batches)

            assert [shell.wait(GOES_ON_S) for shell in shells] == [0, 0, 0]


def test_each_thread_stops_until_its_memory_is_open() -> None:
    """To stop a process takes a moment, in which its other threads make calls that nobody sees."""
    offset = dict(exported_functions(str(LIBRARY)))[PRELOAD_THREAD]
    command = [sys.executable, "-c", THREE_THREADS, stub_libraries().runtime]
    with Programs(CONFIG, watch_all=False) as programs, running(command) as program:
        programs.attach()
        programs.bpf.attach_uprobes(AT_PRELOAD, str(LIBRARY), [(offset, wire.PRELOAD_PROBE_THREAD)])
        programs.processes.watch(program.pid, wire.PROCESS_STOP_ON_LOAD)
        assert program.stdin
        print(file=program.stdin, flush=True)
        stood_still = set()
        while program.poll() is None:
            records = list(programs.lifecycle.read())
            for header, record in zip(map(header_of, records), records, strict=True):
                if header.kind == wire.RECORD_PRELOAD:
                    assert wire.PRELOAD_RECORD.named(record)["stopped"]
                    stood_still.add(header.tid)
            let_all_go_on(records)

    assert len(stood_still - {program.pid}) == 3
