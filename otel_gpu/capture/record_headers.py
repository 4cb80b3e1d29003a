"""Headers of the kernel side's records, read without decoding the rest."""

from typing import NamedTuple

from otel_gpu import wire


class Header(NamedTuple):
    """``struct record_header``, with which every record begins."""

    kind: int
    flags: int
    size: int
    ktime_ns: int
    program_ktime_ns: int
    pid: int
    tid: int


def header_of(record: bytes) -> Header:
    """Unpack the header of a record."""
    return Header._make(wire.RECORD_HEADER.unpack_from(record))
