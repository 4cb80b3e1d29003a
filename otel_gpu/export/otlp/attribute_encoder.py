"""
Attributes in OTLP's wire format.

A protobuf message is a sequence of fields: a tag, then a value. A tag is ``number << 3 | type``;
type 0 is a varint, 1 eight bytes, 2 a length and that many bytes. The messages of this module, with
their tags:

    KeyValue      0a key, 12 AnyValue
    AnyValue      0a string, 10 bool, 18 int, 21 double, 2a ArrayValue,
                  32 KeyValueList, 3a bytes          (exactly one; none is null)
    ArrayValue    0a AnyValue …
    KeyValueList  0a KeyValue …

A field at its default is omitted, except inside AnyValue, where the tag gives the type. Negative
integers are the ten bytes of their two's complement.

Most spans share the same few attributes, so encoded bytes are cached by key and value. ``True == 1
== 1.0`` in Python but not in OTLP, hence one cache per type.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final

from otel_gpu.export.spans.finished import SharedAttributes

_logger = logging.getLogger(__name__)

_MAX_CACHED = 1024
_MAX_STRING_BYTES = 8 << 20
_INT64_MIN, _INT64_END = -(1 << 63), 1 << 63
_UINT64_END = 1 << 64
_ONE_BYTE = 0x80

_pack_double = Struct("<d").pack


def varint(value: int) -> bytes:
    """Return a non-negative number, seven bits to a byte, lowest first."""
    if value < _SMALL_COUNT:
        return _SMALL[value]
    return _long_varint(value)


def _long_varint(value: int) -> bytes:
    out = bytearray()
    while value >= _ONE_BYTE:
        out.append(value & 0x7F | _ONE_BYTE)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL_COUNT: Final = 2048
_SMALL = tuple(_long_varint(number) for number in range(_SMALL_COUNT))


def field(tag: bytes, body: bytes) -> bytes:
    """Return a length-delimited field: a string, bytes or a message."""
    return tag + varint(len(body)) + body


def text_field(tag: bytes, text: str) -> bytes:
    """Return a string field, or nothing for an empty text: defaults are omitted."""
    return field(tag, _utf8(text)) if text else b""


def _utf8(text: str) -> bytes:
    # Half a surrogate pair becomes a question mark: a receiver refuses the whole request for one
    # string that is not UTF-8.
    return text.encode("utf-8", "replace")


class AttributeEncoder:
    """
    Encodes attributes as repeated ``KeyValue`` fields, each with the tag of its parent message.
    """

    def __init__(self, tag: bytes) -> None:
        self._tag = tag
        self._strings: dict[tuple[str, object], bytes] = {}
        self._ints: dict[tuple[str, object], bytes] = {}
        self._bools: dict[tuple[str, object], bytes] = {}
        self._caches = {str: self._strings, int: self._ints, bool: self._bools}
        self._tuples: dict[tuple[object, ...], bytes] = {}
        self._double_heads: dict[str, bytes] = {}
        self._string_bytes = 0

    def encode(self, pairs: Iterable[tuple[str, object]]) -> bytes:
        """
        Return the fields, concatenated.

        Shared attributes keep their bytes, since hashing a stack's text costs more than encoding a
        whole span. A value that OTLP cannot hold is omitted with a warning, as in the standard
        encoder.
        """
        if type(pairs) is SharedAttributes:
            if (data := pairs.wire.get(self._tag)) is None:
                data = pairs.wire[self._tag] = b"".join([self._encode_pair(*p) for p in pairs])
            return data
        fields = []
        find_string, find_int = self._strings.get, self._ints.get
        for pair in pairs:
            kind = type(pair[1])
            # Nearly all are of these two types.
            if kind is str:
                data = find_string(pair)
            elif kind is int:
                data = find_int(pair)
            else:
                data = self._bools.get(pair) if kind is bool else None
            fields.append(self._miss(pair, self._caches.get(kind)) if data is None else data)
        return b"".join(fields)

    def _miss(
        self, pair: tuple[str, object], cache: dict[tuple[str, object], bytes] | None
    ) -> bytes:
        key, value = pair
        if type(value) is float:
            return self._double(key, value)
        if type(value) is tuple:
            return self._tuple(key, value)
        data = self._encode_pair(key, value)
        if cache is not None:
            is_full = len(cache) >= _MAX_CACHED
            if cache is self._strings:
                # Most strings are short; stacks are not.
                is_full = is_full or self._string_bytes > _MAX_STRING_BYTES
                self._string_bytes = len(data) + (0 if is_full else self._string_bytes)
            if is_full:
                cache.clear()
            cache[pair] = data
        return data

    def _double(self, key: str, value: float) -> bytes:
        head = self._double_heads.get(key)
        if head is None:
            if len(self._double_heads) >= _MAX_CACHED:
                self._double_heads.clear()
            head = self._double_heads[key] = self._encode_pair(key, value)[:-8]
        return head + _pack_double(value)

    def _tuple(self, key: str, value: tuple[object, ...]) -> bytes:
        identity = (key, value, *map(type, value))
        try:
            data = self._tuples.get(identity)
        except TypeError:  # an item that cannot be hashed
            return self._encode_pair(key, value)
        if data is None:
            data = self._encode_pair(key, value)
            if all(type(item) in self._caches for item in value):
                if len(self._tuples) >= _MAX_CACHED:
                    self._tuples.clear()
                self._tuples[identity] = data
        return data

    def _encode_pair(self, key: str, value: object) -> bytes:
        try:
            return field(self._tag, _key_value(key, value))
        except (TypeError, ValueError) as error:
            _logger.warning("attribute %s has no form in OTLP: %s", key, error)
            return b""


def _key_value(key: str, value: object) -> bytes:
    return text_field(b"\x0a", key) + field(b"\x12", _any_value(value))


def _any_value(value: object) -> bytes:  # noqa: PLR0911 -- an AnyValue, one return a kind
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, str):
        return field(b"\x0a", _utf8(value))
    if isinstance(value, int):
        if not _INT64_MIN <= value < _INT64_END:
            raise ValueError(f"{value} does not fit 64 bits")
        return b"\x18" + varint(value if value >= 0 else value + _UINT64_END)
    if isinstance(value, float):
        return b"\x21" + _pack_double(value)
    if isinstance(value, bytes):
        return field(b"\x3a", value)
    if isinstance(value, Sequence):
        return field(b"\x2a", b"".join(field(b"\x0a", _any_value(item)) for item in value))
    if isinstance(value, Mapping):
        pairs = (field(b"\x0a", _key_value(str(key), item)) for key, item in value.items())
        return field(b"\x32", b"".join(pairs))
    raise TypeError(f"type {type(value).__name__}")
