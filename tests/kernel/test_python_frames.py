"""Python frames as the kernel side walks them, of every version, against what Python says."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from otel_gpu import wire
from tests.kernel.sampling import (
    PYTHON_WORKLOAD,
    Capture,
    Code,
    Observed,
    Sample,
    Subject,
    samples_of_calls,
)
from tests.pythons.interpreters import ONE_OF_EACH, interpreter

pytestmark = pytest.mark.kernel


@pytest.fixture(params=("this", *ONE_OF_EACH))
def observed(request: pytest.FixtureRequest, library: Path, capture: Capture) -> Iterator[Observed]:
    """A program of each version of Python."""
    python = interpreter(request.param)
    with Subject((*python.command, PYTHON_WORKLOAD, library)) as subject:
        capture.watch_python(subject)
        yield Observed(capture, subject)


def line_of(frame: Mapping[str, Any], offset: int) -> int:
    """Return the line of an instruction."""
    [line] = [line for start, end, line in frame["lines"] if start <= offset < end]
    return int(line)


def assert_same(observed: Observed, sample: Sample, said: Mapping[str, Any]) -> None:
    """Demand that a sample has the very frames that the program had."""
    frames = said["frames"]
    assert sample.status == wire.PYTHON_COMPLETE
    assert sample.tid == said["tid"]
    assert len(sample.frames) == len(frames)
    for seen, frame in zip(sample.frames, frames, strict=True):
        code = observed.codes[seen.code]
        table = bytes.fromhex(frame["line_table"])
        assert (code.name, code.file) == (frame["name"][:512], frame["file"][:512])
        assert code.first_line == frame["first_line"]
        assert code.line_table == table[: wire.LINE_TABLE_BYTES]
        assert code.line_table_length == len(table)
        assert code.version == 0x0300 | observed.minor
    # The innermost goes on after what looked at it, in the same line.
    assert line_of(frames[0], sample.frames[0].offset) == frames[0]["line"]
    assert sample.frames[0].offset > frames[0]["offset"]
    assert [frame.offset for frame in sample.frames[1:]] == [
        frame["offset"] for frame in frames[1:]
    ]


@pytest.mark.parametrize(
    "scenario",
    [
        *("nested", "in_method", "in_generator", "in_loop_over_generator", "in_constructor"),
        *("in_comprehension", "in_finalizer", "in_thread", "in_bare_thread", "in_long_code"),
    ],
)
def test_frames_are_those_of_the_program(observed: Observed, scenario: str) -> None:
    """Functions, methods, generators and threads: names, files, tables and instructions agree."""
    said, samples = observed.ask(scenario)

    assert len(said) == len(samples) > 0
    for sample, stack in zip(samples, said, strict=True):
        assert_same(observed, sample, stack)
    assert not observed.has_lost_python


def test_a_callback_s_frames_are_above_the_call_s(observed: Observed) -> None:
    """Python that is called from inside a call sees the frame that made the call below it."""
    said, samples = observed.ask("in_callback")

    # The outer call looked at its stack first and returned last.
    outer, inner, sorting = said
    assert_same(observed, samples[0], inner)
    assert_same(observed, samples[1], outer)
    assert_same(observed, samples[2], sorting)


def test_frames_that_c_code_called_are_marked(observed: Observed) -> None:
    """Where C called Python: a callback, a key of sorted(), a thread's first function, main."""
    _, [nested] = observed.ask("nested")
    _, [callback, outer, sorting] = observed.ask("in_callback")
    _, [thread] = observed.ask("in_bare_thread")

    if observed.minor == 10:  # each frame is called from C
        assert all(frame.is_entry for frame in (*nested.frames, *sorting.frames))
        return
    assert observed.entries(nested) == ["<module>"]
    assert observed.names(callback) == ["callback", "in_callback", "main", "<module>"]
    assert observed.entries(callback) == ["callback", "<module>"]
    assert observed.entries(outer) == ["<module>"]
    assert observed.names(sorting) == ["leaf", "<lambda>", "in_callback", "main", "<module>"]
    assert observed.entries(sorting) == ["<lambda>", "<module>"]
    assert observed.entries(thread) == ["run"]


def test_shims_are_on_the_stack_where_c_code_called(observed: Observed) -> None:
    """From 3.12 on, each frame that C code called has a shim, in the C frames of its caller."""
    _, samples = observed.ask("in_callback")

    for sample in samples:
        called = [number for number, frame in enumerate(sample.frames, 1) if frame.is_entry]
        assert [number for number, _ in sample.shims] == (called if observed.minor >= 12 else [])
        places = [address - sample.stack_pointer for _, address in sample.shims]
        assert places == sorted(places)
        assert all(0 < place < len(sample.stack) for place in places)


def test_a_thread_without_python_has_no_frames(observed: Observed) -> None:
    """A thread that C started, and that calls no Python, is not known to the interpreter."""
    _, [sample] = observed.ask("in_c_thread")

    assert sample.status == wire.PYTHON_NO_THREAD
    assert sample.frames == []


def test_of_a_deep_stack_the_innermost_frames_are_there(observed: Observed) -> None:
    """Of ten thousand frames 128, and the sample says that there are more."""
    _, [sample] = observed.ask("deep")

    assert sample.status == wire.PYTHON_CUT
    assert observed.names(sample) == ["recurse"] * 128
    assert sample.shims == []


def test_a_code_object_is_sent_once(observed: Observed) -> None:
    """The second time, a stack comes without its code objects, and by the same names."""
    _, [first] = observed.ask("nested")
    observed.subject.ask("nested")
    again = observed.capture.read()

    assert not any(isinstance(found, Code) for found in again)
    assert [found.frames for found in samples_of_calls(again)] == [first.frames]


def test_text_of_every_width_is_whole_or_cut(observed: Observed) -> None:
    """Names in Latin-1, UCS-2 and UCS-4; of long ones the first 512 bytes and their length."""
    _, samples = observed.ask("texts")

    found = [observed.codes[sample.frames[0].code] for sample in samples]
    assert [code.name for code in found] == [
        "é",
        "大",
        "\N{GRINNING FACE}",
        "n" * 512,
        "大" * 256,
    ]
    assert [code.name_length for code in found] == [1, 1, 1, 600, 600]
    assert [code.file for code in found[:3]] == ["é.py", "大.py", "\N{GRINNING FACE}.py"]


def test_a_process_that_dies_after_its_call_has_told_everything(observed: Observed) -> None:
    """Code that is made, called once, and gone with its process."""
    [said] = observed.subject.ask("die")
    observed.subject.wait()
    [sample] = observed.take()

    assert [frame["name"] for frame in said["frames"]] == ["last", "die", "main", "<module>"]
    assert_same(observed, sample, said)
    assert observed.codes[sample.frames[0].code].file == "gone.py"


def test_an_interpreter_of_another_image_is_not_used(observed: Observed) -> None:
    """The process has become another program since, or is another one with the same number."""
    observed.capture.set_interpreter(observed.subject, 1, 0, [0x030B] + [0] * 25)

    _, [sample] = observed.ask("nested")

    assert (sample.status, sample.frames) == (wire.PYTHON_NONE, [])
