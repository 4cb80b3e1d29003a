"""
An event of a trace, with the fields that are used.

``decode`` makes many at once of text that is strict JSON, and no objects of the rest. ``event_of``
makes one of what a more patient parser understood. Both give the same.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

REFUSALS: Final = (DecodeError, ValueError, RecursionError)
"""Exceptions of ``decode``: the text is not strict JSON, or not events."""

_NAMES = {
    "shape": "Input Dims",
    "types": "Input type",
    "size_bytes": "bytes",
    "occupancy": "est. achieved occupancy %",
    "blocks": "blocks per SM",
    "collective": "Collective name",
    "group": "Process Group Name",
    "ranks": "Group size",
    "elements": "In msg nelems",
    "sequence": "Seq",
    "older_sequence": "seq",
}
NO_TEXT: Final = Raw(b"null")


class EventArguments(Struct, gc=False, rename=_NAMES):
    """
    Arguments of events. A field can have any value; null counts as missing.

    ``shape`` and ``types`` are their text: few differ, so few have to be parsed.
    """

    # In the order in which most are written, which is how they are found fastest.
    device: Any = None
    stream: Any = None
    correlation: Any = None
    size_bytes: Any = None
    blocks: Any = None
    occupancy: Any = None
    shape: Raw = NO_TEXT
    types: Raw = NO_TEXT
    collective: Any = None
    group: Any = None
    ranks: Any = None
    elements: Any = None
    dtype: Any = None
    sequence: Any = None
    older_sequence: Any = None
    name: Any = None


class TraceEvent(Struct, gc=False):
    """Fields of an event, with any values; ``ts`` and ``dur`` in microseconds."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: EventArguments | str | float | list[Any] | None = None


decode: Callable[[str], list[TraceEvent]] = Decoder(list[TraceEvent]).decode


def event_of(parsed: Mapping[str, Any]) -> TraceEvent:
    """Return an event that was parsed as any JSON is."""
    event = TraceEvent(*map(parsed.get, TraceEvent.__struct_encode_fields__))
    arguments = parsed.get("args")
    if type(arguments) is dict:
        values: list[Any] = [
            arguments.get(name) for name in EventArguments.__struct_encode_fields__
        ]
        event.args = arguments = EventArguments(*values)
        arguments.shape, arguments.types = _text_of(arguments.shape), _text_of(arguments.types)
    return event


def _text_of(value: object) -> Raw:
    return NO_TEXT if value is None else Raw(json.dumps(value).encode())
