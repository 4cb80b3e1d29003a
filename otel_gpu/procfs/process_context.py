"""Reads the process context that an OpenTelemetry SDK publishes (OTEP 4719)."""

# Some facts about the process context
# ------------------------------------
#
# An SDK can publish its Resource for readers outside the process. It writes a header
# into a mapping whose name contains OTEL_CTX; the header points to the payload:
#
#   offset 0   char[8]  "OTEL_CTX", written last
#   offset 8   u32      version, 2
#   offset 12  u32      size of the payload in bytes
#   offset 16  u64      when it was published; 0 while it is being changed
#   offset 24  u64      address of the payload, anywhere in the process
#
# The payload is a protobuf ProcessContext, whose field 1 is an OTLP Resource. Nothing
# is locked: a reader reads the header, the payload, and the header again. The payload is
# consistent only if both headers are equal.
#
# Consequences: the process can be hostile. All sizes are bounded before they are used, and
# a context that does not parse counts as not published. A read of its memory can block for
# ever, which ``process_memory`` handles. The protobuf runtime is only imported for a process
# that publishes a context.

import contextlib
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from otel_gpu.procfs.mapped_files import MAX_MAPS_BYTES
from otel_gpu.procfs.process_memory import memory_of
from otel_gpu.procfs.reader import read_process_file

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_ATTRIBUTES = 128
MAX_VALUE_CHARACTERS = 4096
MAX_ARRAY_VALUES = 64

AttributeValue = str | bool | int | float | list[str | bool | int | float]

_HEADER = struct.Struct("<8sIIQQ")
_SIGNATURE = b"OTEL_CTX"
_VERSION = 2
_RESOURCE = 1
_ATTEMPTS = 5
_MAPPING = re.compile(
    rb"^([0-9a-f]{1,16})-[0-9a-f]{1,16} r[^ ]* [^ ]+ [^ ]+ [^ ]+ +"
    rb"(?:/memfd:OTEL_CTX|\[anon_shmem:OTEL_CTX\]|\[anon:OTEL_CTX\])",
    re.MULTILINE,
)


def read_process_context(pid: int, proc: Path = Path("/proc")) -> dict[str, AttributeValue]:
    """
    Return the resource attributes that a process publishes.

    Empty: it publishes none or invalid ones, has ended, or is not readable.
    """
    maps = read_process_file(pid, "maps", limit_bytes=MAX_MAPS_BYTES, proc=proc)
    if _SIGNATURE not in maps:
        return {}
    with memory_of(pid, proc) as read:
        for mapping in _MAPPING.finditer(maps):
            payload = _read_payload(read, int(mapping[1], 16))
            if payload is not None:
                return parse_process_context(payload)
    return {}


def parse_process_context(payload: bytes) -> dict[str, AttributeValue]:
    """
    Decode a ``ProcessContext`` message into the attributes of its resource.

    Values other than texts, numbers, bools and lists of these are left out. A malformed message
    has no attributes.
    """
    from google.protobuf.empty_pb2 import Empty  # noqa: PLC0415 -- see above
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource  # noqa: PLC0415

    attributes: dict[str, AttributeValue] = {}
    try:
        fields = UnknownFieldSet(Empty.FromString(payload))
        for field in map(fields.__getitem__, range(len(fields))):
            if field.field_number == _RESOURCE and isinstance(field.data, bytes):
                for pair in Resource.FromString(field.data).attributes[:MAX_ATTRIBUTES]:
                    value = _value(pair.value)
                    if pair.key and value is not None and len(attributes) < MAX_ATTRIBUTES:
                        attributes[pair.key[:MAX_VALUE_CHARACTERS]] = value
    except DecodeError:
        return {}
    return attributes


def _read_payload(read: Callable[[int, int], bytes], header_address: int) -> bytes | None:
    # None: not a context, or it changed during every attempt.
    # The error: a short header.
    with contextlib.suppress(struct.error):
        for _ in range(_ATTEMPTS):
            header = read(header_address, _HEADER.size)
            signature, version, size, published_ns, address = _HEADER.unpack(header)
            if signature != _SIGNATURE or version != _VERSION or size > MAX_PAYLOAD_BYTES:
                break
            if published_ns == 0 or address == 0:
                continue
            payload = read(address, size)
            if read(header_address, _HEADER.size) == header:
                return payload if len(payload) == size else None
    return None


def _value(value: "AnyValue") -> AttributeValue | None:
    if value.HasField("array_value"):
        found = map(_scalar, value.array_value.values[:MAX_ARRAY_VALUES])
        return [scalar for scalar in found if scalar is not None]
    return _scalar(value)


def _scalar(value: "AnyValue") -> str | bool | int | float | None:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value[:MAX_VALUE_CHARACTERS]
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        # JSON cannot represent the other numbers.
        case "double_value" if math.isfinite(value.double_value):
            return value.double_value
    return None
