"""What the kernel side's records say of themselves, before anybody decodes them."""

from typing import NamedTuple

from otel_gpu import wire


class Header(NamedTuple):
    """``struct record_header``: what every record begins with."""

    kind: int
    flags: int
    size: int
    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int


def header_of(record: bytes) -> Header:
    """Return the header of a record of the kernel side."""
    return Header._make(wire.RECORD_HEADER.unpack_from(record))
