"""Where Python interpreters keep their runtime state, and how it is laid out."""

import contextlib
import itertools
import logging
import os
import shutil
import subprocess
import sys

import pytest

from otel_gpu import wire
from otel_gpu.capture.processes.interpreters import Diagnosis, Interpreters, diagnose
from otel_gpu.procfs.mapped_files import FileId, MappedFile, mapped_files
from tests.pythons.interpreters import NAMES, interpreter

# Prints where its _PyRuntime is, as the interpreter itself finds it, and waits.
SAY_WHERE = """
import ctypes, sys
print(ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")), flush=True)
sys.stdin.read()
"""
# Maps a page of the interpreter's code a second time, below all others, as libffi does.
MAP_TWICE = """
import ctypes, os
file, offset, size = max(
    (line.split()[5], int(line.split()[2], 16), int(line.split("-")[1].split()[0], 16)
     - int(line.split("-")[0], 16))
    for line in open("/proc/self/maps") if " r-xp " in line and "python3" in line.split("/")[-1]
)
mmap = ctypes.CDLL(None).mmap
mmap.restype, mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t] * 6
page = mmap(1 << 20, 4096, 5, 2, os.open(file, os.O_RDONLY), offset + (size // 2 & -4096))
assert page == 1 << 20, page
"""
IMAGE = 77


class Told:
    """Stands for the loaded programs: keeps what they were told."""

    def __init__(self):
        self.interpreters = {}

    def set_interpreter(self, pid, interpreter):
        self.interpreters[pid] = wire.INTERPRETER.named(interpreter)

    def forget_interpreter(self, pid):
        del self.interpreters[pid]


@pytest.fixture
def told():
    return Told()


@contextlib.contextmanager
def run(*command, env=None):
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        yield process
        process.stdin.close()


def compile_library(folder, name, source):
    if shutil.which("gcc") is None:
        pytest.skip("gcc builds the library")
    (folder / f"{name}.c").write_text(source)
    library = folder / name
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, folder / f"{name}.c"], check=True)
    return library


def program_of(folder, version, runtime="1, 2, 3, 4, 5, 6"):
    """A program with an interpreter that is none: its version and runtime state, as C."""
    library = compile_library(
        folder, "libpython3.so", f"long _PyRuntime[9999] = {{{runtime}}};\n{version}"
    )
    source = folder / "main.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts(""); fflush(stdout); getchar(); }')
    program = folder / "program"
    subprocess.run(
        ["gcc", "-o", program, source, "-Wl,--no-as-needed", f"-Wl,-rpath,{folder}", library],
        check=True,
    )
    return program


@pytest.mark.parametrize("name", NAMES)
def test_the_runtime_state_is_where_the_interpreter_says(told, name):
    """
    The address is the interpreter's own, the size more than a lock's, and the layout that
    of its version.
    """
    python = interpreter(name)
    interpreters = Interpreters(told)
    with run(*python.command, "-c", SAY_WHERE) as process:
        said = int(process.stdout.readline())
        interpreters.examine(process.pid, IMAGE, mapped_files(process.pid))

    assert told.interpreters.keys() == {process.pid}
    found = told.interpreters[process.pid]
    assert (found["program_ktime_ns"], found["start"]) == (IMAGE, said)
    assert 600 < found["end"] - found["start"] < 10_000_000
    assert divmod(found["version"], 256) == python.minor
    assert interpreters.reasons == {}


@pytest.mark.parametrize("name", ["this", "3.11-system"])
def test_a_second_mapping_of_its_code_does_not_mislead(told, name):
    """What counts is where the dynamic linker put the library."""
    with run(*interpreter(name).command, "-c", MAP_TWICE + SAY_WHERE) as process:
        said = int(process.stdout.readline())
        mapped = list(mapped_files(process.pid))
        Interpreters(told).examine(process.pid, IMAGE, mapped)

    assert mapped[0].start == 1 << 20
    assert told.interpreters[process.pid]["start"] == said


def test_an_interpreter_in_a_venv_is_found(told, tmp_path):
    """A venv has a link to the interpreter, and maps the same file."""
    python = interpreter("3.11-system")
    subprocess.run([*python.command, "-m", "venv", "--without-pip", tmp_path], check=True)
    with run(tmp_path / "bin" / "python", "-c", SAY_WHERE) as process:
        said = int(process.stdout.readline())
        Interpreters(told).examine(process.pid, IMAGE, mapped_files(process.pid))

    assert told.interpreters[process.pid]["start"] == said
    assert told.interpreters[process.pid]["version"] == 0x030B


