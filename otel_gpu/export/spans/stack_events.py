"""
What telemetry says of a stack, made once for each stack that is met again and again.

On the span: its id, and where in the program it was. Its text goes where
``stacks.mode`` says: into a span event, an attribute of the span, a log record, or
nowhere. The same objects come back for the same stack, so that encoders need not look at
them twice.
"""

from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_text import MAX_CHARACTERS, stack_id_text, write_stack
from otel_gpu.export import semconv
from otel_gpu.export.spans.finished import Attributes, AttributeValue, SharedAttributes, SpanEvent
from otel_gpu.formatting.printable import printable

EVENT = "event"
ATTRIBUTE = "attribute"
LOG = "log"
NONE = "none"

# Characters of all texts that are kept, and what an entry takes up beside its text.
_MAX_KEPT = 8 << 20
_ENTRY_CHARACTERS = 1024


class StackTelemetry(NamedTuple):
    """What goes with a span: in its attributes, as its events, and as log records beside it."""

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
"""Of a span that says nothing of a stack."""


class Stacks:
    """Says of stacks what telemetry holds: ``stacks.mode``, and at most how many characters."""

    def __init__(self, mode: str, limit: int | None) -> None:
        self._mode = mode
        self._limit = MAX_CHARACTERS if limit is None else min(limit, MAX_CHARACTERS)
        # The longest unused first.
        self._entries: dict[int, _Entry] = {}
        self._characters = 0

    def of(self, stack: CallStack | None, unix_ns: int) -> StackTelemetry:
        """Return what goes with a span, from where the program was and when."""
        if stack is None or self._mode == NONE:
            return NO_STACK
        entry = self._entry(stack)
        if self._mode == ATTRIBUTE or not entry.moment:
            return StackTelemetry(entry.pairs)
        if self._mode == EVENT:
            event = SpanEvent(semconv.EVENT_STACK, unix_ns, entry.moment)
            return StackTelemetry(entry.pairs, (event,))
        log = SpanEvent(semconv.LOG_STACK, unix_ns, entry.moment)
        return StackTelemetry(entry.pairs, (), (log,))

    def place(self, stack: CallStack | None) -> Attributes:
        """Return the attributes that name a stack, and no text."""
        if stack is None or self._mode == NONE:
            return ()
        return self._entry(stack).place

    def _entry(self, stack: CallStack) -> _Entry:
        entry = self._entries.pop(stack.id, None)
        # An id of a forged recording may come to stand for another stack.
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
        pairs = place + text if self._mode == ATTRIBUTE else place
        moment = place + text if self._mode == LOG and text else text
        characters = len(written.text) + _ENTRY_CHARACTERS
        return _Entry(stack, place, pairs, SharedAttributes(moment), characters)


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
