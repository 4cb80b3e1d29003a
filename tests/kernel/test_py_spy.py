"""Our stacks against those of another unwinder that knows Python: py-spy's."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu.capture.recording import read_recording
from otel_gpu.errors import RecordingError
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import OpenCall
from otel_gpu.wire.frames import FrameType
from otel_gpu.wire.symbol_records import UserStack
from tests.hosts import required
from tests.kernel.agent import Agent, wait_until
from tests.pythons.interpreters import interpreter
from tests.stubs.build import WORKLOADS, StubLibraries, library

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
SCRIPT = WORKLOADS / "parked.py"
# Of a shape: a run of native frames of one module, or one frame of Python.
Shape = list[tuple[str, ...]]


@pytest.fixture(scope="session")
def py_spy() -> Path:
    """The program of the py-spy wheel; it is beside the interpreter that has the wheel."""
    program = Path(sys.executable).with_name("py-spy")
    if not program.exists():
        reason = "the py-spy wheel is not installed"
        if "kernel" in required():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return program


def stack_of_open_call(recording: Path) -> UserStack | None:
    told = {}
    try:
        for batch in read_recording(recording):
            for event in decode(batch, Counter()):
                if isinstance(event, UserStack):
                    told[event.stack] = event
                elif isinstance(event, OpenCall) and event.user_stack:
                    return told[event.user_stack]
    except RecordingError:  # it is being written
        pass
    return None


def frames_in_call(program: Path, command: list[str]) -> list[dict]:
    """
    What py-spy shows of a thread that hangs in a call.

    It knows nothing of uretprobes, which replace return addresses, so it looks at another
    process, which nobody probes: nor does a test beside this one.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            line = json.loads(process.stdout.readline())
            dump = [program, "dump", "--native", "--json", "--pid", str(line["pid"])]

            def look():
                seen = subprocess.run(dump, capture_output=True, check=True)
                for thread in json.loads(seen.stdout):
                    if thread["os_thread_id"] == line["tid"]:
                        return thread["frames"]
                return []

            def look_inside():
                frames = look()
                return frames if any(frame["name"] == API for frame in frames) else None

            return wait_until(look_inside, f"{API} on the stack")
        finally:
            process.kill()


def is_interpreter(module: str) -> bool:
    return module.startswith(("libpython", "python3"))


def shape(frames: list[tuple[str, ...]]) -> Shape:
    """Frames of Python, and between them the modules of native ones, each run of one once."""
    shown = [frame for frame in frames if len(frame) > 1 or not is_interpreter(frame[0])]
    return [key for key, _ in itertools.groupby(shown)]


def is_contained(part: list[str], whole: list[str]) -> bool:
    """Whether all of a part is in the whole, in its order."""
    rest = iter(whole)
    return all(name in rest for name in part)


@pytest.mark.alone(among="kernel")
@pytest.mark.parametrize("chain", ["callback", "native", "thread"])
def test_another_unwinder_sees_the_same(chain, py_spy, stubs: StubLibraries, tmp_path):
    """
    Of a call that hangs: the same frames of Python in the same places among the same libraries,
    and every native function that we name is where it says. It leaves out how a program starts,
    and adds functions that debug information says were inlined.
    """
    recording = tmp_path / "run.otelgpu"
    command = list(
        map(str, (*interpreter("this").command, SCRIPT, stubs.runtime, library("native"), chain))
    )
    with Agent(
        None,
        command,
        flags=("--record", str(recording), "--otlp-file", os.devnull),
        env={"OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.3"},
    ) as agent:
        line = agent.next_line()
        ours = wait_until(lambda: stack_of_open_call(recording), "the stack of an open call")
        os.kill(line["pid"], signal.SIGKILL)
        agent.wait()
    theirs = frames_in_call(py_spy, command)

    assert ours.complete
    our_shape = shape(
        [
            (frame.function, frame.file, str(frame.line))
            if frame.kind == FrameType.PYTHON
            else (frame.module,)
            for frame in ours.frames
        ]
    )
    their_shape = shape(
        [
            (Path(frame["module"]).name,)
            if frame["module"]
            else (frame["name"], frame["filename"], str(frame["line"]))
            for frame in theirs
        ]
    )
    assert our_shape == their_shape
    assert len([frame for frame in our_shape if len(frame) > 1]) >= 3
    names = [
        frame.function
        for frame in ours.frames
        # py-spy does not look for the C library's debug symbols.
        if frame.function and not is_interpreter(frame.module) and frame.module != "libc.so.6"
    ]
    assert is_contained(names, [frame["name"] for frame in theirs])
