"""A signal that ends a process inside of a CUDA call is an incident: the call, the place, the signal."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.agent import otel_gpu
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

# Makes 101 calls, and dies in the one that follows of what is its second argument.
DIES = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
pointer = ctypes.c_void_p()
for _ in range(101):
    cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(256))
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def die_here(_):
    if sys.argv[2] == "11":
        ctypes.string_at(0)
    os.kill(os.getpid(), int(sys.argv[2]))
cuda.stub_call_inside(b"cudaDeviceSynchronize", die_here, None)
cuda.cudaDeviceSynchronize()
"""
SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL, signal.SIGTERM, signal.SIGTRAP)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_death_in_a_call_is_an_incident(
    number: signal.Signals, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Live, and from the store; the exit code stays the command's."""
    script = tmp_path / "dies.py"
    script.write_text(DIES)
    store = tmp_path / "store.db"
    command = ("--", sys.executable, script, stubs.runtime, int(number))
    live = otel_gpu("explain", "--json", *command)
    kept = otel_gpu("run", "--store", store, *command, env={"OTEL_GPU_STORE_ENABLED": "on"})
    stored = otel_gpu("explain", "--store", store, "--json")

    assert (live.returncode, kept.returncode) == (128 + number, 128 + number)
    for document in map(json.loads, (live.stdout, stored.stdout)):
        (chain,) = chains_of_deaths(document)
        (incident,) = (one for one in document["incidents"] if chain["id"] in one["chains"])
        assert incident["severity"] == "high"
        assert incident["chains"] == [chain["id"]]
        effect = chain["effect"]
        functions = [frame["function"] for frame in document["stacks"][effect["stack"]]["frames"]]
        assert effect["kind"] == "killed_call"
        assert effect["api"] == f"cudaDeviceSynchronize ({number.name})"
        assert "die_here" in functions


def test_an_exit_in_a_call_is_none(stubs: StubLibraries, tmp_path: Path) -> None:
    """The program's own decision, also where another thread is in a call."""
    script = tmp_path / "exits.py"
    script.write_text(DIES.replace("os.kill(os.getpid(), int(sys.argv[2]))", "os._exit(3)"))
    done = otel_gpu("explain", "--json", "--", sys.executable, script, stubs.runtime, 0)

    assert done.returncode == 3
    assert chains_of_deaths(json.loads(done.stdout)) == []


def chains_of_deaths(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chains of a report but for slow calls, which a busy machine makes."""
    return [one for one in document["chains"] if not one["effect"]["kind"].startswith("slow_")]


def test_a_report_names_the_signal_that_ended_a_program(
    stubs: StubLibraries, tmp_path: Path
) -> None:
    """Also where that was in no call."""
    script = tmp_path / "dies.py"
    script.write_text(
        DIES.replace("cuda.stub_call_inside(b", "os.kill(os.getpid(), 5)\ncuda.stub_call_inside(b")
    )
    done = otel_gpu("explain", "--", sys.executable, script, stubs.runtime, 5)

    assert done.returncode == 128 + signal.SIGTRAP
    assert "was ended by SIGTRAP." in done.stderr


DAEMON = """
import ctypes, os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
for fd in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
cuda = ctypes.CDLL(sys.argv[1])
for _ in range(30_000):
    cuda.cudaDeviceSynchronize()
    time.sleep(0.001)
"""


def test_what_a_command_leaves_running_is_counted(stubs: StubLibraries, tmp_path: Path) -> None:
    """A daemon goes on when the command has ended, and nobody sees what it does from then on."""
    script = tmp_path / "daemon.py"
    script.write_text(DAEMON.replace("os._exit(0)", "time.sleep(2); os._exit(0)"))
    command = ("--", sys.executable, script, stubs.runtime)
    done = otel_gpu("run", "--summary", "always", *command)
    found = re.search(r"follow them with --pid (\d+)", done.stderr)

    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    assert re.search(r"lost: .*still_running 1", done.stderr)
    assert done.returncode == 0
