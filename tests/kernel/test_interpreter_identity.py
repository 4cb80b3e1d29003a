"""An interpreter is known by what it is; what runs without a line of Python is a loss."""

import shutil
import sys
from pathlib import Path

import pytest

from otel_gpu.capture.probes.elf_exports import ElfSymbols
from tests.kernel.agent import Agent, losses, otel_gpu, spans
from tests.pythons.interpreters import interpreter
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries

pytestmark = pytest.mark.kernel

CALLS = 7
SCRIPT = f"""
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
def step():
    library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 256)
for _ in range({CALLS}):
    step()
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
UNKNOWN_VERSION = 0x030F00F0


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """A program that has CPython in itself, and a name that does not say so."""
    python = Path(interpreter("3.11-system").command[0])
    program = Path(shutil.copy(python.resolve(), tmp_path / "trainer"))
    with program.open("rb") as stream:
        if "_PyRuntime" not in ElfSymbols(stream).addresses:
            pytest.skip("the interpreter is not in its program here, but in a library")
    return program


def command_of(trainer: Path, library: Path) -> list[str | Path]:
    return ["env", "PYTHONHOME=/usr", trainer, "-c", SCRIPT, library]


def give_version(program: Path, version: int) -> None:
    with program.open("r+b") as stream:
        symbols = ElfSymbols(stream)
        place = symbols.file_offset(symbols.addresses["Py_Version"])
        assert place is not None
        stream.seek(place)
        stream.write(version.to_bytes(8, "little"))


def lines_of_python(receiver: OtlpReceiver, pid: int) -> list[bool]:
    """Return of each call whether its stack has the function that made it."""
    return [
        any("step (<string>:5)" in str(event) for event in span.span.events)
        for span in spans(receiver, "cudaMalloc", pid)
    ]


def test_a_program_that_has_python_in_itself_has_lines(
    receiver: OtlpReceiver, stubs: StubLibraries, trainer: Path
) -> None:
    """Whatever its name is."""
    with Agent(receiver, command_of(trainer, stubs.runtime), flags=["--spans", "full"]) as agent:
        pid = int(agent.wait().stdout)

    assert lines_of_python(receiver, pid) == [True] * CALLS
    assert losses(receiver) == {}


def test_a_version_that_is_not_known_is_a_loss(
    receiver: OtlpReceiver, stubs: StubLibraries, trainer: Path
) -> None:
    """Each stack that runs Python and has no line of it counts, and the report says why."""
    give_version(trainer, UNKNOWN_VERSION)
    with Agent(receiver, command_of(trainer, stubs.runtime), flags=["--spans", "full"]) as agent:
        finished = agent.wait()

    assert lines_of_python(receiver, int(finished.stdout)) == [False] * CALLS
    assert losses(receiver)["python_frames"] >= CALLS
    note = f"Stacks of process {int(finished.stdout)} have no lines of Python: Python 3.15 is not"
    assert note in " ".join(finished.stderr.split())


@pytest.mark.parametrize("version", [0x030B02F0, UNKNOWN_VERSION])
def test_doctor_knows_an_interpreter_whatever_its_program_is_called(
    stubs: StubLibraries, trainer: Path, version: int
) -> None:
    give_version(trainer, version)
    with Agent(None, command_of(trainer, stubs.runtime), stdin=-1) as agent:
        pid = agent.next_line()
        said = otel_gpu("doctor", "--pid", pid).stdout

    (line,) = [line for line in said.splitlines() if "python_frames" in line]
    assert "no Python interpreter is mapped" not in line
    assert ("Python 3.15 is not one of" in line) is (version == UNKNOWN_VERSION)


# A function of one interpreter calls another one, whose function makes the call.
SEVERAL = f"""
import os, sys, threading, ctypes
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
library = ctypes.CDLL(sys.argv[1])
INNER = '''
import ctypes, sys
library = ctypes.CDLL({{library!r}})
def inner():
    library.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 256)
for _ in range({CALLS}):
    inner()
'''
def outer():
    try:
        made = interpreters.create("legacy")
    except TypeError:
        made = interpreters.create(isolated=False)
    interpreters.run_string(made, INNER.format(library=sys.argv[1]))
def alone():
    for _ in range({CALLS}):
        library.cudaFree(None)
thread = threading.Thread(target=outer)
thread.start()
alone()
thread.join()
alone()
print(os.getpid(), flush=True)
"""


def test_frames_of_several_interpreters_in_one_thread_are_none_and_counted(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Which of them are the inner ones is not known. Other threads have their own."""
    command = [sys.executable, "-c", SEVERAL, stubs.runtime]
    with Agent(receiver, command, flags=["--spans", "full"]) as agent:
        pid = int(agent.wait().stdout)

    stacks = [str(span.span.events) for span in spans(receiver, "cudaMalloc", pid)]
    assert len(stacks) == CALLS
    assert not any("<string>" in stack for stack in stacks)
    assert losses(receiver)["python_frames"] >= CALLS
    alone = [str(span.span.events) for span in spans(receiver, "cudaFree", pid)]
    assert len(alone) == 2 * CALLS
    assert all("alone (<string>:" in stack and "outer" not in stack for stack in alone)
