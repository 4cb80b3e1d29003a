"""
Stacks as text: one frame per line, innermost first.

    cudaMalloc (libcudart.so.12)
    at::native::empty_cuda (libtorch_cuda.so)
    fragmentation_pattern (train.py:74)
    ?? (libcustom.so+0x1f40)
    … 31 frames left out …
    main (train.py:102)
    … incomplete: native frame_pointer, python cut …

A native frame has the file of its library, a Python frame its file and current line. A function
without a symbol is ``??``, followed by its address. Lines that begin with an ellipsis are not
frames.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from otel_gpu.enrich.identity import libraries
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.identity.libraries import layer_of
from otel_gpu.formatting.printable import printable
from otel_gpu.wire.frames import Frame, FrameType, cut_frame

MAX_CHARACTERS: Final = 16_384
"""Of the text of one stack; backends shorten longer values, and not in the middle."""

_LEFT_OUT = re.compile(r"(\d{1,18}) frames? left out")
_INNER_SHARE = 2 / 3


class StackText(NamedTuple):
    """The text of a stack, and the type of each line."""

    text: str
    types: tuple[FrameType, ...]


def frame_line(frame: Frame) -> str:
    """Return the line of one frame, without line breaks and control characters."""
    function = printable(frame.function) or "??"
    if frame.kind == FrameType.CUT:
        return f"… {function} …"
    if frame.kind == FrameType.KERNEL:
        return f"{function} (kernel)"
    if frame.file:
        line = f":{frame.line}" if frame.line else ""
        return f"{function} ({printable(frame.file)}{line})"
    if frame.kind == FrameType.NATIVE:
        offset = "" if frame.function or not frame.address else f"+{frame.address:#x}"
        place = f"{printable(frame.module)}{offset}".removeprefix("+")
        return f"{function} ({place})" if place else function
    return function


def frame_type(frame: Frame) -> FrameType:
    """Return the type of a frame: its kind, except in CUDA libraries."""
    if frame.kind == FrameType.NATIVE and layer_of(frame.module) in (
        libraries.CUDA,
        libraries.DRIVER,
    ):
        return FrameType.CUDA
    return frame.kind


def describe_place(frame: Frame) -> str:
    """Return a frame as ``train.py:74 fragmentation_pattern``, for the middle of a sentence."""
    if frame.kind == FrameType.PYTHON or frame.file:
        name = printable(frame.file.rpartition("/")[2])
        where = f"{name}:{frame.line}" if frame.line else name
        return " ".join(filter(None, (where, printable(frame.function))))
    return frame_line(frame)


def write_stack(stack: CallStack, limit: int = MAX_CHARACTERS) -> StackText:
    """
    Return the text of a stack.

    Args:
        stack: The stack.
        limit: The longest text. Beyond it, frames are left out of the middle, and a line has their
            number.
    """
    frames = list(stack.frames)
    lines = [frame_line(frame) for frame in frames]
    types = [frame_type(frame) for frame in frames]
    if not stack.complete:
        lines.append(f"… incomplete: native {stack.native}, python {stack.python} …")
        types.append(FrameType.CUT)
    size = sum(map(len, lines)) + len(lines) - 1
    if size <= limit:
        return StackText("\n".join(lines), tuple(types))
    inner, outer = _choose(lines, limit)
    # All lines but the note, which is not a frame, and those that stand for several.
    left_out = sum(map(_count, frames[inner : len(lines) - outer]))
    middle = cut_frame(left_out)
    lines[inner : len(lines) - outer] = [frame_line(middle)]
    types[inner : len(types) - outer] = [FrameType.CUT]
    text = "\n".join(lines)
    # If not even one line fits, it is the beginning of the first.
    return StackText(text if len(text) <= limit else _shorten(text, limit), tuple(types))


def cut_frames(frames: Sequence[Frame], most: int) -> tuple[Frame, ...]:
    """Return at most ``most`` frames (3 or more); one of them stands for those left out."""
    if len(frames) <= most:
        return tuple(frames)
    outer = most // 3
    inner = most - outer - 1
    left_out = sum(map(_count, frames[inner : len(frames) - outer]))
    return (*frames[:inner], cut_frame(left_out), *frames[len(frames) - outer :])


def stack_id_text(stack_id: int) -> str:
    """Return a stack's id as in telemetry: 16 hexadecimal digits."""
    return f"{stack_id:016x}"


def _choose(lines: Sequence[str], limit: int) -> tuple[int, int]:
    # How many lines fit at the inner and at the outer end, with a note between them.
    space = limit - len(frame_line(cut_frame(10**6))) - 1
    inner = _fitting(lines, int(space * _INNER_SHARE))
    used = sum(len(line) + 1 for line in lines[:inner])
    outer = _fitting(lines[:inner:-1], space - used)
    return inner, outer


def _fitting(lines: Sequence[str], space: int) -> int:
    for count, size in enumerate(_sizes(lines)):
        if size > space:
            return count
    return len(lines)


def _sizes(lines: Sequence[str]) -> Iterator[int]:
    size = 0
    for line in lines:
        size += len(line) + 1
        yield size


def _count(frame: Frame) -> int:
    if frame.kind != FrameType.CUT:
        return 1
    found = _LEFT_OUT.match(frame.function)
    return int(found.group(1)) if found else 1


def _shorten(text: str, limit: int) -> str:
    return text[: limit - 1] + "…" if limit > 0 else ""
