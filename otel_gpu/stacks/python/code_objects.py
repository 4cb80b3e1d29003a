"""
Code objects of Python programs, as the kernel side sent them, and their frames.

A code object is sent once and used a thousand times, so what a frame needs is made when it
is first asked for and kept. Processes that run the same program have the same code objects
at other addresses; they share what is known of them.
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
from otel_gpu.wire.frames import CONTROLS, PYTHON, Frame

# A record is cut behind its line table, or later.
_FIXED: Final = wire.CODE_RECORD.before("line_table")

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CUT: Final = "…"
_UNKNOWN: Final = Frame(PYTHON, "")
_SIGN: Final = 1 << 31
# More instructions of one code object than call anything, unless they are made up.
_MAX_FRAMES: Final = 4096

# What they take in memory, roughly and with all that hangs on them.
_ENTRY_BYTES: Final = 320
_CONTENT_BYTES: Final = 600
_FRAME_BYTES: Final = 260


class CodeObjects:
    """
    What is known of code objects, by process image.

    Those that were not used for the longest time are forgotten (and counted) when they are more
    than ``limit``, or take more memory than ``limit_bytes``, roughly. Their frames have no names
    from then on. Records that were not understood are ``rejected``.
    """

    def __init__(self, limit: int = 50_000, limit_bytes: int = 24 << 20) -> None:
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._codes: OrderedDict[tuple[ProcessKey, int], _Code] = OrderedDict()
        self._by_image: dict[ProcessKey, set[int]] = {}
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
    def images(self) -> Collection[ProcessKey]:
        """The process images that have code objects here."""
        return self._by_image.keys()

    def learn(self, record: bytes) -> None:
        """Take a RECORD_CODE; one that is not understood is counted."""
        fields = _FIXED.named(record.ljust(_FIXED.size, b"\0"))
        end = _FIXED.size + fields["line_table_bytes"]
        if fields["kind"] != wire.RECORD_CODE or len(record) < end:
            self.rejected += 1
            return
        image, name = (fields["pid"], fields["program_ktime_ns"]), fields["code"]
        code = _Code(fields, record[_FIXED.size : end])
        shared = self._by_content.setdefault(code.digest, code)
        if shared is code:
            self._used_bytes += code.size_bytes
        shared.users += 1
        if (image, name) in self._codes:
            self._remove(image, name)
        self._codes[image, name] = shared
        self._by_image.setdefault(image, set()).add(name)
        self._used_bytes += _ENTRY_BYTES
        self._trim()

    def frame(self, image: ProcessKey, code: int, offset: int) -> Frame:
        """
        Return the frame of an instruction, without function and line if its code is not known.

        ``code`` and ``offset``, in bytes, are as in ``struct python_frame``.
        """
        key = (image, code)
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

    def forget(self, image: ProcessKey) -> None:
        """A process image is gone."""
        for name in list(self._by_image.get(image, ())):
            self._remove(image, name)

    def _remove(self, image: ProcessKey, name: int) -> None:
        code = self._codes.pop((image, name))
        names = self._by_image[image]
        names.discard(name)
        if not names:
            del self._by_image[image]
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
        # The newest stays, however large.
        while len(self._codes) > 1 and (
            len(self._codes) > self._limit or self._used_bytes > self._limit_bytes
        ):
            self._remove(*next(iter(self._codes)))
            self.forgotten += 1


class _Code:
    # One code object, whoever uses it. Its line table is decoded when a line is asked for.
    __slots__ = (
        *("_first_line", "_lines", "_table", "_version"),
        *("digest", "frame", "frames", "size_bytes", "users"),
    )

    def __init__(self, fields: Mapping[str, Any], table: bytes) -> None:
        self._version, self._first_line = fields["version"], fields["first_line"]
        self._table = table
        self._lines: LineTable | None = None
        file, name = _text(fields, "file"), _text(fields, "qualified_name")
        self.frame = Frame(PYTHON, name, file)
        self.frames: dict[int, Frame] = {}
        self.users = 0
        texts = f"{self._version} {self._first_line} {len(file)} {file}{name}".encode()
        self.digest = blake2b(table, digest_size=16, key=blake2b(texts).digest()).digest()
        # Decoded, each range takes four times the two bytes that it takes at least here.
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