def test_a_layout_is_told_once_it_is_seen_to_be_true(told, tmp_path):
    """Before Python code runs, only the addresses are known."""
    waits = compile_library(
        tmp_path,
        "waits.so",
        """
        #include <unistd.h>
        __attribute__((constructor)) static void wait_for_a_byte(void)
        {
            char byte = '.';
            write(1, &byte, 1);
            read(0, &byte, 1);
        }
        """,
    )
    interpreters = Interpreters(told)
    with run(sys.executable, "-c", SAY_WHERE, env=os.environ | {"LD_PRELOAD": waits}) as process:
        assert process.stdout.read(1) == "."
        interpreters.examine(process.pid, IMAGE, mapped_files(process.pid))
        before = dict(told.interpreters[process.pid])
        reasons = dict(interpreters.reasons)
        interpreters.inherit(process.pid, 10, 88)

        process.stdin.write("!")
        process.stdin.flush()
        said = int(process.stdout.readline())
        interpreters.examine_again()

    after = told.interpreters[process.pid]
    assert before["start"] == after["start"] == said
    assert before["version"] == 0
    assert reasons == {process.pid: "no thread of it runs enough Python code yet"}
    assert after["version"] == sys.version_info[0] << 8 | sys.version_info[1]
    assert process.pid not in interpreters.reasons
    # The child was never seen, so it stays in doubt.
    assert told.interpreters[10]["version"] == 0
    assert 10 in interpreters.reasons


def test_what_was_told_in_advance_is_trusted_once_it_is_true(told):
    """Of another process with the same file at once, and of one that is gone as it was known."""
    interpreters = Interpreters(told, in_advance=True, clock=itertools.count().__next__)
    with run(sys.executable, "-c", SAY_WHERE) as python:
        python.stdout.readline()
        files = list(mapped_files(python.pid))
        # Nobody has this number, so its memory cannot be read.
        interpreters.examine(1 << 22, IMAGE, files)
        version = told.interpreters[1 << 22]["version"]
        before = interpreters.trusts((1 << 22, IMAGE))

        interpreters.examine(python.pid, IMAGE, files)
        interpreters.examine(10, IMAGE, files)
    interpreters.forget(python.pid)
    interpreters.forget(1 << 22)

    assert (version, before) == (sys.version_info[0] << 8 | sys.version_info[1], None)
    assert interpreters.trusts((10, IMAGE)) is True
    assert interpreters.trusts((python.pid, IMAGE)) is True
    assert interpreters.trusts((1 << 22, IMAGE)) is False
    assert interpreters.trusts((11, IMAGE)) is False


def test_a_program_that_is_no_interpreter_has_none(told):
    """Nothing is told about a shell."""
    with run("/bin/sh", "-c", "read line") as shell:
        Interpreters(told).examine(shell.pid, IMAGE, mapped_files(shell.pid))

    assert told.interpreters == {}


def test_a_file_that_only_has_the_name_is_passed_over(told, tmp_path):
    """What is called libpython3.so and has no runtime state hides no other."""
    library = compile_library(tmp_path, "libpython3.so", "int nothing;")
    code = f"import ctypes; ctypes.CDLL({str(library)!r})\n{SAY_WHERE}"
    with run(sys.executable, "-c", code) as python:
        said = int(python.stdout.readline())
        Interpreters(told).examine(python.pid, IMAGE, mapped_files(python.pid))

    assert told.interpreters[python.pid]["start"] == said


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("const int nothing = 0;", "libpython3.so does not state its version"),
        ("const unsigned long Py_Version = 0x030f00f0;", "Python 3.15 is not one of 3.10 to 3.14"),
        (
            "const unsigned long Py_Version = 0x030e00f0;",
            "the runtime state of this Python 3.14 has no table of offsets",
        ),
        (
            "const unsigned long Py_Version = 0x030c01f0;",
            "its frames cannot be followed: a null or unmapped pointer",
        ),
    ],
)
def test_an_interpreter_of_an_unknown_kind_is_told_without_layout(
    told, tmp_path, caplog, version, reason
):
    """
    Its GIL can be told from other locks all the same. The reason is kept, and in the log once,
    however often it is looked at and however many processes have it.
    """
    program = program_of(tmp_path, version)
    interpreters = Interpreters(told)
    caplog.set_level(logging.INFO)
    with run(program) as process, run(program) as another:
        for either in (process, another):
            either.stdout.readline()
            for _ in range(31):
                interpreters.examine(either.pid, IMAGE, mapped_files(either.pid))
                interpreters.examine_again()

    found = told.interpreters[process.pid]
    assert found["end"] - found["start"] == 9999 * 8
    assert found["version"] == 0
    assert interpreters.reasons == {process.pid: reason, another.pid: reason}
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == (
        f"Python frames of process {process.pid} are not in its stacks: {reason}; "
        f"otel-gpu doctor --pid {process.pid} says what can be done"
    )


