"""The kernel keeps probes waiting, for a program that holds the lock of its memory map; the agent goes on."""

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.config import load
from tests.kernel.agent import Agent, calls, losses, seconds_to_end
from tests.kernel.fuse import FileSystem
from tests.kernel.test_forged_memory import AS_SOMEBODY
from tests.kernel.test_tenants import (
    AS_NOBODY,
    CALLS,
    ENDS_WITHIN_S,
    make_calls,
    open_folder,
    program,
)
from tests.receiver import WAIT_TIMEOUT_S, OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = [
    pytest.mark.kernel,
    # No process of the host can fork meanwhile.
    pytest.mark.alone,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE"),
]

API = "cudaStreamSynchronize"
NOBODY = 65534
_READ = 15
# Until the test lets go, at most.
_HELD_FOR_S = 60.0
# Maps a library, and waits on a page of a file when it is told to. The kernel lets go of the lock for
# the first answer, which is an error, and not for the second one.
HOLDS = """
import ctypes, mmap, os, sys
ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, os.open(sys.argv[2], os.O_RDONLY), 0)
libc.madvise(page, 4096, 1)
print("ready", flush=True)
sys.stdin.readline()
ctypes.string_at(page, 1)
print("let go", flush=True)
sys.stdin.read()
"""
# Loads a library when it gets its first line, and makes as many calls as each one says.
LOADS_LATE = """
import ctypes, sys
print("ready", flush=True)
runtime = None
for count in sys.stdin:
    runtime = runtime or ctypes.CDLL(sys.argv[1])
    for _ in range(int(count)):
        runtime.cudaStreamSynchronize(None)
    print("done", flush=True)
"""


class Holding(FileSystem):
    """Answers a read with an error, and the next one only after a while."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "test", user=NOBODY, content=b"x" * 8192)
        self.is_holding = threading.Event()
        self._reads = 0

    def _answer(self, kind: int, node: int, pid: int, body: bytes) -> bytes | int:
        if kind == _READ:
            self._reads += 1
            if self._reads == 1:
                return errno.EIO
            self.is_holding.set()
            self._is_ending.wait(_HELD_FOR_S)
            self.is_holding.clear()
        return super()._answer(kind, node, pid, body)


@contextmanager
def held_library(stubs: StubLibraries) -> Iterator[tuple[Path, subprocess.Popen[str], Holding]]:
    """A library, a program that maps it, and what the program waits for once it gets a line."""
    with open_folder() as folder:
        library = Path(shutil.copy(stubs.runtime, folder / "libcudart.so.12"))
        library.chmod(0o755)
        # Under a name that is none of a library with probes.
        (folder / "plain.so").hardlink_to(library)
        (folder / "served").mkdir()
        with (
            Holding(folder / "served") as served,
            program(
                HOLDS, folder / "plain.so", folder / "served" / "remote", inside=AS_NOBODY
            ) as hostile,
        ):
            try:
                yield library, hostile, served
            finally:
                served.answer()


def pids(*processes: subprocess.Popen[str]) -> list[str]:
    return [f"--pid={process.pid}" for process in processes]


def call_until_counted(receiver: OtlpReceiver, process: subprocess.Popen[str]) -> int:
    """Make one call at a time, of which the first may come before the probes; return how many count."""
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while not calls(receiver, API, process.pid) and time.monotonic() < until_s:
        make_calls(process, 1)
        time.sleep(0.1)
    return calls(receiver, API, process.pid)


def hold(hostile: subprocess.Popen[str], served: Holding) -> None:
    """Have a program hold its lock. Nothing is to be forked from now on."""
    assert hostile.stdin is not None
    hostile.stdin.write("\n")
    hostile.stdin.flush()
    assert served.is_holding.wait(WAIT_TIMEOUT_S)


def test_a_program_that_holds_its_memory_map_keeps_no_agent_waiting(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """What has probes is counted, what has none yet is named, and SIGTERM is answered."""
    with (
        held_library(stubs) as (library, hostile, served),
        program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
        program(LOADS_LATE, library, inside=AS_SOMEBODY) as late,
        Agent(receiver, flags=pids(other, late, hostile)) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        make_calls(other, 101)
        receiver.wait_for(lambda: calls(receiver, API, other.pid) == 101)
        hold(hostile, served)
        make_calls(late, 53)
        make_calls(other, 1009)
        receiver.wait_for(lambda: calls(receiver, API, other.pid) == 1110)
        receiver.wait_for(lambda: losses(receiver).get("not_watched_from_start"))
        make_calls(other, 2003)
        took_s = seconds_to_end(agent)
        finished = agent.wait()
        is_held = served.is_holding.is_set()

    assert is_held
    assert took_s < ENDS_WITHIN_S
    assert finished.returncode == 0
    assert calls(receiver, API, other.pid) == 3113
    assert calls(receiver, API, late.pid) == 0
    assert losses(receiver)["not_watched_from_start"] == 1
    said = f"{library} of process {late.pid} has no probes yet: the kernel waits for process {hostile.pid} "
    assert said in finished.stderr
    assert "of user nobody, which waits in request_wait_answer" in finished.stderr
    assert "probes in files are still taken away" in finished.stderr


def test_probes_come_when_the_kernel_can_place_them(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The program is counted from then on, and nothing is left waiting at the end."""
    with (
        held_library(stubs) as (library, hostile, served),
        program(LOADS_LATE, library, inside=AS_SOMEBODY) as late,
        Agent(receiver, flags=pids(late)) as agent,
    ):
        receiver.wait_for(receiver.metrics)
        hold(hostile, served)
        make_calls(late, 53)
        receiver.wait_for(lambda: losses(receiver).get("not_watched_from_start"))
        served.answer()
        before = call_until_counted(receiver, late)
        make_calls(late, 1009)
        agent.signal(signal.SIGTERM)
        finished = agent.wait()

    assert before
    assert 1009 < calls(receiver, API, late.pid) <= 1009 + 300
    assert "still taken away" not in finished.stderr
    assert losses(receiver)["not_watched_from_start"] == 1


