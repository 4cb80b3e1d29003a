"""Stacks as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_text import (
    StackText,
    cut_frames,
    describe_place,
    frame_line,
    frame_type,
    stack_id_text,
    write_stack,
)
from otel_gpu.wire.frames import Frame

MALLOC = Frame("native", "cudaMalloc", module="libcudart.so.12", address=0x1200)
EMPTY = Frame("native", "at::native::empty_cuda", module="libtorch_cuda.so", address=0x99)
PATTERN = Frame("cpython", "fragmentation_pattern", "/app/train.py", 74)
MAIN = Frame("cpython", "<module>", "/app/train.py", 102)


def stack(*frames, complete=True, native="eh_frame", python="ok"):
    return CallStack(7, frames, complete, native, python, None)


def test_a_stack_is_a_line_for_each_frame_innermost_first():
    """The library of a native frame, the file and current line of a Python frame."""
    written = write_stack(stack(MALLOC, EMPTY, PATTERN, MAIN))

    assert written.text.splitlines() == [
        "cudaMalloc (libcudart.so.12)",
        "at::native::empty_cuda (libtorch_cuda.so)",
        "fragmentation_pattern (/app/train.py:74)",
        "<module> (/app/train.py:102)",
    ]
    assert written.types == ("cuda", "native", "cpython", "cpython")


@pytest.mark.parametrize(
    ("frame", "line", "kind"),
    [
        (Frame("native", "", "", 0, "libx.so", 0x1F40), "?? (libx.so+0x1f40)", "native"),
        (Frame("native", "", "", 0, "", 0x7F00), "?? (0x7f00)", "native"),
        (Frame("native", "jit_1"), "jit_1", "native"),
        (Frame("native", ""), "??", "native"),
        (Frame("native", "main", "trainer.cc", 12, "trainer"), "main (trainer.cc:12)", "native"),
        (Frame("native", "", "", 0, "libcuda.so.1", 16), "?? (libcuda.so.1+0x10)", "cuda"),
        (Frame("cpython", "f", "/a.py", 0), "f (/a.py)", "cpython"),
        (Frame("cpython", "f", "", 0), "f", "cpython"),
        (Frame("cpython", "", "", 0), "??", "cpython"),
        (Frame("kernel", "futex_wait"), "futex_wait (kernel)", "kernel"),
        (Frame("cut", "31 frames left out"), "… 31 frames left out …", "cut"),
    ],
)
def test_what_is_not_known_of_a_frame_is_visible(frame, line, kind):
    """A function without a symbol is two question marks, and where it is."""
    assert frame_line(frame) == line
    assert frame_type(frame) == kind


def test_a_stack_that_is_not_complete_says_so():
    """And how its frames were found, for whoever wonders why."""
    written = write_stack(stack(PATTERN, complete=False, native="frame_pointer", python="cut"))

    assert written == StackText(
        "fragmentation_pattern (/app/train.py:74)\n"
        "… incomplete: native frame_pointer, python cut …",
        ("cpython", "cut"),
    )


def test_a_long_stack_loses_its_middle():
    """Most of the inner end stays, some of the outer, and between them a line says how many."""
    frames = [Frame("cpython", f"f{number:02}", "/a.py", 9) for number in range(60)]

    written = write_stack(stack(*frames), limit=200)

    assert written.text.splitlines() == [
        "f00 (/a.py:9)",
        "f01 (/a.py:9)",
        "f02 (/a.py:9)",
        "f03 (/a.py:9)",
        "f04 (/a.py:9)",
        "f05 (/a.py:9)",
        "f06 (/a.py:9)",
        "f07 (/a.py:9)",
        "… 48 frames left out …",
        "f56 (/a.py:9)",
        "f57 (/a.py:9)",
        "f58 (/a.py:9)",
        "f59 (/a.py:9)",
    ]
    assert len(written.text) <= 200
    assert written.types == ("cpython",) * 8 + ("cut",) + ("cpython",) * 4


def test_frames_that_were_left_out_before_are_counted_in():
    """Whoever cut first, the number is of all that is missing."""
    frames = [Frame("cpython", f"f{number:02}", "/a.py", 9) for number in range(20)]
    cut = Frame("cut", "31 frames left out")

    lines = write_stack(stack(*frames[:9], cut, *frames[9:]), 110).text.splitlines()

    assert lines[2:5] == ["f02 (/a.py:9)", "… 46 frames left out …", "f18 (/a.py:9)"]


def test_the_note_of_an_incomplete_stack_outlives_the_cut():
    """It is at the outer end, and no frame."""
    frames = [Frame("cpython", f"f{number:02}", "/a.py", 9) for number in range(60)]

    lines = write_stack(stack(*frames, complete=False), limit=250).text.splitlines()

    assert lines[-1] == "… incomplete: native eh_frame, python ok …"
    left_out = next(line for line in lines if "left out" in line)
    assert left_out == f"… {60 - (len(lines) - 2)} frames left out …"


def test_one_endless_name_is_cut():
    """A limit that no line fits into is a limit all the same."""
    frame = Frame("native", "x" * 500, module="libx.so")

    assert write_stack(stack(frame, frame, frame), limit=30).text == "… 3 frames left out …"
    assert write_stack(stack(frame), limit=10).text == "… 1 frame…"
    assert write_stack(stack(frame), limit=0).text == ""


names = st.text(max_size=6) | st.sampled_from(["\n", "\x1b[2J", "x" * 40, "9 frames left out"])
frames = st.builds(
    Frame,
    st.sampled_from(["cpython", "native", "kernel", "cut"]),
    names,
    names,
    st.integers(0, 9),
    names,
    st.integers(0, 2**64 - 1),
)


@given(st.lists(frames, max_size=30), st.booleans(), st.integers(0, 400))
def test_any_stack_stays_within_its_limit_and_its_lines(some, complete, limit):
    """Names cannot make lines or steer a terminal; there is one type for each line."""
    written = write_stack(stack(*some, complete=complete), limit)

    assert len(written.text) <= limit
    assert {c for c in written.text if not c.isprintable()} <= {"\n"}
    if written.text:
        assert len(written.text.split("\n")) == len(written.types)


@pytest.mark.parametrize(
    ("frame", "place"),
    [
        (PATTERN, "train.py:74 fragmentation_pattern"),
        (EMPTY, "at::native::empty_cuda (libtorch_cuda.so)"),
        (Frame("cpython", "f", "", 0), "f"),
        (Frame("cpython", "f\n", "a/b.py", 0), "b.py f\\n"),
    ],
)
def test_a_place_is_described_in_a_few_words(frame, place):
    """Short enough for the middle of a sentence."""
    assert describe_place(frame) == place


def test_frames_are_cut_in_the_middle():
    """To a number of frames, of which one says what is missing."""
    some = tuple(Frame("cpython", f"f{number}") for number in range(10))

    assert cut_frames(some, 10) == some
    assert [frame.function for frame in cut_frames(some, 6)] == [
        "f0",
        "f1",
        "f2",
        "5 frames left out",
        "f8",
        "f9",
    ]
    assert len(cut_frames(some, 3)) == 3


def test_an_id_is_sixteen_digits():
    """As a span id is."""
    assert stack_id_text(0xAB) == "00000000000000ab"
