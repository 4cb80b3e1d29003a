"""
Converts text and JSON to what a store can hold: bounded, and valid for SQLite.

Names come from untrusted processes. Half a surrogate pair is a character in Python, but not in SQLite;
NaN is a number in Python, but not in JSON.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from otel_gpu.recorder.tables.columns import MAX_INTEGER, MAX_JSON, MAX_TEXT

_MAX_DEPTH = 64


def clean(text: object) -> str:
    """Return a name as valid UTF-8 of at most ``MAX_TEXT`` characters."""
    return str(text)[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")


def to_json(value: object) -> str | None:
    """Encode a document as JSON; None if it is too large or too deep."""
    try:
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError):
            text = json.dumps(_plain(value, _MAX_DEPTH), separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return text if len(text) <= MAX_JSON else None


def from_json(text: str, kind: type) -> Any:  # noqa: ANN401 -- whatever JSON can hold
    """
    Decode a JSON document.

    Raises:
        ValueError: It is invalid, or not of the expected type.
    """
    try:
        value = _DECODER.decode(text)
        # Half a surrogate pair can only be in a store as an escape.
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError as error:
        raise ValueError("too deep") from error
    if not isinstance(value, kind):
        raise ValueError(f"not a {kind.__name__}")  # noqa: TRY004 -- it is about a document
    return value


def read_counts(text: str) -> dict[str, int]:
    """
    Decode counts by name; values that are not counts are left out.

    Raises:
        ValueError: It is not a JSON object.
    """
    found = from_json(text, dict).items()
    return {name: n for name, n in found if type(n) is int and 0 <= n <= MAX_INTEGER}


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# Made once, because it decodes every series of every reading.
_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _plain(value: object, depth: int) -> object:
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
