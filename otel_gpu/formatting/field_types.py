"""
Types of fields that hold more than a plain type: bounds, patterns, sets of values.

The JSON schemas of documents are generated from types (``tools/json_schemas.py``). There a plain
``int`` or ``float`` is at least 0.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

Signed = Annotated[int, Meta()]
"""An integer that can be below 0."""
Positive = Annotated[int, Meta(ge=1)]
AnyFloat = Annotated[float, Meta()]
Share = Annotated[float, Meta(ge=0, le=1)]
NonEmpty = Annotated[str, Meta(min_length=1)]
TraceId = Annotated[bytes, Meta(max_length=16)]
SpanId = Annotated[bytes, Meta(max_length=8)]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
"""64 bits as hexadecimal digits."""
OrNan = Annotated[float, Meta(extra={"null": True})]
"""A float that can be NaN, which JSON writes as null."""


def one_of(values: Iterable[str]) -> Meta:
    """Return the constraint of a text that is one of some values."""
    return Meta(extra_json_schema={"enum": [str(value) for value in values]})