def test_another_process_places_probes_when_one_has_died(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """No probe goes with it, and libraries that come later get theirs."""
    with open_folder() as folder:
        library = Path(shutil.copy(stubs.runtime, folder / "libcudart.so.12"))
        with (
            program(CALLS, stubs.runtime, inside=AS_SOMEBODY) as other,
            program(LOADS_LATE, library) as late,
            Agent(receiver, flags=pids(other, late)) as agent,
        ):
            receiver.wait_for(receiver.metrics)
            make_calls(other, 101)
            receiver.wait_for(lambda: calls(receiver, API, other.pid) == 101)
            os.kill(attacher_of(agent.process.pid), signal.SIGKILL)
            make_calls(other, 1009)
            assert call_until_counted(receiver, late)
            assert attacher_of(agent.process.pid)
            agent.signal(signal.SIGTERM)
            finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, API, other.pid) == 1110
    assert "which places probes, has ended" in finished.stderr


def test_the_attacher_has_no_more_than_it_needs() -> None:
    """It has no file of the agent, no map, and no signal ends it; it goes when it is told to."""
    held, other = os.pipe()
    try:
        with Programs(load(None, {}, {}), watch_all=False) as programs:
            assert programs.bpf.attacher is not None
            pid = programs.bpf.attacher.pid
            wait_for_name(pid)
            os.kill(pid, signal.SIGTERM)
            names = {
                re.sub(r":\[\d+\]", "", str(fd.readlink()))
                for fd in Path(f"/proc/{pid}/fd").iterdir()
            }
        assert not Path(f"/proc/{pid}").exists()
        assert names <= {
            *("/dev/null", "socket", "anon_inode:bpf-prog", "anon_inode:bpf-map"),
            *("anon_inode:[pidfd]", "pidfd"),
        }
    finally:
        os.close(held)
        os.close(other)


def wait_for_name(pid: int) -> None:
    until_s = time.monotonic() + WAIT_TIMEOUT_S
    while Path(f"/proc/{pid}/comm").read_text() != "otel-gpu-attach\n":
        assert time.monotonic() < until_s
        time.sleep(0.01)


def attacher_of(agent: int) -> int:
    text = Path(f"/proc/{agent}/task/{agent}/children").read_text()
    return next(
        pid
        for pid in map(int, text.split())
        if Path(f"/proc/{pid}/comm").read_text() == "otel-gpu-attach\n"
    )
