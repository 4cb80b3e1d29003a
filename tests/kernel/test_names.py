"""What a program is called: the same from the record of its exec as from /proc."""

import json
import sys
from pathlib import Path

import pytest

from otel_gpu.decode.events import Exec
from tests.kernel.agent import Agent
from tests.kernel.btf_headers import make_headers
from tests.kernel.told import Told

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
    """
    However it was started: by a link, as /proc/self/exe, in another mount, in memory.
    """
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
    execs = {event.pid: event.path for event in Told(recording).events if isinstance(event, Exec)}
    told = {pid: execs[pid] for pid in names}
    assert len(names) == WAYS
    (deep,) = (pid for pid, name in names.items() if name.endswith("/deep"))
    # The record has room for 255 bytes: what is too long has lost its beginning.
    assert names.pop(deep).endswith(told.pop(deep))
    assert told == names
