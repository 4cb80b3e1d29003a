"""
Telemetry of stacks, built once for each stack.

The span has the stack's id and code location. ``stacks.mode`` decides where the text goes: into a
span event, a span attribute, a log record, or nowhere. The same stack returns the same objects, so
that encoders can cache them.
"""

from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_text import MAX_CHARACTERS, stack_id_text, write_stack
from otel_gpu.export import semconv
from otel_gpu.export.spans.finished import Attributes, AttributeValue, SharedAttributes, SpanEvent
from otel_gpu.formatting.printable import printable
from otel_gpu.options import StacksMode

# Characters of all cached texts, and the size of an entry beside its text.
_MAX_KEPT = 8 << 20
_ENTRY_CHARACTERS = 1024


class StackTelemetry(NamedTuple):
    """A stack's part of a span: attributes, events, and log records beside it."""

    pairs: Attributes = ()
    events: tuple[SpanEvent, ...] = ()
    logs: tuple[SpanEvent, ...] = ()


class _Entry(NamedTuple):
    stack: CallStack
    place: Attributes
    pairs: Attributes
    moment: SharedAttributes
    characters: int


NO_STACK = StackTelemetry()
"""The telemetry of a span without a stack."""


class Stacks:
    """
    Builds and caches the telemetry of stacks: ``mode`` is ``stacks.mode``, ``limit`` a number of
    characters.
    """

    def __init__(self, mode: StacksMode, limit: int | None) -> None:
        self._mode = mode
        self._limit = MAX_CHARACTERS if limit is None else min(limit, MAX_CHARACTERS)
        # The least recently used first.
        self._entries: dict[int, _Entry] = {}
        self._characters = 0

    def of(self, stack: CallStack | None, unix_ns: int) -> StackTelemetry:
        """Return a stack's telemetry at a time."""
        if stack is None or self._mode == StacksMode.NONE:
            return NO_STACK
        entry = self._entry(stack)
        if self._mode == StacksMode.ATTRIBUTE or not entry.moment:
            return StackTelemetry(entry.pairs)
        if self._mode == StacksMode.EVENT:
            event = SpanEvent(semconv.EVENT_STACK, unix_ns, entry.moment)
            return StackTelemetry(entry.pairs, (event,))
        log = SpanEvent(semconv.LOG_STACK, unix_ns, entry.moment)
        return StackTelemetry(entry.pairs, (), (log,))

    def place(self, stack: CallStack | None) -> Attributes:
        """Return the attributes that identify a stack, without its text."""
        if stack is None or self._mode == StacksMode.NONE:
            return ()
        return self._entry(stack).place

    def _entry(self, stack: CallStack) -> _Entry:
        entry = self._entries.pop(stack.id, None)
        # In a forged recording an id can become another stack's.
        if entry is not None and entry.stack is stack:
            self._entries[stack.id] = entry
            return entry
        if entry is not None:
            self._characters -= entry.characters
        entry = self._entries[stack.id] = self._describe(stack)
        self._characters += entry.characters
        while self._characters > _MAX_KEPT and len(self._entries) > 1:
            self._characters -= self._entries.pop(next(iter(self._entries))).characters
        return entry

    def _describe(self, stack: CallStack) -> _Entry:
        place = _describe_place(stack)
        written = write_stack(stack, self._limit)
        text: Attributes = ()
        if written.text:
            text = (
                (semconv.CODE_STACKTRACE, written.text),
                (semconv.OTEL_GPU_STACK_FRAME_TYPES, written.types),
            )
        pairs = place + text if self._mode == StacksMode.ATTRIBUTE else place
        moment = place + text if self._mode == StacksMode.LOG and text else text
        characters = len(written.text) + _ENTRY_CHARACTERS
        return _Entry(
            stack, place, pairs=pairs, moment=SharedAttributes(moment), characters=characters
        )


def _describe_place(stack: CallStack) -> Attributes:
    pairs: list[tuple[str, AttributeValue]] = []
    frame = stack.place
    if frame is not None and frame.function:
        pairs.append((semconv.CODE_FUNCTION_NAME, printable(frame.function)))
    if frame is not None and frame.file:
        pairs.append((semconv.CODE_FILE_PATH, printable(frame.file)))
    if frame is not None and frame.line:
        pairs.append((semconv.CODE_LINE_NUMBER, frame.line))
    pairs.append((semconv.OTEL_GPU_STACK_ID, stack_id_text(stack.id)))
    if not stack.complete:
        pairs.append((semconv.OTEL_GPU_STACK_COMPLETE, False))
    return tuple(pairs)
