"""
Answers to an assistant, sanitized and of bounded size.

An answer is one line of JSON. Names in it were chosen by traced programs, or by the author of a
recording, and the reader is a language model that follows instructions. So every string, wherever
it comes from, passes ``sanitize`` on its way out, and is a JSON value:

- invisible characters and those that move the cursor are replaced: controls, bidirectional marks,
  tags, variation selectors and other letters without a shape, which can hide text;
- it is cut at a length that no honest name reaches;
- characters with a meaning in HTML or Markdown are written as JSON escapes, which are equal to a
  JSON parser and harmless elsewhere.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_BYTES = 20_000
"""Size of an answer, in bytes of UTF-8."""
MAX_TEXT = 400
"""Length of any string in an answer, in characters."""
MAX_NAME = 120
"""Length of a traced name, in characters."""

_KEPT_OF_CUT = 0.7
_REPLACEMENT = "\ufffd"
# Printable for Python, but without a shape in Unicode (Default_Ignorable_Code_Point).
_SHAPELESS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SPACES = str.maketrans("\t\n\r\v\f", "     ")
_ESCAPES = (
    ("<", "\\u003c"),
    (">", "\\u003e"),
    ("&", "\\u0026"),
    ("`", "\\u0060"),
    ("](", "]\\u0028"),
)


@dataclass
class Listing:
    """
    Rows: lists in the order of ``columns``, or objects. Trailing rows that do not fit count in
    ``more``.
    """

    rows: list[Any]
    columns: tuple[str, ...] = ()
    more: int = 0
    kept: int = field(init=False)

    def __post_init__(self) -> None:
        self.kept = len(self.rows)

    def as_value(self) -> dict[str, object]:
        """Return the listing as a JSON value."""
        value: dict[str, object] = {"columns": list(self.columns)} if self.columns else {}
        value["rows"] = self.rows[: self.kept]
        if more := self.more + len(self.rows) - self.kept:
            value["more"] = more
        return value


def first_of(rows: list[Any], limit: int, columns: tuple[str, ...] = ()) -> Listing:
    """Return a listing of at most ``limit`` rows; it counts the others."""
    return Listing(rows[:limit], columns, max(0, len(rows) - limit))


def sanitize(text: str, limit: int = MAX_TEXT) -> str:
    """Return text without invisible or control characters, cut at ``limit`` characters."""
    # Only the part that is shown is processed.
    head = _SHAPELESS.sub(_REPLACEMENT, text[:limit].translate(_SPACES))
    shown = "".join(c if c.isprintable() else _REPLACEMENT for c in head)
    return shown if len(text) <= limit else f"{shown}… ({len(text) - limit:,} characters cut)"


def name_of(text: object) -> str:
    """Return a traced name, cut at the length of a name."""
    return sanitize(str(text), MAX_NAME)


def present(**values: object) -> dict[str, Any]:
    """Return the values that are not empty, 0 or None."""
    return {name: value for name, value in values.items() if value}


def micros(time_ns: float | None) -> float | int | None:
    """Return nanoseconds as microseconds, exactly; None: not known."""
    if time_ns is None or math.isnan(time_ns):
        return None
    whole, rest = divmod(round(time_ns), 1_000)
    return whole if not rest else round(whole + rest / 1_000, 3)


def to_json(document: Mapping[str, object], limit_bytes: int = MAX_BYTES) -> str:
    """
    Return a line of JSON within the limit; the last rows of the largest listing are cut first.
    """
    while True:
        text = _encode(document)
        if len(text.encode()) <= limit_bytes:
            return text
        listings = [listing for listing in _listings_of(document) if listing.kept]
        if not listings:
            return _encode({"error": f"the answer is larger than {limit_bytes:,} bytes"})
        largest = max(listings, key=lambda listing: len(_encode(listing.as_value())))
        largest.kept = int(largest.kept * _KEPT_OF_CUT)


def _encode(value: object) -> str:
    text = json.dumps(
        _plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str
    )
    for what, escape in _ESCAPES:
        text = text.replace(what, escape)
    return text


def _plain(value: object) -> object:
    if isinstance(value, Listing):
        return _plain(value.as_value())
    if isinstance(value, str):
        return sanitize(value)
    if isinstance(value, bytes):
        return sanitize(value[:MAX_TEXT].hex())
    if isinstance(value, Mapping):
        return {sanitize(str(key), MAX_NAME): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listings_of(value: object) -> Iterator[Listing]:
    items: Iterable[object] = value if isinstance(value, list | tuple) else ()
    if isinstance(value, Listing):
        yield value
        items = value.rows[: value.kept]
    elif isinstance(value, Mapping):
        items = value.values()
    for item in items:
        yield from _listings_of(item)
