"""Reads what a process's own OpenTelemetry SDK publishes about it (OTEP 4719)."""

# Some facts about the process context
# ------------------------------------
#
# An SDK may publish its Resource for readers outside the process. It writes a header
# into a mapping whose name holds OTEL_CTX, and says there where the payload is:
#
#   offset 0   char[8]  "OTEL_CTX", written last
#   offset 8   u32      version, 2
#   offset 12  u32      size of the payload in bytes
#   offset 16  u64      when it was published; 0 while it is being changed
#   offset 24  u64      address of the payload, anywhere in the process
#
# The payload is a protobuf ProcessContext, whose field 1 is an OTLP Resource. Nothing
# is locked: a reader reads the header, the payload, and the header again, and what it
# has is consistent only when both headers are equal.
#
# What this means for us: everything here comes from a process that may be hostile. All
# sizes are bounded before they are used, and whatever does not parse is as if it had not
# been published. The small parser below reads just the messages that occur here, so that
# starting the agent does not wait for the protobuf runtime.

import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

MAX_MAPS_BYTES = 16 * 1024 * 1024
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_ATTRIBUTES = 128
MAX_VALUE_CHARACTERS = 4096
MAX_ARRAY_VALUES = 64

AttributeValue = str | bool | int | float | list[str | bool | int | float]

_HEADER = struct.Struct("<8sIIQQ")
_SIGNATURE = b"OTEL_CTX"
_VERSION = 2
_ATTEMPTS = 5
_MAPPING = re.compile(
    rb"^([0-9a-f]{1,16})-[0-9a-f]{1,16} r[^ ]* [^ ]+ [^ ]+ [^ ]+ +"
    rb"(?:/memfd:OTEL_CTX|\[anon_shmem:OTEL_CTX\]|\[anon:OTEL_CTX\])",
    re.MULTILINE,
)
_READ_BYTES = 256 * 1024


def read_process_context(pid: int, proc: Path = Path("/proc")) -> dict[str, AttributeValue]:
    """
    Return the resource attributes that a process publishes about itself.

    Empty when it publishes none, is gone, may not be read, or publishes nonsense.
    """
    try:
        maps = _read_maps(f"{proc}/{pid}/maps")
        if _SIGNATURE not in maps:
            return {}
        memory = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        for mapping in _MAPPING.finditer(maps):
            payload = _read_payload(memory, int(mapping[1], 16))
            if payload is not None:
                return parse_process_context(payload)
    finally:
        os.close(memory)
    return {}


def parse_process_context(payload: bytes) -> dict[str, AttributeValue]:
    """
    Decode a ``ProcessContext`` message into the attributes of its resource.

    Values that are not text, numbers, truth values or lists of these are left out.
    Empty when the message is malformed anywhere.
    """
    attributes: dict[str, AttributeValue] = {}
    try:
        for number, resource in _fields(payload):
            if number != 1 or not isinstance(resource, bytes):
                continue
            for inner, pair in _fields(resource):
                if inner == 1 and isinstance(pair, bytes) and len(attributes) < MAX_ATTRIBUTES:
                    key, value = _key_value(pair)
                    if key and value is not None:
                        attributes[key] = value
    except _MalformedError:
        return {}
    return attributes


def _read_maps(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        pieces = []
        left = MAX_MAPS_BYTES
        while left > 0 and (piece := os.read(descriptor, min(left, _READ_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _read_payload(memory: int, header_address: int) -> bytes | None:
    # None: not a context, or one that changed under every attempt.
    try:
        for _ in range(_ATTEMPTS):
            header = os.pread(memory, _HEADER.size, header_address)
            if len(header) < _HEADER.size:
                return None
            signature, version, size, published_ns, address = _HEADER.unpack(header)
            if signature != _SIGNATURE or version != _VERSION or size > MAX_PAYLOAD_BYTES:
                return None
            if published_ns == 0 or address == 0:
                continue
            payload = os.pread(memory, size, address)
            if os.pread(memory, _HEADER.size, header_address) == header:
                return payload if len(payload) == size else None
    except (OSError, OverflowError):
        # Unmapped meanwhile, or an address beyond what pread takes.
        return None
    return None


# Protobuf, as far as it is needed
# --------------------------------


class _MalformedError(ValueError):
    """The bytes are not a protobuf message of the expected shape."""


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    # Wire types: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        wire_type = tag & 7
        if wire_type == 0:
            number, position = _varint(message, position)
            yield tag >> 3, number
            continue
        if wire_type == 2:  # noqa: PLR2004 - named above
            length, position = _varint(message, position)
        elif wire_type == 1:
            length = 8
        elif wire_type == 5:  # noqa: PLR2004 - named above
            length = 4
        else:
            raise _MalformedError
        end = position + length
        if end > len(message):
            raise _MalformedError
        yield tag >> 3, message[position:end]
        position = end


def _varint(message: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            raise _MalformedError
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return number & 0xFFFF_FFFF_FFFF_FFFF, position
    raise _MalformedError


def _key_value(pair: bytes) -> tuple[str, AttributeValue | None]:
    key = ""
    value: AttributeValue | None = None
    for number, content in _fields(pair):
        if not isinstance(content, bytes):
            raise _MalformedError
        if number == 1:
            key = _text(content)
        elif number == 2:  # noqa: PLR2004 - KeyValue.value
            value = _any_value(content)
    return key, value


def _any_value(message: bytes) -> AttributeValue | None:
    value: AttributeValue | None = None
    for number, content in _fields(message):
        if number == 5 and isinstance(content, bytes):  # noqa: PLR2004 - AnyValue.array_value
            value = _array(content)
        else:
            value = _scalar(number, content)
    return value


def _array(message: bytes) -> AttributeValue:
    values: list[str | bool | int | float] = []
    for number, content in _fields(message):
        if number == 1 and isinstance(content, bytes) and len(values) < MAX_ARRAY_VALUES:
            for inner, inner_content in _fields(content):
                value = _scalar(inner, inner_content)
                if value is not None:
                    values.append(value)
    return values


def _scalar(number: int, content: bytes | int) -> str | bool | int | float | None:
    # AnyValue: 1 string, 2 bool, 3 int64, 4 double; key-value lists and bytes are left out.
    match number, content:
        case 1, bytes():
            return _text(content)
        case 2, int():
            return bool(content)
        case 3, int():
            return content - (1 << 64) if content >> 63 else content
        case 4, bytes() if len(content) == 8:  # noqa: PLR2004 - a double
            double: float = struct.unpack("<d", content)[0]
            # JSON, which carries the facts, has no word for the others.
            return double if math.isfinite(double) else None
        case _:
            return None


def _text(content: bytes) -> str:
    return content.decode(errors="replace")[:MAX_VALUE_CHARACTERS]
