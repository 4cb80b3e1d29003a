"""Other people's programs on the same host: what they choose reaches no terminal, file or figure unchecked."""

import sys
from pathlib import Path

import pytest

from tests.kernel.agent import ROOT, Agent, calls, losses, otel_gpu
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


# A process of root that uses CUDA, and runs code of another user, which annotates.
PARENT = """
import ctypes, os, subprocess, sys
runtime = ctypes.CDLL(sys.argv[1])
for _ in range(53):
    runtime.cudaStreamSynchronize(None)
subprocess.run([sys.executable, "-c", sys.argv[2]], check=True)
"""
CHILD = """
import os
from otel_gpu.annotations import pack_pairs
from otel_gpu.instrumentation.marks import annotate_function
function, text = annotate_function(), pack_pairs([f"job=forged{6 * 7}"])
os.setuid(65534)
function(0, text, len(text))
"""


@pytest.mark.alone(among="kernel")
def test_a_child_of_another_user_does_not_annotate_its_parent(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path: Path
) -> None:
    file = tmp_path / "annotated.rec"
    command = [sys.executable, "-c", PARENT, stubs.runtime, CHILD]
    with Agent(
        receiver, command, flags=["--record", str(file)], env={"PYTHONPATH": str(ROOT)}
    ) as agent:
        assert agent.wait().returncode == 0

    assert calls(receiver, "cudaStreamSynchronize") == 53
    assert losses(receiver) == {"annotation": 1}
    # What the command line holds is not what it says.
    assert "job=forged42" not in otel_gpu("parse", file).stdout
