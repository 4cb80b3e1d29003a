"""Whether a process has stood still for as long as it was to, and when it goes on."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from otel_gpu.capture.processes import stopped_processes
from otel_gpu.capture.processes.stopped_processes import AGENT_NAME, Hold
from otel_gpu.procfs.proc_files import stat_fields
from otel_gpu.procfs.users import real_uid

BUSY = "while True: pass"
_TGKILL = {"x86_64": 234, "aarch64": 131}[platform.machine()]
# Has a child that is busy, and says which.
AGENT = """
import os, subprocess, sys
with open("/proc/self/comm", "w") as comm:
    comm.write(sys.argv[1])
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
try:
    sys.stdin.read()
finally:
    child.kill()
"""


@pytest.fixture
def busy() -> Iterator[int]:
    """A process that is always busy, where it is not stopped."""
    with subprocess.Popen([sys.executable, "-c", BUSY]) as process:
        yield process.pid
        process.kill()


@contextmanager
def other_agent(program: str) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A program with an agent's name, and the pid of its busy child."""
    command = [sys.executable, "-c", program, AGENT_NAME]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout
        yield agent, int(agent.stdout.readline())


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_for(pid, b"T")


def let_go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    wait_for(pid, b"R")


def wait_for(pid: int, state: bytes) -> None:
    until_s = time.monotonic() + 30
    while stat_fields(f"/proc/{pid}")[0] != state:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_a_stop_that_is_still_pending_lasts(busy: int) -> None:
    """Where CPUs are scarce, probes can stand before the process has come to its stop."""
    cpu = min(os.sched_getaffinity(0))
    hog = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        for pid in (busy, hog.pid):
            os.sched_setaffinity(pid, {cpu})
        os.sched_setscheduler(busy, os.SCHED_IDLE, os.sched_param(0))
        for _ in range(31):
            # To the thread, as BPF programs send it.
            assert ctypes.CDLL(None).syscall(_TGKILL, busy, busy, signal.SIGSTOP) == 0
            assert Hold(busy, busy, stopped=False).lasts()
            os.kill(busy, signal.SIGCONT)
    finally:
        hog.kill()
        hog.wait()


def test_a_process_goes_on_when_its_hold_is_over(busy: int) -> None:
    """It stands still until then."""
    stop(busy)
    with Hold(busy, busy, stopped=True) as hold:
        assert hold.lasts()
    wait_for(busy, b"R")


def test_a_process_that_was_not_stopped_is_left_alone(busy: int) -> None:
    """Somebody else may have stopped it."""
    stop(busy)
    with Hold(busy, busy, stopped=False):
        pass
    assert stat_fields(f"/proc/{busy}")[0] == b"T"


def test_a_hold_is_over_when_anybody_lets_the_process_go_on(busy: int) -> None:
    """Also where it stands still again by then."""
    stop(busy)
    hold = Hold(busy, busy, stopped=True)
    let_go_on(busy)
    assert not hold.lasts()
    time.sleep(0.05)
    stop(busy)
    assert not hold.lasts()


def test_the_next_stop_is_not_ended_for_another_agent() -> None:
    """
    Where an agent runs under an agent, each lets the process go on once its own probes stand.

    The slower of two would else let it go on from the stop that came after.
    """
    with other_agent(AGENT) as (agent, pid):
        stop(pid)
        with Hold(pid, pid, stopped=True):
            let_go_on(pid)
            time.sleep(0.05)
            stop(pid)
        assert stat_fields(f"/proc/{pid}")[0] == b"T"
        with Hold(pid, pid, stopped=True):
            pass
        wait_for(pid, b"R")
        agent.communicate()


def test_the_slower_this_agent_was_the_longer_it_waits_for_another() -> None:
    """Both run on the same busy machine; the other one lets the process go on when its probes stand."""
    with other_agent(AGENT) as (agent, pid):
        stop(pid)
        begun_s = time.monotonic()
        with Hold(pid, pid, stopped=True, ktime_ns=time.monotonic_ns() - 150_000_000):
            pass
        assert time.monotonic() - begun_s >= 0.6
        wait_for(pid, b"R")
        agent.communicate()


def test_a_process_that_has_come_to_its_next_stop_is_left_to_that(busy: int) -> None:
    """Whoever reads of the earlier stop late finds it at rest, as if it had been so all the time."""
    stop(busy)
    with Hold(busy, busy, stopped=True, has_stopped_again=lambda: True) as hold:
        assert not hold.lasts()
    assert stat_fields(f"/proc/{busy}")[0] == b"T"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_program_that_has_the_name_of_an_agent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another user's program can take any name, and start others that come to stops all the time."""
    monkeypatch.setattr(stopped_processes, "_OTHER_AGENT_S", 60.0)
    as_nobody = AGENT.replace("try:", "os.setuid(65534)\ntry:")
    with other_agent(as_nobody) as (agent, pid):
        try:
            stop(pid)
            while real_uid(agent.pid) != 65534:
                time.sleep(0.001)
            begun_s = time.monotonic()
            with Hold(pid, pid, stopped=True):
                pass
            assert time.monotonic() - begun_s < 30
            wait_for(pid, b"R")
        finally:
            os.kill(pid, signal.SIGKILL)
            agent.kill()
