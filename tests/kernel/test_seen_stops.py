"""
A stop for probes is seen by a debugger, and by a parent that asks for stopped children.

Where that is known, a program is not stopped. It may make calls before its probes stand, which
is counted.
"""

import shutil
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

CALLS = 101
# Says of a child that it runs what has become of it, until it ends.
WAITING = """
import json, os, sys, time
child = os.fork()
if not child:
    time.sleep(0.3)  # until the parent waits
    os.execv(sys.argv[1], sys.argv[1:])
status = os.waitpid(child, os.WUNTRACED)[1]
print(json.dumps([os.WIFSTOPPED(status), os.waitstatus_to_exitcode(status)]), flush=True)
"""
POLLING = """
import json, os, sys, time
child = os.posix_spawn(sys.argv[1], sys.argv[1:], {})
stops = 0
while True:
    pid, status = os.waitpid(child, os.WUNTRACED | os.WNOHANG)
    if pid and os.WIFSTOPPED(status):
        stops += 1
    elif pid:
        break
print(json.dumps(stops), flush=True)
"""
TRACING = """
import ctypes, json, os, signal, sys
TRACEME, CONTINUE = 0, 7
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
child = os.fork()
if not child:
    libc.ptrace(TRACEME, 0, None, None)
    os.execv(sys.argv[1], sys.argv[1:])
signals = []
while os.WIFSTOPPED(status := os.waitpid(child, 0)[1]):
    signals.append(os.WSTOPSIG(status))
    libc.ptrace(CONTINUE, child, None, None)
print(json.dumps([signals, os.waitstatus_to_exitcode(status)]), flush=True)
"""
SIGTRAP = 5
MISSED = {"not_watched_from_start": 1}


def program(stubs: StubLibraries) -> list[str]:
    return list(map(str, (workload("first_call"), "direct", CALLS, stubs.runtime)))


def test_a_job_of_a_shell_runs_to_its_end(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """With job control, the shell waits for it, and then does what comes next."""
    shell = shutil.which("bash") or pytest.skip("there is no bash")
    script = 'set -m; "$@"; echo "$?" >&2'
    with Agent(receiver, [shell, "-c", script, "sh", *program(stubs)]) as agent:
        finished = agent.wait()

    assert finished.lines[0]["cudaMalloc"] == CALLS
    assert losses(receiver) == MISSED
    assert "\n0\n" in f"\n{finished.stderr}"


def test_a_parent_that_waits_for_stops_sees_none(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """As su(1) does, which stops itself where its child stops."""
    with Agent(receiver, [sys.executable, "-c", WAITING, *program(stubs)]) as agent:
        finished = agent.wait()

    assert finished.lines[-1] == [False, 0]


def test_the_first_process_of_a_terminal_is_not_stopped(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """script(1) looks after one, and stops itself where that stops."""
    script = shutil.which("script") or pytest.skip("there is no script(1)")
    output = tmp_path / "output"
    command = [script, "-q", "-e", "-c", " ".join(program(stubs)), output]
    with Agent(receiver, command) as agent:
        assert agent.wait().returncode == 0
    assert f'"cudaMalloc":{CALLS}' in output.read_text().replace(" ", "")


def test_a_traced_program_gets_no_signal_of_ours(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A debugger is told of its exec, and of nothing else."""
    with Agent(receiver, [sys.executable, "-c", TRACING, *program(stubs)]) as agent:
        finished = agent.wait()

    assert finished.lines[-1] == [[SIGTRAP], 0]
    assert losses(receiver) == MISSED


def test_children_in_sessions_of_their_own_are_stopped(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """As a launcher makes them: there is no terminal, and all calls are counted."""
    script = (
        "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True, check=True)"
    )
    with Agent(receiver, [sys.executable, "-c", script, *program(stubs)]) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == CALLS
    assert losses(receiver) == {}


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="who asks for stops now and then, in the same process group, is not known beforehand",
)
def test_a_parent_that_polls_for_stops_sees_none(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """A parent that looks again and again whether its child stopped is told of no stop."""
    with Agent(receiver, [sys.executable, "-c", POLLING, *program(stubs)]) as agent:
        finished = agent.wait()

    assert finished.lines[-1] == 0
