"""Frames larger than the copy of a stack: the library's function is known, and what is behind it may not be."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, losses, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

LIBRARY = """
int deep_native(int (*call)(void), unsigned long size)
{
	volatile char frame[size];

	frame[0] = 1;
	frame[size - 1] = 2;
	return call() + frame[0] - 1;
}
"""
CALLS = 7
# The last one is larger than what is copied.
SIZES = (1_000, 20_000, 200_000)
# It is there until it is told to end: what it maps can be read.
SCRIPT = f"""
import ctypes, os, sys
runtime, library = map(ctypes.CDLL, sys.argv[1:])
library.deep_native.argtypes = [ctypes.c_void_p, ctypes.c_ulong]
call = ctypes.cast(runtime.cudaDeviceSynchronize, ctypes.c_void_p)
def with_size(size):
    library.deep_native(call, size)
for size in {SIZES}:
    for _ in range({CALLS}):
        with_size(size)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, path = tmp_path / "frames.c", tmp_path / "libframes.so"
    source.write_text(LIBRARY)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def test_the_function_with_the_frame_has_its_name(
    receiver: OtlpReceiver, stubs: StubLibraries, library: Path
) -> None:
    command = [sys.executable, "-c", SCRIPT, stubs.runtime, library]
    with Agent(receiver, command, flags=("--spans", "full"), stdin=subprocess.PIPE) as agent:
        pid = agent.next_line()
        receiver.wait_for(
            lambda: len(spans(receiver, "cudaDeviceSynchronize", pid)) == CALLS * len(SIZES)
        )
        agent.send_line("")
        assert agent.wait().returncode == 0

    stacks = [str(span.span.events) for span in spans(receiver, "cudaDeviceSynchronize", pid)]
    assert ["deep_native (libframes.so)" in stack for stack in stacks] == [True] * len(stacks)
    # Python's frames are not read from the copy.
    assert ["with_size (<string>:7)" in stack for stack in stacks] == [True] * len(stacks)
    # A stack that the copy did not hold is marked.
    assert sum("incomplete" in stack for stack in stacks) == CALLS
    assert losses(receiver) == {}
