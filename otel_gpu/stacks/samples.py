"""User stack samples, as the kernel side sends them."""

from operator import itemgetter
from typing import Final

from otel_gpu import wire
from otel_gpu.stacks.unwind.unwinder import Registers
from otel_gpu.wire.c_struct import CStruct

# Of the two arrays after it, only the filled elements are sent.
_FIXED: Final = wire.SAMPLE_RECORD.before("python_frames")
_WANTED: Final = (
    *("kind", "ktime_ns", "pid", "program_ktime_ns", "tid"),
    *("python_status", "python_count", "return_count", "stack_bytes"),
)
_FIELDS: Final = itemgetter(*map(_FIXED.fields.index, _WANTED))
_REGISTERS: Final = itemgetter(*map(_FIXED.fields.index, Registers._fields))
_WORD_BYTES: Final = 8
# As in bpf/memory/blocks.bpf.c and bpf/python/frames.bpf.h.
_MAX_FRAMES: Final = 64
_USER_ADDRESSES: Final = range(0x1000, 1 << 56)

SMALLEST_SAMPLE_BYTES: Final = _FIXED.size
"""Size of the shortest sample."""

ProcessKey = tuple[int, int]
"""pid and ``program_ktime_ns`` of a program."""


class Sample:
    """
    One user stack of a thread, from a RECORD_SAMPLE.

    Records refer to it by ``token``, unique within the thread. ``returns`` are return addresses that
    probes replaced, and ``python_frames`` come innermost first; both are packed. The first byte of
    ``stack`` is at the stack pointer. Counts beyond the end of the record are reduced.

    Raises:
        ValueError: The record is not a sample, or too short.
    """

    def __init__(self, record: bytes) -> None:
        if len(record) < SMALLEST_SAMPLE_BYTES:
            raise ValueError("a sample ends early")
        values = _FIXED.unpack_from(record)
        kind, token, pid, program_ktime_ns, tid, status, frames, returns, stack = _FIELDS(values)
        if kind != wire.RECORD_SAMPLE:
            raise ValueError("not a sample")
        self.token: int = token
        self.program: ProcessKey = (pid, program_ktime_ns)
        self.tid: int = tid
        self.registers = Registers._make(_REGISTERS(values))
        self.python_status: int = status
        frames_end = _FIXED.size + _array_bytes(
            frames,
            limit=wire.MAX_PYTHON_FRAMES,
            element=wire.PYTHON_FRAME,
            available_bytes=len(record) - _FIXED.size,
        )
        returns_end = frames_end + _array_bytes(
            returns,
            limit=wire.MAX_RETURNS,
            element=wire.SAVED_RETURN,
            available_bytes=len(record) - frames_end,
        )
        self.python_frames = record[_FIXED.size : frames_end]
        self.returns = record[frames_end:returns_end]
        self.stack = memoryview(record)[returns_end : returns_end + stack]

    def forget_python(self) -> None:
        """Remove the Python frames."""
        self.python_frames = b""
        self.python_status = wire.PYTHON_NONE

    def words(self) -> memoryview:
        """Return the stack as whole 8-byte words."""
        whole_bytes = len(self.stack) // _WORD_BYTES * _WORD_BYTES
        return self.stack[:whole_bytes].cast("Q")

    def frame_pointer_chain(self) -> tuple[int, ...]:
        """Return the return addresses along the frame pointers, as the kernel side follows them."""
        words, bottom = self.words(), self.registers.stack_pointer
        at, below, chain = self.registers.frame_pointer, bottom, list[int]()
        while len(chain) < _MAX_FRAMES and not at % _WORD_BYTES and at >= below:
            place = (at - bottom) // _WORD_BYTES
            if place + 1 >= len(words) or words[place + 1] not in _USER_ADDRESSES:
                break
            chain.append(words[place + 1])
            at, below = words[place], at + 2 * _WORD_BYTES
        return tuple(chain)


def _array_bytes(count: int, limit: int, element: CStruct, available_bytes: int) -> int:
    return min(count, limit, available_bytes // element.size) * element.size
