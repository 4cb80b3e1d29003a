"""
Stacks of the tool: rows of ``stack_traces`` as ours, innermost frame first.

Their labels say what they are. Native frames were found by following frame pointers, which
most libraries are built without, so the walk ends early. Frames of Python were read beside
them, the innermost few or some time after the call, so they are ``cut``. No stack is called
complete. The tool writes the Python frames first; they called the native ones, so here they
come after them.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from otel_gpu.decode.bodies import MAX_FRAMES
from otel_gpu.decode.events import UserStack
from otel_gpu.errors import RecordingError
from otel_gpu.importers.sqlite_source import SqliteSource
from otel_gpu.stacks.demangling import Demangler
from otel_gpu.stacks.frames import NATIVE, PYTHON, Frame

TABLE = "stack_traces"
MAX_CHARACTERS = 512
"""Of one name."""
MAX_STACK_CHARACTERS = 262_144
"""Of all frames of a stack, as JSON."""
MAX_STACKS = 200_000
"""Stacks that are imported."""

# Whoever hears of stacks remembers at least as many.
_MAX_SENT = 8_192
_ID_BYTES = 8
_ID_MASK = (1 << 63) - 1
_OFFSET = re.compile(r"\+0x[0-9a-fA-F]+$")
# By the key, so that no file makes us look through all of it for each call.
_BY_HASH = (
    f"SELECT substr(frames, 1, {MAX_STACK_CHARACTERS + 1}) FROM {TABLE} "
    "WHERE rowid = ?1 AND hash = ?1"
)


class Stacks:
    """
    Finds stacks by the hashes that rows of ``events`` have; bounded.

    Args:
        source: The database.
        tables: Its tables, and the columns of each.
        demangler: Turns names of C++ into text; closed by whoever made it.

    Attributes:
        taken: Rows of ``stack_traces`` that became stacks.
        rejected: Rows that make no sense.
    """

    def __init__(
        self,
        source: SqliteSource,
        tables: Mapping[str, frozenset[str]],
        demangler: Demangler,
    ) -> None:
        self._source = source
        self._demangler = demangler
        self._is_there = {"hash", "frames"} <= tables.get(TABLE, frozenset()) and self._has_key()
        # By hash; 0: there is no such row, or it makes no sense.
        self._ids: dict[int, int] = {}
        self._sent: OrderedDict[int, None] = OrderedDict()
        self.taken = 0
        self.rejected = 0

    def find(self, stack_hash: int, unix_ns: int) -> tuple[int, UserStack | None]:
        """
        Return the id of a stack, and the stack itself where it is to be sent now.

        The id is 0 where nothing is known. Equal stacks have equal ids, whatever their hash.
        """
        number = self._ids.get(stack_hash)
        if number is not None and (not number or number in self._sent):
            if number:
                self._sent.move_to_end(number)
            return number, None
        if number is None and (not self._is_there or len(self._ids) >= MAX_STACKS):
            return 0, None
        stack = self._read(stack_hash, unix_ns)
        if number is None:
            self._ids[stack_hash] = stack.stack if stack else 0
            self.taken += stack is not None
        if stack is None:
            return 0, None
        is_new = stack.stack not in self._sent
        self._sent[stack.stack] = None
        self._sent.move_to_end(stack.stack)
        if len(self._sent) > _MAX_SENT:
            self._sent.popitem(last=False)
        return stack.stack, stack if is_new else None

    def _has_key(self) -> bool:
        try:
            list(self._source.rows(f"SELECT rowid FROM {TABLE} LIMIT 0"))
        except RecordingError:
            return False
        return True

    def _read(self, stack_hash: int, unix_ns: int) -> UserStack | None:
        for (text,) in self._source.rows(_BY_HASH, (stack_hash,)):
            frames = tuple(map(self._demangle, read_frames(text)))
            if frames:
                return _make_stack(frames, unix_ns)
            self.rejected += 1
        return None

    def _demangle(self, frame: Frame) -> Frame:
        if frame.kind != NATIVE:
            return frame
        name = self._demangler.text(frame.function) or frame.function
        return frame._replace(function=_cut(name))


def read_frames(text: object) -> tuple[Frame, ...]:
    """Return the frames of a row of ``stack_traces``; none if it makes no sense."""
    if not isinstance(text, str) or len(text) > MAX_STACK_CHARACTERS:
        return ()
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(items, list) or len(items) > MAX_FRAMES:
        return ()
    found = (_frame(item) for item in items if isinstance(item, dict))
    known = [frame for frame in found if frame is not None]
    return (
        *(frame for frame in known if frame.kind == NATIVE),
        *(frame for frame in known if frame.kind == PYTHON),
    )


def _make_stack(frames: tuple[Frame, ...], unix_ns: int) -> UserStack:
    kinds = {frame.kind for frame in frames}
    native = "frame_pointer" if NATIVE in kinds else "none"
    python = "cut" if PYTHON in kinds else "none"
    body = {"complete": False, "native": native, "python": python, "frames": frames}
    # As the ids of our own stacks are made.
    canonical = json.dumps(body, separators=(",", ":")).encode("ascii")
    digest = hashlib.blake2b(canonical, digest_size=_ID_BYTES).digest()
    number = int.from_bytes(digest, "little") & _ID_MASK or 1
    return UserStack(unix_ns, number, frames, complete=False, native=native, python=python)


def _frame(item: dict[str, Any]) -> Frame | None:
    function, file = _text(item, "pfn"), _text(item, "pf")
    if function or file:
        # Its line is that at which the function begins, and not the one that it is at.
        return Frame(PYTHON, _cut(function), _cut(file))
    symbol, module = _OFFSET.sub("", _text(item, "s")), _text(item, "f")
    if not (symbol or module):
        return None
    # Its address is one in the process, which says nothing without the file that is there.
    return Frame(NATIVE, symbol, module=_cut(module))


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        return ""
    # Half of a surrogate pair is a character to JSON and none to anybody else.
    return value.encode("utf-8", "replace").decode("utf-8")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
