"""What a program is called: the same from the record of its exec as from /proc."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from otel_gpu.wire.events import Exec
from tests.kernel.agent import CALL_DURATION, Agent, calls, points, wait_until
from tests.kernel.btf_headers import make_headers
from tests.kernel.recorded_events import RecordedEvents
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

EXEC_IN_MANY_WAYS = """
import os, shutil, subprocess, sys
folder = sys.argv[1]
tell = "import json, os;" \\
    "print(json.dumps([os.getpid(), os.readlink('/proc/self/exe')]))"
python = os.path.realpath(sys.executable)
os.chdir(folder)
shutil.copy(python, "copy")
os.symlink(python, "link")
with open("script", "w") as script:
    script.write("#!" + python + "\\n" + tell)
os.chmod("script", 0o755)
deep = "/".join(["d" * 30] * 9)
os.makedirs(deep)
shutil.copy(python, deep + "/deep")
os.mkdir("mounted")
memory = os.memfd_create("kept in memory")
with open(python, "rb") as file:
    os.write(memory, file.read())
def start(*command, **options):
    subprocess.run(command, check=True, env={"PYTHONHOME": sys.base_prefix}, **options)
start("/proc/self/exe", "-c", tell)
start("./copy", "-c", tell)
start("./link", "-c", tell)
start("./script")
start("copy", "-c", tell, executable=f"{folder}/../{os.path.basename(folder)}/./copy")
start(f"./{deep}/deep", "-c", tell)
start(f"/proc/self/fd/{memory}", "-c", tell, pass_fds=[memory])
start("unshare", "--mount", "sh", "-c",
    'mount -t tmpfs none mounted && mkdir mounted/inside && cp copy mounted/inside/'
    ' && exec mounted/inside/copy -c "$0"', tell)
"""
WAYS = 8


@pytest.mark.parametrize("loader", ["libbpf", "bcc"])
def test_an_exec_names_the_program_as_proc_does(tmp_path: Path, loader: str) -> None:
    """However it was started: by a link, as /proc/self/exe, in another mount, in memory."""
    folder, recording = tmp_path / "programs", tmp_path / "run.otelgpu"
    folder.mkdir()
    env = {"OTEL_GPU_CAPTURE_LOADER": loader}
    if loader == "bcc":
        env["BCC_KERNEL_SOURCE"] = str(make_headers(tmp_path / "headers"))
    command = [sys.executable, "-c", EXEC_IN_MANY_WAYS, folder]
    with Agent(None, command, flags=("--record", str(recording)), env=env) as agent:
        finished = agent.wait()

    assert finished.returncode == 0, finished.stderr
    lines = map(json.loads, finished.stdout.splitlines())
    names = {pid: exe.removesuffix(" (deleted)") for pid, exe in lines}
    execs = {
        event.pid: event.path
        for event in RecordedEvents(recording).events
        if isinstance(event, Exec)
    }
    told = {pid: execs[pid] for pid in names}
    assert len(names) == WAYS
    (deep,) = (pid for pid, name in names.items() if name.endswith("/deep"))
    # The record has room for 255 bytes: what is too long has lost its beginning.
    assert names.pop(deep).endswith(told.pop(deep))
    assert told == names


# A dynamic linker of its own carries no probe: its programs are found by their first call.
OTHER_LINKER = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
print(os.getpid(), flush=True)
while sys.stdin.readline():
    for _ in range(7):
        cuda.cudaDeviceSynchronize()
"""


@pytest.mark.alone(among="preload")
def test_a_program_found_by_its_first_call_has_its_name(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    """Under ``--all``, long before anybody looks for new processes again."""
    linker = next(path for lib in ("/lib64", "/lib") for path in Path(lib).glob("ld-linux-*"))
    shutil.copy(linker.resolve(), tmp_path / "linker")
    program = [sys.executable, "-c", OTHER_LINKER, stubs.runtime]
    env = {"OTEL_GPU_CAPTURE_DISCOVERY_INTERVAL_S": "600"}
    with (
        started(program) as probed,
        Agent(receiver, flags=("--all",), env=env) as agent,
    ):
        wait_until(lambda: makes_calls(receiver, probed), "the first program's calls")
        with started([tmp_path / "linker", *program], OTEL_SERVICE_NAME="found") as found:
            wait_until(lambda: makes_calls(receiver, found), "the other program's calls")
            # Its environment can be read a moment after its calls.
            wait_until(lambda: names_of(receiver, found.pid) == {"found"}, "the program's name")
        agent.signal(signal.SIGINT)
        agent.wait()

    assert names_of(receiver, found.pid) == {"found"}


def names_of(receiver: OtlpReceiver, pid: int) -> set[str]:
    """Return the names of services under which the calls of a process are."""
    return {point.resource["service.name"] for point in points(receiver, CALL_DURATION, pid)}


@contextlib.contextmanager
def started(command: Sequence[str | Path], **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program that has loaded its libraries, until the end of the context."""
    with subprocess.Popen(
        list(map(str, command)),
        env=os.environ | env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        yield process


def makes_calls(receiver: OtlpReceiver, process: subprocess.Popen[str]) -> int:
    """Let a program make some calls, and return how many were received by now."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return calls(receiver, "cudaDeviceSynchronize", process.pid)
