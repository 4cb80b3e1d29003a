"""Samples of user stacks, as the kernel side sends them."""

import struct
from collections.abc import Sequence
from typing import Final

from otel_gpu import wire
from otel_gpu.stacks.unwinder import Registers

# Of the two arrays behind it, only what is filled in is there.
_FIXED: Final = struct.Struct(
    wire.SAMPLE_RECORD.format.removesuffix(
        f"{wire.MAX_PYTHON_FRAMES * wire.PYTHON_FRAME.size}s"
        f"{wire.MAX_RETURNS * wire.SAVED_RETURN.size}s"
    )
)
_FIELDS: Final = wire.SAMPLE_RECORD_FIELDS[:-2]
_KTIME: Final = _FIELDS.index("ktime_ns")
_IMAGE_KTIME: Final = _FIELDS.index("image_ktime_ns")
_PID: Final = _FIELDS.index("pid")
_TID: Final = _FIELDS.index("tid")
_INSTRUCTION_POINTER: Final = _FIELDS.index("instruction_pointer")
_COUNTS: Final = slice(_FIELDS.index("return_count"), None)
_WORD_BYTES: Final = 8

SMALLEST_SAMPLE_BYTES: Final = _FIXED.size
"""No sample is shorter."""

Image = tuple[int, int]
"""pid and image_ktime_ns of a process image."""


def position_of(layout: struct.Struct, names: Sequence[str], name: str) -> int:
    """Return where in a record a field begins, in bytes: one is read without all others."""
    values = list(layout.unpack(bytes(layout.size)))
    values[names.index(name)] = 1
    return layout.pack(*values).index(1)


class Sample:
    """
    One user stack, as it was at a moment of its thread.

    Args:
        record: A RECORD_SAMPLE. Counts in it that go beyond it are taken for what is there.

    Attributes:
        token: What records that belong to it call it, unique within the thread.
        image: The process image.
        tid: The thread.
        registers: Its registers in user space.
        returns: Return addresses that probes have replaced, packed ``struct saved_return``.
        python_frames: Innermost first, packed ``struct python_frame``.
        python_status: ``enum python_status``.
        stack: What was copied of the stack; its first byte is at the stack pointer.

    Raises:
        ValueError: The record is no sample, or too short for one.
    """

    __slots__ = (
        "image",
        "python_frames",
        "python_status",
        "registers",
        "returns",
        "stack",
        "tid",
        "token",
    )

    def __init__(self, record: bytes) -> None:
        if len(record) < SMALLEST_SAMPLE_BYTES:
            raise ValueError("a sample ends early")
        fields = _FIXED.unpack_from(record)
        if fields[0] != wire.RECORD_SAMPLE:
            raise ValueError("not a sample")
        return_count, python_count, self.python_status, stack_bytes = fields[_COUNTS]
        self.token: int = fields[_KTIME]
        self.image: Image = (fields[_PID], fields[_IMAGE_KTIME])
        self.tid: int = fields[_TID]
        self.registers = Registers._make(fields[_INSTRUCTION_POINTER : _INSTRUCTION_POINTER + 4])
        frames_end = _FIXED.size + _array_bytes(
            python_count, wire.MAX_PYTHON_FRAMES, wire.PYTHON_FRAME, len(record) - _FIXED.size
        )
        returns_end = frames_end + _array_bytes(
            return_count, wire.MAX_RETURNS, wire.SAVED_RETURN, len(record) - frames_end
        )
        self.python_frames = record[_FIXED.size : frames_end]
        self.returns = record[frames_end:returns_end]
        self.stack = memoryview(record)[returns_end : returns_end + stack_bytes]

    def words(self) -> memoryview:
        """Return the stack as 8-byte words, as many as are whole."""
        whole_bytes = len(self.stack) // _WORD_BYTES * _WORD_BYTES
        return self.stack[:whole_bytes].cast("Q")


def _array_bytes(count: int, limit: int, element: struct.Struct, available_bytes: int) -> int:
    return min(count, limit, available_bytes // element.size) * element.size
