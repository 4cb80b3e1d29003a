"""What the kernel side's records say of themselves, before anybody decodes them."""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_gpu import wire


class Header(NamedTuple):
    """``struct record_header``: what every record begins with."""

    kind: int
    flags: int
    size: int
    ktime_ns: int
    image_ktime_ns: int
    pid: int
    tid: int


def header_of(record: bytes) -> Header:
    """Return the header of a record of the kernel side."""
    return Header._make(wire.RECORD_HEADER.unpack_from(record))


def fields_of(layout: struct.Struct, names: Sequence[str], record: bytes) -> dict[str, Any]:
    """Return all fields of such a record by name; the header's are among them."""
    return dict(zip(names, layout.unpack(record), strict=True))
