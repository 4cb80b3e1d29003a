"""
Merges Python frames into the native stack, in place of the interpreter's functions.

Some facts about evaluation loops
---------------------------------

CPython runs Python code in one C function, ``_PyEval_EvalFrameDefault``. Native code that
calls a Python function enters that loop anew. Up to 3.10, so does Python code that calls a
Python function: each loop runs one frame. From 3.11 on such a call stays in its loop, so a
loop runs a *run* of frames, and the outermost of a run is marked as entered from C (3.11:
``is_entry``; later: a frame that stands for the caller in C lies below it):

    native stack, innermost first       frames of Python, innermost first
    ─────────────────────────────       ─────────────────────────────────
    alloc            (extension.so)
    cfunction_call   (libpython)
    _PyEval_EvalFrameDefault        ──  compare       run 0
                                        <lambda>             (entered from C)
    PyObject_Vectorcall
    qsort            (libc)
    ffi_call         (libffi)
    _PyEval_EvalFrameDefault        ──  outer         run 1
                                        <module>             (entered from C)
    PyEval_EvalCode

A loop is recognized by its name. The compiler can move unlikely parts of it away (``….cold``,
``….constprop.0``); such a part is the loop all the same. Builds of 3.14 with tail calls have
a function for each instruction, ``_TAIL_CALL_…``, which stands above the one that began the
loop: both together are one loop.

Such parts have no name in a stripped interpreter, and the loop can be inlined into its caller. But
from 3.12 on, the frame that stands for the caller in C is a variable of the loop: the native frame
that has it on its part of the stack is the loop, whatever its name.

While the outermost frame of a run is being cleared, from 3.12 on, the loop has no frame any
more and still stands on the native stack. Such a run is empty, and its loop shows nothing.

Consequences: the n-th loop has the n-th run, both counted from the innermost. If the numbers differ,
one walk missed something at an unknown place. Then loops and runs are matched from the inside, the
remaining Python frames follow, no frame is dropped, and ``complete`` is false.
"""

import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.limits.caches import remembered
from otel_gpu.stacks.python.interpreter_functions import (
    EVALUATION_LOOP,
    INSTRUCTION,
    base_name,
    is_left_out,
)
from otel_gpu.wire.frames import (
    Frame,
    FrameType,
    MergedStack,
    NativeStack,
    PythonStack,
    PythonStatus,
    clean,
    cut_frame,
)

MAX_FRAMES: Final = 256
"""Most frames; a deeper stack loses its middle."""

_KEPT_INNERMOST = MAX_FRAMES // 2
_KEPT_OUTERMOST = MAX_FRAMES - _KEPT_INNERMOST - 1
_MAX_LINE = (1 << 31) - 1
# With Python's perf support: one for each Python function.
_TRAMPOLINE = "py::"
_INTERPRETER = re.compile(r"^(libpython3[^/]*\.so[^/]*|python3?(\.\d+)?t?)$")
_STATUSES: Mapping[int, PythonStatus] = {
    wire.PYTHON_NONE: PythonStatus.NONE,
    wire.PYTHON_NO_THREAD: PythonStatus.NO_THREAD,
    wire.PYTHON_COMPLETE: PythonStatus.COMPLETE,
    wire.PYTHON_CUT: PythonStatus.CUT,
    wire.PYTHON_BROKEN: PythonStatus.BROKEN,
}


class _Loop(NamedTuple):
    # Positions of one evaluation loop among the native frames: [start, end).
    start: int
    end: int


def merge(
    native: NativeStack, frames: Sequence[Frame], python: PythonStack, call: Frame | None = None
) -> MergedStack:
    """
    Merge two stacks into at most ``MAX_FRAMES`` frames with printable texts.

    ``frames`` are the functions at the addresses of the native walk; ``call`` is the called CUDA API,
    which goes on top. Only the cut in the middle, which counts its frames, removes Python frames.
    """
    loops = _find_loops(frames, _find_holders(native, python))
    runs = list(_split_runs(python))
    fits = len(loops) == len(runs) and _are_in_place(native, python, loops)
    modules = {frames[loop.start].module for loop in loops}
    surplus = len(loops) - len(runs)
    # More loops than runs, and Python is complete: the innermost loops have no frame.
    skipped = surplus if surplus > 0 and python.status == wire.PYTHON_COMPLETE and runs else 0
    by_position = {
        loop.start: (loop, run) for loop, run in zip(loops[skipped:], runs, strict=False)
    }
    rest = [frame for run in runs[len(loops) :] for frame in run]
    rest_at = _place_rest(native, frames, loops=loops, modules=modules) if rest else len(frames)

    merged = [] if call is None else [call]
    end = 0  # of the last loop
    for position, frame in enumerate(frames):
        if position == rest_at:
            merged += rest
        if position in by_position:
            loop, run = by_position[position]
            merged += run
            end = loop.end
        elif position >= end and not (runs and _is_internal(frame, modules, nameless=fits)):
            merged.append(frame)
    if rest_at >= len(frames):
        merged += rest

    known = python.status == wire.PYTHON_COMPLETE or (
        python.status in (wire.PYTHON_NONE, wire.PYTHON_NO_THREAD) and not loops
    )
    return MergedStack(
        tuple(map(_clean_frame, _cut_middle(merged))),
        complete=native.complete and fits and known,
        native=native.method,
        python=_STATUSES.get(python.status, PythonStatus.BROKEN),
    )


