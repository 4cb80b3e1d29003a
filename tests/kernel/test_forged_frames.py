"""Python frames in memory that is not what an interpreter's would be: broken, and no nonsense."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.stacks.python.layouts import InterpreterLayout
from tests.kernel.sampling import PYTHON_WORKLOAD, Capture, Observed, Sample, Subject
from tests.pythons.interpreters import interpreter

pytestmark = pytest.mark.kernel

LAYOUT = InterpreterLayout(
    version=0x030B,
    runtime_interpreters=0,
    interpreter_next=0,
    interpreter_threads=8,
    thread_next=0,
    thread_id=8,
    thread_frame=16,
    c_frame_frame=0,
    frame_code=0,
    frame_previous=8,
    frame_instruction=16,
    frame_owner=24,
    frame_bytes=32,
    shim_owner=255,
    code_first_line=0,
    code_file=8,
    code_name=16,
    code_line_table=24,
    code_instructions=32,
    code_bytes=40,
    text_length=16,
    text_state=32,
    text_ascii=48,
    text_compact=72,
    bytes_length=16,
    bytes_data=32,
)
RUNTIME, INTERPRETER, THREAD, C_FRAME, CODE, FRAMES = 0, 64, 128, 192, 256, 4096
FRAME_BYTES = 64


class Forged:
    """A Python program with memory that looks like another interpreter's."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._base = observed.subject.about["buffer"]
        self.thread = observed.subject.about["thread"]

    def words(self, offset: int, *words: int) -> None:
        """Put words into its memory."""
        data = struct.pack(f"<{len(words)}Q", *words)
        self._observed.subject.write(self._base + offset, data)

    def address(self, offset: int) -> int:
        """Return the address of an offset."""
        return int(self._base + offset)

    def frames(self, previous: Sequence[int | None], instruction: int = 2) -> None:
        """Forge frames, each with the number of the one that it goes back to."""
        # Where a code object's texts and line table are said to be is the beginning: there
        # is a length, and nothing else that makes sense.
        self.words(RUNTIME, self.address(INTERPRETER), 0, 1)
        self.words(INTERPRETER, 0, self.address(THREAD))
        self.words(THREAD, 0, self.thread, self.address(C_FRAME))
        self.words(C_FRAME, self.address(FRAMES))
        self.words(CODE, 1, self.address(0), self.address(0), self.address(0))
        code = self.address(CODE)
        for number, back in enumerate(previous):
            to = 0 if back is None else self.address(FRAMES + FRAME_BYTES * back)
            here = FRAMES + FRAME_BYTES * number
            self.words(here, code, to, code + LAYOUT.code_instructions + instruction, 0)

    @property
    def has_lost_python(self) -> bool:
        """Whether a walk has ended in a frame that could not be."""
        return self._observed.has_lost_python

    def sample(self, layout: InterpreterLayout = LAYOUT, runtime: int | None = None) -> Sample:
        """Return the sample of a call when this is the interpreter."""
        observed = self._observed
        program_ktime_ns = observed.capture.programs.processes.program_ktime_ns(
            observed.subject.pid
        )
        observed.capture.set_interpreter(
            observed.subject,
            program_ktime_ns,
            self.address(RUNTIME) if runtime is None else runtime,
            layout,
        )
        observed.subject.ask("nested")
        [sample] = observed.take()
        return sample


@pytest.fixture
def forged(library: Path, capture: Capture) -> Iterator[Forged]:
    with Subject((*interpreter("this").command, PYTHON_WORKLOAD, library)) as subject:
        capture.watch(subject)
        yield Forged(Observed(capture, subject))


@pytest.mark.parametrize("count", [1, 2, 3, 128])
def test_forged_frames_are_walked_to_their_end(forged: Forged, count: int) -> None:
    """The forgeries below are broken for the reason given, and not for another one."""
    forged.frames([*range(1, count), None])

    sample = forged.sample()

    assert sample.status == wire.PYTHON_COMPLETE
    assert [frame.offset for frame in sample.frames] == [2] * count
    assert [frame.is_entry for frame in sample.frames] == [False] * (count - 1) + [True]


def test_one_frame_too_many_is_cut(forged: Forged) -> None:
    """128 frames are what there is room for."""
    forged.frames([*range(1, 129), None])

    sample = forged.sample()

    assert (sample.status, len(sample.frames)) == (wire.PYTHON_CUT, 128)


def test_shims_follow_the_frames_that_they_called(forged: Forged) -> None:
    """
    Two in a row: the loop of the second has cleared its last frame. The outermost one may be
    beyond the room, as nothing comes after it.
    """
    layout = LAYOUT._replace(version=0x030C, shim_owner=3)
    forged.frames([*range(1, 4), None])
    for number in (0, 2, 3):
        forged.words(FRAMES + FRAME_BYTES * number + 24, 3)
    [frame] = (sample := forged.sample(layout)).frames
    assert sample.status == wire.PYTHON_COMPLETE
    assert frame.is_entry
    assert sample.shims == [
        (count, forged.address(FRAMES + FRAME_BYTES * number))
        for count, number in ((0, 0), (1, 2), (1, 3))
    ]

    forged.frames([*range(1, 129), None])
    forged.words(FRAMES + FRAME_BYTES * 128 + 24, 4)
    sample = forged.sample(layout)
    assert (sample.status, len(sample.frames)) == (wire.PYTHON_COMPLETE, 128)
    assert [frame.is_entry for frame in sample.frames] == [False] * 127 + [True]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 17, 40])
