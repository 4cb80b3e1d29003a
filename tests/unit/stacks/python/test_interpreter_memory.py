"""Layouts of real interpreters: whether frames can be read with them, and with no other."""

import contextlib
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_gpu import wire
from otel_gpu.capture.processes.interpreters import Interpreters
from otel_gpu.procfs.mapped_files import mapped_files
from otel_gpu.stacks.python.interpreter_memory import PythonMemory, check
from otel_gpu.stacks.python.layouts import InterpreterLayout, layout_of
from otel_gpu.stacks.python.line_tables import decode
from tests.pythons.interpreters import NAMES, ONE_OF_EACH, interpreter

CHAINS = Path(__file__).resolve().parents[3] / "pythons" / "chains.py"
LAYOUT_3_11 = layout_of(0x030B02F0, b"")

MAIN = [
    "park",
    "plain, inner",
    "plain, outer",
    "decorated.<locals>.wrapper",
    "generate",
    "inner",
    "outer",
    "Örtliche.eigenschaft.<locals>.<listcomp>",
    "Örtliche.eigenschaft",
    "Örtliche.名前",
    "Örtliche.klasse",
    "called_by_c.<locals>.<lambda>",
    "called_by_c",
    "<module> of eval",
    "main",
    "<module>",
]


class Told:
    """Stands for the loaded programs: keeps what they were told."""

    def __init__(self):
        self.interpreters = {}

    def set_interpreter(self, pid, interpreter):
        self.interpreters[pid] = wire.INTERPRETER.named(interpreter)


class Parked:
    """A process that runs chains.py; ``read`` reads its memory."""

    def __init__(self, process):
        self.main_thread, self.other_thread = map(int, process.stdout.readline().split())
        self.pid = process.pid
        self._memory = os.open(f"/proc/{process.pid}/mem", os.O_RDONLY)
        told = Told()
        Interpreters(told).examine(self.pid, 77, mapped_files(self.pid))
        self.told = told.interpreters[self.pid]
        self.start = self.told["start"]
        self.layout = InterpreterLayout._make(
            self.told[field] for field in InterpreterLayout._fields
        )

    def read(self, address, size_bytes):
        try:
            return os.pread(self._memory, size_bytes, address)
        except OSError:
            return b""

    def close(self):
        os.close(self._memory)


