"""
Stacks of the tool: rows of ``stack_traces`` as ours, innermost frame first.

Their labels say what they are. Native frames were found by following frame pointers, which
most libraries are built without, so the walk ends early. Frames of Python were read beside
them, the innermost few or some time after the call, so they are ``cut``. No stack is called
complete. The tool writes the Python frames first; they called the native ones, so here they
come after them.
"""

import json
import re
from typing import Any

from otel_gpu.decode.bodies import MAX_FRAMES
from otel_gpu.decode.referents import UserStack
from otel_gpu.errors import RecordingError
from otel_gpu.importers.ingero.rows import Database
from otel_gpu.recent import Recent
from otel_gpu.stacks.demangling import Demangler
from otel_gpu.stacks.frames import NATIVE, PYTHON, Frame, MergedStack, clean

TABLE = "stack_traces"
MAX_STACK_CHARACTERS = 262_144
"""Of all frames of a stack, as JSON."""
MAX_STACKS = 200_000
"""Stacks that are imported."""

# Whoever hears of stacks remembers at least as many.
_MAX_SENT = 8_192
_OFFSET = re.compile(r"\+0x[0-9a-fA-F]+$")
# By the key, so that no file makes us look through all of it for each call.
_BY_HASH = (
    f"SELECT substr(frames, 1, {MAX_STACK_CHARACTERS + 1}) FROM {TABLE} "
    "WHERE rowid = ?1 AND hash = ?1"
)


class Stacks:
    """
    Finds stacks by the hashes that rows of ``events`` have; bounded.

    Of the rows of ``stack_traces`` that were read, ``taken`` became stacks, and ``rejected`` make
    no sense.
    """

    def __init__(self, database: Database, demangler: Demangler) -> None:
        self._source = database.source
        self._demangler = demangler
        self._is_there = database.has(TABLE, "hash", "frames") and self._has_key()
        # By hash; 0: there is no such row, or it makes no sense.
        self._ids: dict[int, int] = {}
        self._sent: Recent[int, None] = Recent(_MAX_SENT)
        self.taken = 0
        self.rejected = 0

    def find(self, stack_hash: int, unix_ns: int) -> tuple[int, UserStack | None]:
        """
        Return the id of a stack, and the stack itself where it is to be sent now.

        The id is 0 where nothing is known. Equal stacks have equal ids, whatever their hash.
        """
        number = self._ids.get(stack_hash)
        if number == 0:
            return 0, None
        if number is not None and number in self._sent:
            self._sent[number] = None
            return number, None
        if number is None and (not self._is_there or len(self._ids) >= MAX_STACKS):
            return 0, None
        merged = self._read(stack_hash)
        identity = merged.identity if merged else 0
        if number is None:
            self._ids[stack_hash] = identity
            self.taken += bool(identity)
        if merged is None:
            return 0, None
        is_new = identity not in self._sent
        self._sent[identity] = None
        return identity, UserStack(unix_ns, identity, *merged) if is_new else None

    def _has_key(self) -> bool:
        try:
            list(self._source.rows(f"SELECT rowid FROM {TABLE} LIMIT 0"))
        except RecordingError:
            return False
        return True

    def _read(self, stack_hash: int) -> MergedStack | None:
        for (text,) in self._source.rows(_BY_HASH, (stack_hash,)):
            frames = tuple(map(self._demangle, read_frames(text)))
            if frames:
                kinds = {frame.kind for frame in frames}
                native = "frame_pointer" if NATIVE in kinds else "none"
                python = "cut" if PYTHON in kinds else "none"
                return MergedStack(frames, complete=False, native=native, python=python)
            self.rejected += 1
        return None

    def _demangle(self, frame: Frame) -> Frame:
        if frame.kind != NATIVE:
            return frame
        name = self._demangler.text(frame.function) or frame.function
        return frame._replace(function=clean(name))


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
    # Sorting keeps the order of those of a kind.
    return tuple(sorted(filter(None, found), key=lambda frame: frame.kind == PYTHON))


def _frame(item: dict[str, Any]) -> Frame | None:
    function, file = _text(item, "pfn"), _text(item, "pf")
    if function or file:
        # Its line is that at which the function begins, and not the one that it is at.
        return Frame(PYTHON, clean(function), clean(file))
    symbol, module = _OFFSET.sub("", _text(item, "s")), _text(item, "f")
    # Its address is one in the process, which says nothing without the file that is there.
    return Frame(NATIVE, symbol, module=clean(module)) if symbol or module else None


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    # Half of a surrogate pair is a character to JSON and none to anybody else.
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""
