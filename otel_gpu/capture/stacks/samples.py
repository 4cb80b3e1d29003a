"""Samples of user stacks, as the kernel side sends them."""

import struct
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.stacks.unwinder import Registers

_FIXED: Final = struct.Struct(
    wire.SAMPLE_RECORD.format.removesuffix(
        f"{wire.MAX_PYTHON_FRAMES * wire.PYTHON_FRAME.size}s"  # of which few are filled in
    )
)
_FIELDS: Final = wire.SAMPLE_RECORD_FIELDS[:-1]
_KTIME: Final = _FIELDS.index("ktime_ns")
_IMAGE_KTIME: Final = _FIELDS.index("image_ktime_ns")
_PID: Final = _FIELDS.index("pid")
_TID: Final = _FIELDS.index("tid")
_INSTRUCTION_POINTER: Final = _FIELDS.index("instruction_pointer")
_RETURNS: Final = _FIELDS.index("returns")
_COUNTS: Final = slice(_FIELDS.index("return_count"), None)
_WORD_BYTES: Final = 8

Image = tuple[int, int]
"""pid and image_ktime_ns of a process image."""


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
        if len(record) < wire.SAMPLE_RECORD.size:
            raise ValueError("a sample ends early")
        fields = _FIXED.unpack_from(record)
        if fields[0] != wire.RECORD_SAMPLE:
            raise ValueError("not a sample")
        return_count, python_count, self.python_status, stack_bytes = fields[_COUNTS]
        self.token: int = fields[_KTIME]
        self.image: Image = (fields[_PID], fields[_IMAGE_KTIME])
        self.tid: int = fields[_TID]
        self.registers = Registers._make(fields[_INSTRUCTION_POINTER : _INSTRUCTION_POINTER + 4])
        self.returns: bytes = fields[_RETURNS][: return_count * wire.SAVED_RETURN.size]
        python_count = min(python_count, wire.MAX_PYTHON_FRAMES)
        python_end = _FIXED.size + python_count * wire.PYTHON_FRAME.size
        self.python_frames = record[_FIXED.size : python_end]
        start = wire.SAMPLE_RECORD.size
        self.stack = memoryview(record)[start : start + stack_bytes]

    def words(self) -> memoryview:
        """Return the stack as 8-byte words, as many as are whole."""
        whole_bytes = len(self.stack) // _WORD_BYTES * _WORD_BYTES
        return self.stack[:whole_bytes].cast("Q")