def test_frames_that_go_in_circles_are_broken(forged: Forged, length: int) -> None:
    """A few frames, and then the same ones again and again."""
    forged.frames([*range(1, length + 3), 3])

    assert forged.sample().status == wire.PYTHON_BROKEN


@pytest.mark.parametrize("distance", [-4, -1 << 40, 1 << 24, 1 << 40])
def test_an_instruction_outside_of_its_code_is_broken(forged: Forged, distance: int) -> None:
    """Before the first instruction, and farther behind it than any code is long."""
    forged.frames([1, None])
    code = forged.address(CODE)
    instruction = code + LAYOUT.code_instructions + distance
    forged.words(FRAMES + FRAME_BYTES, code, 0, instruction % (1 << 64), 0)

    sample = forged.sample()

    assert (sample.status, len(sample.frames)) == (wire.PYTHON_BROKEN, 1)
    assert forged.has_lost_python


def test_a_frame_that_has_not_begun_is_at_its_first_instruction(forged: Forged) -> None:
    """There CPython points to the unit before it."""
    forged.frames([None], instruction=-2)

    sample = forged.sample()

    assert sample.status == wire.PYTHON_COMPLETE
    assert sample.frames[0].offset == 0


@pytest.mark.parametrize("pointer", [7, 1 << 47, 0xDEAD << 48, (1 << 64) - 8])
@pytest.mark.parametrize("word", [0, 1], ids=["code", "previous"])
def test_a_pointer_that_is_none_is_broken(forged: Forged, word: int, pointer: int) -> None:
    """What cannot be an address of user space, or what nothing is mapped at."""
    forged.frames([1, None])
    forged.words(FRAMES + 8 * word, pointer)

    sample = forged.sample()

    assert (sample.status, len(sample.frames)) == (wire.PYTHON_BROKEN, word)


@pytest.mark.parametrize(
    "change",
    [
        {"frame_bytes": 257},
        {"frame_bytes": (1 << 32) - 1},
        {"code_bytes": 513},
        {"code_bytes": (1 << 32) - 1},
    ],
)
def test_a_layout_beyond_the_room_for_it_is_broken(
    forged: Forged, change: Mapping[str, int]
) -> None:
    """Whoever told it made a mistake."""
    forged.frames([1, None])

    sample = forged.sample(LAYOUT._replace(**change))

    assert (sample.status, sample.frames) == (wire.PYTHON_BROKEN, [])


def test_offsets_beyond_the_room_are_not_followed_out_of_it(forged: Forged) -> None:
    """Each offset in turn is 4 GiB less one: something else is read, or nothing is."""
    forged.frames([1, None])

    for field in InterpreterLayout._fields[1:]:
        sample = forged.sample(LAYOUT._replace(**{field: (1 << 32) - 1}))

        assert sample.status in range(5)
        assert len(sample.frames) <= 128


@pytest.mark.parametrize("runtime", [0, 8, 1 << 46, 0xDEAD << 48])
def test_a_runtime_that_is_not_there_has_no_threads(forged: Forged, runtime: int) -> None:
    """What a program that is being loaded has not touched is not there yet: nothing is lost."""
    sample = forged.sample(runtime=runtime)

    assert (sample.status, sample.frames) == (wire.PYTHON_NO_THREAD, [])
    assert not forged.has_lost_python


def test_threads_that_go_in_circles_are_none_of_them(forged: Forged) -> None:
    """A list of threads without an end, and this one is not on it."""
    forged.frames([None])
    forged.words(THREAD, forged.address(THREAD), 1)

    sample = forged.sample()

    assert (sample.status, sample.frames) == (wire.PYTHON_NO_THREAD, [])


def test_a_thread_state_with_frames_is_preferred(forged: Forged) -> None:
    """Memory of a thread state that was freed still has the thread in it, but no frames."""
    forged.frames([None])
    stale, c_frame = 512, 576
    forged.words(INTERPRETER, 0, forged.address(stale))
    forged.words(stale, forged.address(THREAD), forged.thread, forged.address(c_frame))
    forged.words(c_frame, 0)

    sample = forged.sample()

    assert (sample.status, len(sample.frames)) == (wire.PYTHON_COMPLETE, 1)


def test_of_a_thread_state_that_is_gone_nothing_is_remembered(forged: Forged) -> None:
    """It was found, its memory became something else, and the thread has another one."""
    forged.frames([1, None])
    first = forged.sample()
    moved = 512
    forged.words(INTERPRETER, 0, forged.address(moved))
    forged.words(moved, 0, forged.thread, forged.address(C_FRAME))
    forged.words(THREAD, 0, 1, forged.address(0))
    second = forged.sample()

    assert (first.status, first.frames) == (second.status, second.frames)


def test_an_interpreter_without_a_version_is_not_walked(forged: Forged) -> None:
    """The agent knows where its GIL is, and not how its frames lie."""
    forged.frames([None])

    sample = forged.sample(LAYOUT._replace(version=0))

    assert (sample.status, sample.frames) == (wire.PYTHON_NONE, [])
