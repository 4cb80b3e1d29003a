"""
Finds the events in the text of a trace; any event can be damaged.

Events are parsed out of a sliding window: many at once if they are strict JSON, else one by one.
A damaged event is counted by reason, and parsing goes on at the next one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Final

from otel_gpu.errors import RecordingError
from otel_gpu.importers.torch_trace.text import Text
from otel_gpu.importers.torch_trace.trace_event import REFUSALS, TraceEvent, decode, event_of

MAX_EVENT_CHARACTERS: Final = 1 << 20
"""Of one event, and of one value beside the list of events."""

MOST_EVENTS_CHARACTERS: Final = 1 << 16

AT_ONCE_CHARACTERS: Final = 1 << 16
"""The most text that is parsed at once; if it is not strict JSON, it is parsed twice."""

HINT: Final = "write one with torch.profiler.profile(...).export_chrome_trace(FILE)"

DAMAGED: Final = "events that are damaged"
LAST_DAMAGED: Final = "last events of files, which are damaged"
NOT_CLOSED: Final = "files that end early"
GIVEN_UP: Final = "files that are read to their 10,000th damaged event only"
MAX_DAMAGED: Final = 10_000

_BETWEEN: Final = " \t\r\n,"
# It matches always, if only nothing.
_between: Callable[[str, int], re.Match[str]] = re.compile(r"[\s,]*").match  # type: ignore[assignment]
_KEY = re.compile(r'[\s,]*"([^"\\]{0,256})"\s*:\s*')
# How an event begins; nearly always all of them begin alike.
_OPENING: Callable[[str, int], re.Match[str] | None] = re.compile(r'\{\s*"[^"\\]{1,32}"\s*:').match
_EVENT = re.compile(r'\{\s*"ph"\s*:')
# How the list of events ends, and what comes behind it.
_END = re.compile(r'\}\s*\](?=\s*(?:\}|,\s*"[^"\\]{0,256}"\s*:|$))')
_EVENTS = re.compile(r'"traceEvents"\s*:\s*\[')
_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
# What a search may have seen the beginning of, at the end of the text; also values behind the events.
_OVERLAP = 1 << 15
# Values beside the events; an untrusted file can have any number.
_MAX_KEYS = 256


class Scanner:
    """
    Reads a trace once.

    Attributes:
        head: The values beside the list of events; complete once the events were.
        rejected: What could not be read, by reason.
    """

    def __init__(self, text: Text) -> None:
        self._source = text
        self._text = ""
        self._at = 0
        self._is_whole = False
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self.head: dict[str, object] = {}
        self.rejected: Counter[str] = Counter()

    def events(self) -> Iterator[list[TraceEvent]]:
        """
        Yield the events, one or many at once.

        Raises:
            RecordingError: It is not a trace.
        """
        if self._find_events():
            yield from self._listed()
            self._read_keys()
        if self._source.problem:
            self.rejected[f"files: {self._source.problem}"] += 1

    def _listed(self) -> Iterator[list[TraceEvent]]:
        has_ended = False
        while not has_ended:
            self._fill()
            # Of what is left nearly every event is whole, or the file has ended.
            safe = len(self._text) - (1 if self._is_whole else MOST_EVENTS_CHARACTERS)
            self._at = _between(self._text, self._at).end()
            end = self._many(safe)
            events = self._strict(end) if end else None
            if events is None:
                has_ended = yield from self._singly(end or safe)
            else:
                yield events

    def _many(self, safe: int) -> int:
        # Where the last event begins of as much as is parsed at once; 0: there is one only.
        text, at = self._text, self._at
        opening = _OPENING(text, at)
        most = min(at + AT_ONCE_CHARACTERS, safe)
        return max(0, text.rfind(opening[0], at + 1, most)) if opening else 0

    def _strict(self, end: int) -> list[TraceEvent] | None:
        # Take the events up to there; None: they are not strict JSON.
        last = self._text.rfind("}", self._at, end) + 1
        if self._text[last:end].strip(_BETWEEN):
            return None
        try:
            events = decode(f"[{self._text[self._at : last]}]")
        except REFUSALS:
            return None
        self._at = end
        return events

    def _singly(self, until: int) -> Generator[list[TraceEvent], None, bool]:
        # The events that begin up to there, each by itself; returns whether the list has ended.
        text, at = self._text, self._at
        scan, between = self._scan, _between
        while True:
            at = self._at = between(text, at).end()
            if at > until:
                has_ended = self._is_whole and at >= len(text)
                self.rejected[NOT_CLOSED] += has_ended
                return has_ended
            if text[at] == "]":
                self._at = at + 1
                return True
            try:
                event, at = scan(text, at)
            except (ValueError, RecursionError):
                # It may be longer than most, and not be here as a whole.
                return not (self._fill(MAX_EVENT_CHARACTERS) or self._resume())
            if type(event) is dict:
                yield [event_of(event)]
            else:
                self.rejected["values that are no events"] += 1

    def _resume(self) -> bool:
        # Go to where the next event begins; False: there is none, or too much is damaged.
        at, text = self._at + 1, self._text
        if not self._skip_to(_EVENT, at):
            # What is left of the text begins behind the damage, if it is not all of it.
            is_closed = self._skip_end(at if self._text is text else 0)
            self.rejected[LAST_DAMAGED if is_closed else NOT_CLOSED] += 1
            return False
        self.rejected[DAMAGED] += 1
        if self.rejected[DAMAGED] >= MAX_DAMAGED:
            self.rejected[GIVEN_UP] += 1
            return False
        return True

    def _skip_end(self, at: int) -> bool:
        # Go to the values after the list of events; False: the list does not end.
        for found in _END.finditer(self._text, max(at, len(self._text) - _OVERLAP)):
            behind = self._text[found.end() :].strip(_BETWEEN)
            try:
                json.loads(f"{{{behind}" if behind else "{}", strict=False)
            except (ValueError, RecursionError):
                continue
            self._at = found.end()
            return True
        return False

    def _skip_to(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        while True:
            if found := pattern.search(self._text, at):
                self._at = found.start()
                return found
            if base := _BASE.search(self._text, max(0, at - 1)):
                self.head.setdefault("baseTimeNanoseconds", int(base[1]))
            if self._is_whole:
                self._at = len(self._text)
                return None
            self._at = max(at, len(self._text) - min(_OVERLAP, MOST_EVENTS_CHARACTERS // 2))
            self._fill()
            at = self._at

    def _find_events(self) -> bool:
        # Go to the first event; False: there are only keys.
        self._fill()
        self._at = _between(self._text, 0).end()
        first = self._text[self._at : self._at + 1]
        if first not in ("{", "["):
            what = f"it begins with {first!r}" if first else "it is empty"
            raise RecordingError(
                f"not a trace of torch.profiler: {what}",
                hint=HINT,
            )
        self._at += 1
        if first == "[":
            return True
        if self._read_keys():
            return True
        raise RecordingError(
            "not a trace of torch.profiler: it has no traceEvents",
            hint=HINT,
        )

    def _read_keys(self) -> bool:
        # Read values of keys; True: the next is the first event, and was not read yet.
        while True:
            self._fill(MAX_EVENT_CHARACTERS)
            found = _KEY.match(self._text, self._at)
            if found is None:
                if self._closes():
                    return False
            elif found[1] == "traceEvents" and self._text.startswith("[", found.end()):
                self._at = found.end() + 1
                return True
            else:
                try:
                    value, self._at = self._scan(self._text, found.end())
                except (ValueError, RecursionError):
                    self.rejected["values beside the events"] += 1
                else:
                    if len(self.head) < _MAX_KEYS:
                        self.head[found[1]] = value
                    continue
            if not (found := self._skip_to(_EVENTS, self._at)):
                return False
            self._at = found.end()
            return True

    def _closes(self) -> bool:
        at = _between(self._text, self._at).end()
        return at >= len(self._text) or self._text[at] in "}]"

    def _fill(self, wanted: int = 0) -> bool:
        # Read until the text has ``wanted`` characters, or ends; False: it had them.
        wanted = wanted or MOST_EVENTS_CHARACTERS
        if self._is_whole or len(self._text) - self._at >= wanted:
            return False
        while not self._is_whole and len(self._text) - self._at < wanted:
            part = self._source.read()
            self._is_whole = not part
            self._text = self._text[self._at :] + part
            self._at = 0
        return True
