"""Where Python interpreters keep their runtime state."""

import os
import shutil
import subprocess
import sys

import pytest

from otel_gpu.capture.interpreters import Interpreters
from otel_gpu.capture.targets import mapped_files

# Prints where its _PyRuntime is, as the interpreter itself finds it, and waits.
SAY_WHERE = """
import ctypes, sys
print(ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")), flush=True)
sys.stdin.read()
"""
IMAGE = 77


class Told:
    """Stands for the loaded programs: keeps what they were told."""

    def __init__(self):
        self.ranges = {}

    def set_interpreter(self, pid, image_ktime_ns, start, end):
        self.ranges[pid] = (image_ktime_ns, start, end)

    def forget_interpreter(self, pid):
        del self.ranges[pid]


@pytest.fixture
def told():
    return Told()


def run(executable):
    return subprocess.Popen(
        [executable, "-c", SAY_WHERE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def system_python():
    path = shutil.which("python3", path="/usr/bin")
    if path is None:
        pytest.skip("there is no /usr/bin/python3")
    return path


@pytest.mark.parametrize("find", [lambda: sys.executable, system_python], ids=["this", "system"])
def test_the_runtime_state_is_where_the_interpreter_says(told, find):
    """The address is the interpreter's own, and the size is more than a lock's."""
    with run(find()) as python:
        said = int(python.stdout.readline())
        Interpreters(told).examine(python.pid, IMAGE, mapped_files(python.pid))
        python.stdin.close()

    assert told.ranges.keys() == {python.pid}
    image_ktime_ns, start, end = told.ranges[python.pid]
    assert (image_ktime_ns, start) == (IMAGE, said)
    assert 1_000 < end - start < 10_000_000


def test_a_program_that_is_no_interpreter_has_none(told):
    """Nothing is told about a shell."""
    with subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE) as shell:
        Interpreters(told).examine(shell.pid, IMAGE, mapped_files(shell.pid))
        shell.stdin.close()

    assert told.ranges == {}


def test_a_file_that_only_has_the_name_is_passed_over(told, tmp_path):
    """What is called libpython3.so and has no runtime state hides no other."""
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    library = tmp_path / "libpython3.so"
    if shutil.which("gcc") is None:
        pytest.skip("gcc builds the library")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    code = f"import ctypes; ctypes.CDLL({str(library)!r})\n{SAY_WHERE}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as python:
        said = int(python.stdout.readline())
        Interpreters(told).examine(python.pid, IMAGE, mapped_files(python.pid))
        python.stdin.close()

    assert told.ranges[python.pid][1] == said


def test_a_child_has_its_parent_s_until_it_becomes_another_program(told):
    """A fork copies addresses; exec and exit end what was known."""
    interpreters = Interpreters(told)
    interpreters.examine(os.getpid(), IMAGE, mapped_files(os.getpid()))
    here = told.ranges[os.getpid()]

    interpreters.inherit(os.getpid(), 10, 88)
    interpreters.inherit(99, 11, 88)
    assert told.ranges == {os.getpid(): here, 10: (88, *here[1:])}

    interpreters.forget(10)
    interpreters.forget(10)
    interpreters.forget(99)
    assert told.ranges == {os.getpid(): here}


def test_a_process_that_is_gone_is_no_error(told):
    """A process may end before it was looked at."""
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    Interpreters(told).examine(process.pid, IMAGE, mapped_files(process.pid))

    assert told.ranges == {}
