"""Other people's programs on the same host: what they choose reaches no terminal, file or figure unchecked."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, seconds_to_end
from tests.kernel.fuse import NAME, FileSystem
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

# Sets a terminal's title, colours what follows, begins a line of its own, and turns the direction.
HOSTILE = b"\x1b]0;title\x07\x1b[31m\r\notel-gpu: error: FORGED\xe2\x80\xae\xc2\x9b31m\xff"
# Maps damaged libraries, and a good one, from a folder with that name, and makes calls.
MAPS = """
import ctypes, mmap, os, sys
folder, runtime = os.fsencode(sys.argv[1]), sys.argv[2]
content = open(runtime, "rb").read()
mapped = []
for name, content in ((b"libcudart.so.11", content[:3000]), (b"libcuda.so.1", b"x" * 5000), (b"libnccl.so.2", content)):
    path = folder + b"/" + name
    open(path, "wb").write(content)
    mapped.append(mmap.mmap(os.open(path, os.O_RDONLY), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
ctypes.CDLL(None).prctl(15, b"\\x1b[31m<b>x\\n", 0, 0, 0)
runtime = ctypes.CDLL(runtime)
for _ in range(401):
    runtime.cudaStreamSynchronize(None)
"""


def test_names_of_files_begin_no_line_of_the_log(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    folder = Path(bytes(tmp_path).decode() + "/" + HOSTILE.decode("utf-8", "surrogateescape"))
    folder.mkdir()

    with Agent(
        receiver, [sys.executable, "-c", MAPS, folder, stubs.runtime], flags=("-vv",)
    ) as agent:
        finished = agent.wait()

    assert finished.returncode == 0
    assert calls(receiver, "cudaStreamSynchronize") == 401
    # A library that cannot be read is named, with its folder.
    assert r"\x1b]0;title\x07\x1b[31m" in finished.stderr
    assert not [line for line in finished.stderr.splitlines() if line.startswith("otel-gpu: error")]
    assert {c for c in finished.stderr if not c.isprintable()} <= {"\n"}


AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
# Makes as many calls as each line of its input says.
CALLS = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
print("ready", flush=True)
for count in sys.stdin:
    for _ in range(int(count)):
        runtime.cudaStreamSynchronize(None)
    print("done", flush=True)
"""
# Publishes a context whose payload is on a page of a file, and calls when it is told to.
PUBLISHES = (
    """
import ctypes, mmap, os, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
page = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_PRIVATE, os.open(sys.argv[2], os.O_RDONLY), 0)
memory = os.memfd_create("OTEL_CTX")
os.ftruncate(memory, 4096)
header = mmap.mmap(memory, 4096)
header[:32] = struct.pack("<8sIIQQ", b"OTEL_CTX", 2, 200, time.monotonic_ns(), page)
"""
    + CALLS
)
ENDS_WITHIN_S = 5.0


@contextmanager
def program(
    source: str, *arguments: object, inside: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A program that is ready, and makes as many calls as a line of its input says."""
    # Other users may not reach the interpreter that runs the tests.
    python = "/usr/bin/python3" if inside else sys.executable
    command = [*inside, python, "-c", source, *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert read_line(process) == "ready"
            yield process
        finally:
            process.kill()


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that all users can reach."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def make_calls(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    assert read_line(process) == "done"


def test_a_page_that_is_never_read_to_its_end_keeps_no_agent_waiting(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    The page is of a file system that does not answer, and the process says that its context is there.

    All calls of others are counted, that something was not read is a loss, and the agent ends at once.
    """
    released = threading.Event()
    with (
        open_folder() as folder,
        FileSystem(folder, "test", lambda _pid: released.wait(120)),
    ):
        try:
            with (
                program(PUBLISHES, stubs.runtime, folder / NAME, inside=AS_NOBODY) as hostile,
                program(CALLS, stubs.runtime) as other,
                Agent(receiver, flags=[f"--pid={hostile.pid}", f"--pid={other.pid}"]) as agent,
            ):
                receiver.wait_for(lambda: losses(receiver).get("memory_read"))
                make_calls(other, 1009)
                make_calls(hostile, 401)
                receiver.wait_for(
                    lambda: calls(receiver, "cudaStreamSynchronize", other.pid) == 1009
                )
                assert seconds_to_end(agent) < ENDS_WITHIN_S
                finished = agent.wait()
        finally:
            released.set()

    assert finished.returncode == 0
    assert calls(receiver, "cudaStreamSynchronize", hostile.pid) == 401
    # Its interpreter is not read either, so that its stacks have no lines of Python.
    lost = losses(receiver)
    assert (lost.pop("memory_read"), lost.keys() - {"python_frames"}) == (1, set())
    assert f"process {hostile.pid} can keep readers of its memory waiting" in finished.stderr
