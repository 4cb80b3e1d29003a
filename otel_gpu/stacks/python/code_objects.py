"""
Code objects of Python programs, as the kernel side sends them, and their frames.

A code object is sent once and used a thousand times, so its frames are made on first use and cached.
Processes of the same program have the same code objects at other addresses, and share them here.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.limits.caches import CACHES
from otel_gpu.stacks.python.interpreter_memory import ENCODINGS
from otel_gpu.stacks.python.line_tables import LineTable, decode
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.frames import CONTROLS, Frame, FrameType

# A record is cut after its line table, or later.
_FIXED: Final = wire.CODE_RECORD.before("line_table")

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CUT: Final = "…"
_UNKNOWN: Final = Frame(FrameType.PYTHON, "")
_SIGN: Final = 1 << 31
# Frames of one code object; more call sites than this are forged.
_MAX_FRAMES: Final = 4096

# Approximate sizes in memory.
_ENTRY_BYTES: Final = 320
_CONTENT_BYTES: Final = 600
_FRAME_BYTES: Final = 260


class CodeObjects:
    """
    The code objects of programs.

    The least recently used ones are evicted, and counted in ``forgotten``, beyond ``limit`` entries or
    about ``limit_bytes``. Their frames have no names from then on. ``rejected`` counts malformed
    records.
    """

    def __init__(self, limit: int = 50_000, limit_bytes: int = 24 << 20) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._codes: OrderedDict[tuple[ProcessKey, int], _Code] = OrderedDict()
        self._by_program: dict[ProcessKey, set[int]] = {}
        self._by_content: dict[bytes, _Code] = {}
        self._used_bytes = 0
        self.rejected = 0
        self.forgotten = 0
        CACHES.register(
            "code_objects",
            self,
            "_codes",
            release=CodeObjects._release,
            size_bytes="_used_bytes",
        )

    @property
    def programs(self) -> Collection[ProcessKey]:
        """The programs that have code objects here."""
        return self._by_program.keys()

    def learn(self, record: bytes) -> None:
        """Add a RECORD_CODE; a malformed one is counted."""
        fields = _FIXED.named(record.ljust(_FIXED.size, b"\0"))
        end = _FIXED.size + fields["line_table_bytes"]
        if fields["kind"] != wire.RECORD_CODE or len(record) < end:
            self.rejected += 1
            return
        program, name = (fields["pid"], fields["program_ktime_ns"]), fields["code"]
        code = _Code(fields, record[_FIXED.size : end])
        shared = self._by_content.setdefault(code.digest, code)
        if shared is code:
            self._used_bytes += code.size_bytes
        shared.users += 1
        if (program, name) in self._codes:
            self._remove(program, name)
        self._codes[program, name] = shared
        self._by_program.setdefault(program, set()).add(name)
        self._used_bytes += _ENTRY_BYTES
        self._trim()

    def frame(self, program: ProcessKey, code: int, offset: int) -> Frame:
        """
        Return the frame of an instruction, without function and line if its code object is unknown.

        ``code`` and ``offset``, in bytes, are as in ``struct python_frame``.
        """
        key = (program, code)
        known = self._codes.get(key)
        if known is None:
            return _UNKNOWN
        self._codes.move_to_end(key)
        frame = known.frames.get(offset)
        if frame is None:
            if len(known.frames) == _MAX_FRAMES:
                self._used_bytes -= _FRAME_BYTES * len(known.frames)
                known.frames.clear()
            frame = known.make_frame(offset)
            self._used_bytes += _FRAME_BYTES
            self._trim()
        return frame

    def forget(self, program: ProcessKey) -> None:
        """Evict the code objects of a program that ended."""
        for name in list(self._by_program.get(program, ())):
            self._remove(program, name)

    def _remove(self, program: ProcessKey, name: int) -> None:
        code = self._codes.pop((program, name))
        names = self._by_program[program]
        names.discard(name)
        if not names:
            del self._by_program[program]
        self._used_bytes -= _ENTRY_BYTES
        code.users -= 1
        if not code.users:
            del self._by_content[code.digest]
            self._used_bytes -= code.size_bytes + _FRAME_BYTES * len(code.frames)

    def _release(self, count: int) -> None:
        for _ in range(min(count, len(self._codes) - 1)):
            self._remove(*next(iter(self._codes)))
            self.forgotten += 1

    def _trim(self) -> None:
        # The newest entry stays, even if it is too large.
        while len(self._codes) > 1 and (
            len(self._codes) > self._limit or self._used_bytes > self._limit_bytes
        ):
            self._remove(*next(iter(self._codes)))
            self.forgotten += 1


class _Code:
    # One code object of all of its users. Its line table is decoded on first use.
    __slots__ = (
        *("_first_line", "_lines", "_table", "_version"),
        *("digest", "frame", "frames", "size_bytes", "users"),
    )

    def __init__(self, fields: Mapping[str, Any], table: bytes) -> None:
        self._version, self._first_line = fields["version"], fields["first_line"]
        self._table = table
        self._lines: LineTable | None = None
        file, name = _text(fields, "file"), _text(fields, "qualified_name")
        self.frame = Frame(FrameType.PYTHON, name, file)
        self.frames: dict[int, Frame] = {}
        self.users = 0
        texts = f"{self._version} {self._first_line} {len(file)} {file}{name}".encode()
        self.digest = blake2b(table, digest_size=16, key=blake2b(texts).digest()).digest()
        # A decoded range takes four times its two or more bytes here.
        self.size_bytes = _CONTENT_BYTES + 4 * (len(file) + len(name) + len(table))

    def make_frame(self, offset: int) -> Frame:
        if self._lines is None:
            self._lines = decode(self._version, self._first_line, self._table)
            self._table = b""
        line = self._lines.line_at(offset - ((offset & _SIGN) << 1))
        self.frames[offset] = frame = self.frame._replace(line=line)
        return frame


def _text(fields: Mapping[str, Any], name: str) -> str:
    length, character_bytes, data = (
        fields[f"{name}.{part}"] for part in ("length", "character_bytes", "data")
    )
    if character_bytes not in ENCODINGS:
        return ""
    available = min(length, len(data) // character_bytes)
    text = data[: available * character_bytes].decode(ENCODINGS[character_bytes], "replace")
    text = CONTROLS.sub(_REPLACEMENT, text)
    return text if available == length else text + _CUT