def test_an_interpreter_that_has_just_begun_is_no_news(told, tmp_path, caplog):
    """
    What has no frames is looked at again; that it still has none is said at the thirtieth time.
    """
    program = program_of(tmp_path, "const unsigned long Py_Version = 0x030c01f0;", runtime="0")
    interpreters = Interpreters(told)
    caplog.set_level(logging.INFO)
    with run(program) as process:
        process.stdout.readline()
        interpreters.examine(process.pid, IMAGE, mapped_files(process.pid))
        for _ in range(28):
            interpreters.examine_again()
        before = list(caplog.records)
        for _ in range(13):
            interpreters.examine_again()

    assert before == []
    [record] = caplog.records
    assert "no thread of it runs enough Python code yet" in record.getMessage()


@pytest.mark.parametrize(
    ("version", "diagnosis"),
    [
        (
            "const unsigned long Py_Version = 0x030f00f0;",
            Diagnosis("unknown", "", "Python 3.15 is not one of 3.10 to 3.14"),
        ),
        (
            "const unsigned long Py_Version = 0x030c01f0;",
            Diagnosis("bad", "3.12", "its frames cannot be followed: a null or unmapped pointer"),
        ),
    ],
)
def test_a_diagnosis_says_what_a_capture_would_find(tmp_path, version, diagnosis):
    """Without a capture, from a process that runs."""
    with run(program_of(tmp_path, version)) as process:
        process.stdout.readline()
        found = diagnose(process.pid, mapped_files(process.pid))

    assert found == diagnosis


def test_the_diagnosis_of_a_healthy_interpreter_is_good():
    """And there is none of a program that is no interpreter."""
    with run(sys.executable, "-c", SAY_WHERE) as python:
        python.stdout.readline()
        found = diagnose(python.pid, mapped_files(python.pid))
    with run("/bin/sh", "-c", "read line") as shell:
        nothing = diagnose(shell.pid, mapped_files(shell.pid))

    assert found == Diagnosis("good", f"{sys.version_info[0]}.{sys.version_info[1]}", "")
    assert nothing is None


def test_a_child_has_its_parent_s_until_it_becomes_another_program(told):
    """A fork copies addresses; exec and exit end what was known."""
    interpreters = Interpreters(told)
    with run(sys.executable, "-c", SAY_WHERE) as python:
        python.stdout.readline()
        interpreters.examine(python.pid, IMAGE, mapped_files(python.pid))
    here = told.interpreters[python.pid]

    interpreters.inherit(python.pid, 10, 88)
    interpreters.inherit(99, 11, 88)
    assert here["version"] == sys.version_info[0] << 8 | sys.version_info[1]
    assert told.interpreters == {python.pid: here, 10: here | {"program_ktime_ns": 88}}

    interpreters.forget(10)
    interpreters.forget(10)
    interpreters.forget(99)
    assert told.interpreters == {python.pid: here}


def test_another_program_of_the_same_process_is_looked_at_anew(told):
    """What was known of one image is not said of the next."""
    interpreters = Interpreters(told)
    interpreters.examine(os.getpid(), IMAGE, mapped_files(os.getpid()))
    interpreters.examine(os.getpid(), 88, mapped_files(os.getpid()))

    assert told.interpreters[os.getpid()]["program_ktime_ns"] == 88


def test_a_process_that_is_gone_is_no_error(told):
    """A process may end before it was looked at."""
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    Interpreters(told).examine(process.pid, IMAGE, mapped_files(process.pid))

    assert told.interpreters == {}


def test_files_that_come_and_go_take_no_more_room(told, tmp_path):
    """Of 300 files that are called like an interpreter, not all are remembered."""
    interpreters = Interpreters(told)
    files = [
        MappedFile(1, FileId(1, number), 1, 2, str(tmp_path / "python3")) for number in range(300)
    ]
    interpreters.examine(1, IMAGE, files)

    assert 0 < len(interpreters._places) <= 256