@contextlib.contextmanager
def parked(name):
    command = [*interpreter(name).command, str(CHAINS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with contextlib.closing(Parked(process)) as it:
            yield it
        process.stdin.close()


def line_of(function):
    """The line of the call that is underway in a function of chains.py."""
    for number, line in enumerate(CHAINS.read_text(encoding="utf-8").splitlines(), 1):
        if line.endswith(f"# in {function}"):
            return number
    raise AssertionError(function)


def expected_frames(minor, functions):
    for function in functions:
        if function == "<module> of eval":
            yield "<module>", "<string>", 1
        elif function.endswith("<listcomp>"):
            # Inlined from 3.12 on.
            if minor < (3, 12):
                line = line_of("Örtliche.eigenschaft")
                yield named(minor, function), str(CHAINS), line
        else:
            name = named(minor, function.partition(",")[0])
            yield name, str(CHAINS), line_of(function)


def named(minor, qualified_name):
    """3.10 knows functions by their last name only."""
    return qualified_name if minor > (3, 10) else qualified_name.rpartition(".")[2]


def frames_of(process, thread):
    memory = PythonMemory(process.layout, process.start, process.read)
    (innermost,) = [frame for known, frame in memory.threads() if known == thread]
    for frame in memory.frames(innermost):
        code = memory.code(frame.code)
        table = memory.line_table(frame.code)
        lines = decode(process.layout.version, code.first_line, table)
        yield frame, (code.name, code.file, lines.line_at(frame.offset))


@pytest.mark.parametrize("name", NAMES)
def test_every_frame_has_its_name_file_and_current_line(name):
    """From outside, a chain of all kinds of calls looks as it is written down."""
    minor = interpreter(name).minor
    with parked(name) as process:
        assert process.told["version"] == minor[0] << 8 | minor[1]
        frames = list(frames_of(process, process.main_thread))
        others = [where for _, where in frames_of(process, process.other_thread)]

    assert [where for _, where in frames] == list(expected_frames(minor, MAIN))
    assert others[:2] == list(expected_frames(minor, ["park", "other"]))
    assert [name for name, _, _ in others[2:]] == [
        named(minor, function)
        for function in ("Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap")
    ]


@pytest.mark.parametrize("name", NAMES)
def test_frames_that_c_code_called_say_so(name):
    """Without C code between them, frames share an evaluation loop from 3.11 on."""
    minor = interpreter(name).minor
    with parked(name) as process:
        is_entry = {
            where[0].rpartition(".")[2]: frame.is_entry
            for frame, where in frames_of(process, process.main_thread)
        }

    for function in ("名前", "called_by_c", "generate", "<module>"):
        assert is_entry[function] is True
    for function in ("park", "wrapper", "<lambda>", "main", "klasse"):
        assert is_entry[function] is (minor == (3, 10))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_layout_is_true_of_its_own_version_only(name):
    """The layout of another version is refused, or sees no frames."""
    with parked(name) as process:
        layouts = {layout_of(version << 16, b"") for version in (0x030A, 0x030B, 0x030C)}
        layouts.discard(process.layout)
        verdicts = Counter(check(layout, process.start, process.read).kind for layout in layouts)

        assert check(process.layout, process.start, process.read) == ("good", "")
        assert verdicts["good"] == 0


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_layout_with_one_wrong_offset_is_refused(name):
    """Nothing that leads to a frame and its text may be off by a word."""
    needed = ["thread_id", "thread_frame", "frame_code", "frame_previous", "text_state"]
    if interpreter(name).minor > (3, 10):
        # It is a pointer since then, and was a number like its neighbours.
        needed.append("frame_instruction")
    with parked(name) as process:
        for field in needed:
            for distance in (-8, 8):
                offset = getattr(process.layout, field) + distance
                if offset >= 0:
                    wrong = process.layout._replace(**{field: offset})
                    verdict = check(wrong, process.start, process.read)
                    assert verdict.kind != "good", (field, distance)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_build_that_traces_references_is_refused(name):
    """With Py_TRACE_REFS each object begins with two more words, without any sign of it."""
    objects = ("code_first_line", "code_file", "code_name", "code_line_table", "text_length")
    with parked(name) as process:
        shifted = {field: getattr(process.layout, field) + 16 for field in objects}
        wrong = process.layout._replace(**shifted)

        assert check(wrong, process.start, process.read).kind == "bad"


def test_memory_that_cannot_be_read_is_no_verdict():
    """A process that is gone, or that we may not look at, may be looked at later."""
    assert check(LAYOUT_3_11, 0x1000_0000, lambda _address, _size_bytes: b"") == (
        "early",
        "its memory cannot be read",
    )


def test_an_interpreter_that_has_not_begun_is_looked_at_later():
    """Before it is initialised, its runtime state is empty."""
    assert check(LAYOUT_3_11, 0x1000_0000, lambda _address, size_bytes: bytes(size_bytes)) == (
        "early",
        "no thread of it runs enough Python code yet",
    )


@given(st.lists(st.binary(max_size=64), min_size=1), st.sampled_from([0x030A, 0x030B, 0x030C]))
def test_garbage_has_no_good_layout(pieces, version):
    """Whatever is read, in whatever sizes, it takes a bounded time and is refused."""
    reads = 0

    def read(_address, size_bytes):
        nonlocal reads
        reads += 1
        piece = pieces[reads % len(pieces)]
        return piece if reads % 3 == 0 else piece[:size_bytes].ljust(size_bytes, b"\0")

    verdict = check(layout_of(version << 16, b""), 0x1000_0000, read)

    assert verdict.kind != "good"
    assert verdict.reason
    assert reads < 1_000_000


@settings(max_examples=20)
@given(st.integers(0x1000, (1 << 64) - 1), st.sampled_from([0x030A, 0x030B, 0x030C]))
def test_lists_that_never_end_are_left(pointer, version):
    """Where every pointer is the same one, walks go in circles and come to an end."""

    def read(_address, size_bytes):
        return (pointer.to_bytes(8, "little") * (size_bytes // 8 + 1))[:size_bytes]

    assert check(layout_of(version << 16, b""), 0x1000_0000, read).kind == "bad"