def lacks_python(stack: MergedStack) -> bool:
    """Whether a stack runs Python without any Python line; broken ones are counted elsewhere."""
    return (
        stack.python != PythonStatus.BROKEN
        and any(frame.kind == FrameType.NATIVE and _is_loop(frame) for frame in stack.frames)
        and not any(frame.kind == FrameType.PYTHON for frame in stack.frames)
    )


def _find_holders(native: NativeStack, python: PythonStack) -> set[int]:
    # The native frames that have a Python entry frame on their part of the stack. The end of the last
    # one is unknown.
    tops = native.stack_pointers
    if len(tops) != len(native.addresses) or any(a > b for a, b in itertools.pairwise(tops)):
        return set()
    found = (bisect_right(tops, place) - 1 for place in python.places if place)
    return {position for position in found if 0 <= position < len(tops) - 1}


def _find_loops(frames: Sequence[Frame], holders: set[int]) -> list[_Loop]:
    loops = []
    position = 0
    while position < len(frames):
        end = position + 1
        is_instruction = frames[position].function.startswith(INSTRUCTION)
        if is_instruction and end < len(frames) and (end in holders or _is_loop(frames[end])):
            end += 1
        if is_instruction or position in holders or _is_loop(frames[position]):
            loops.append(_Loop(position, end))
        position = end
    return loops


def _are_in_place(native: NativeStack, python: PythonStack, loops: Sequence[_Loop]) -> bool:
    tops = [*native.stack_pointers, math.inf]
    if not native.stack_pointers or len(tops) <= len(native.addresses):
        return True
    return all(
        not place or tops[loop.start] <= place < tops[loop.end]
        for place, loop in zip(python.places, loops, strict=False)
    )


def _is_loop(frame: Frame) -> bool:
    return base_name(frame.function) == EVALUATION_LOOP


def _split_runs(python: PythonStack) -> Iterator[Sequence[Frame]]:
    start = 0
    for entry in python.entries:
        end = min(max(entry + 1, start), len(python.frames))
        yield python.frames[start:end]
        start = end
    if start < len(python.frames):
        yield python.frames[start:]


def _place_rest(
    native: NativeStack, frames: Sequence[Frame], loops: Sequence[_Loop], modules: set[str]
) -> int:
    # If the native walk is complete, a missing loop is a nameless function of the interpreter (a moved
    # part, in a stripped file).
    if native.complete:
        for position in range(loops[-1].end if loops else 0, len(frames)):
            frame = frames[position]
            if not frame.function and (frame.module in modules or _INTERPRETER.match(frame.module)):
                return position
    return len(frames)


def _is_internal(frame: Frame, modules: set[str], *, nameless: bool) -> bool:
    if frame.module not in modules:
        return frame.function.startswith(_TRAMPOLINE) and not frame.module
    # A nameless function of a stripped interpreter: if every loop was found, it is not one.
    return is_left_out(frame.function) if frame.function else nameless


def _cut_middle(frames: Sequence[Frame]) -> Sequence[Frame]:
    if len(frames) <= MAX_FRAMES:
        return frames
    cut = cut_frame(len(frames) - _KEPT_INNERMOST - _KEPT_OUTERMOST)
    return [*frames[:_KEPT_INNERMOST], cut, *frames[-_KEPT_OUTERMOST:]]


# New stacks consist mostly of known frames.
@remembered("clean_frames", 4096, 400)
def _clean_frame(frame: Frame) -> Frame:
    return Frame(
        frame.kind,
        clean(frame.function),
        clean(frame.file),
        frame.line if 0 < frame.line <= _MAX_LINE else 0,
        clean(frame.module),
        frame.address if frame.kind == FrameType.NATIVE else 0,
    )
