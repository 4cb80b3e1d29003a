"""C structures of the wire: layout and names of their fields."""

import struct
from collections.abc import Iterator
from typing import Any


class CStruct:
    """
    One structure, little-endian and without implicit padding.

        >>> place = CStruct("address:Q pid:I 4x comm:16s")
        >>> place.size, place.fields, place.offset_of("comm")
        (32, ('address', 'pid', 'comm'), 16)

    Args:
        text: Fields as ``name:code``, with codes of the ``struct`` module; a code alone is padding.
            An array of numbers (``name:3I``) gives the values ``name_0`` to ``name_2``.
        header: A structure at its start.

    Attributes:
        text: Fields, with those of the header.
        format: For the ``struct`` module.
        size: In bytes.
        fields: Names of the values that it unpacks to.
        pack, pack_into, unpack, unpack_from, iter_unpack: Those of ``struct.Struct``.
    """

    def __init__(self, text: str, header: "CStruct | None" = None) -> None:
        self.text: str = f"{header.text} {text}" if header else text
        self.format = "<"
        fields: list[str] = []
        for field in self.text.split():
            name, _, code = field.rpartition(":")
            self.format += code
            count = code[:-1]
            if name and count and code[-1] != "s":
                fields += (f"{name}_{index}" for index in range(int(count)))
            elif name:
                fields.append(name)
        self.fields = tuple(fields)
        packed = struct.Struct(self.format)
        self.size = packed.size
        self.pack, self.pack_into = packed.pack, packed.pack_into
        self.unpack, self.unpack_from = packed.unpack, packed.unpack_from
        self.iter_unpack = packed.iter_unpack

    def named(self, record: bytes) -> dict[str, Any]:
        """Return the values by name of bytes that start with this structure."""
        return dict(zip(self.fields, self.unpack_from(record), strict=True))

    def all_named(self, records: bytes) -> Iterator[dict[str, Any]]:
        """Return the values by name of each structure of an array."""
        return (dict(zip(self.fields, values, strict=True)) for values in self.iter_unpack(records))

    def build(self, **values: object) -> bytes:
        """Return the bytes of values by name, others 0 or empty; ``TypeError``: an unknown name."""
        if unknown := values.keys() - set(self.fields):
            raise TypeError(f"{', '.join(sorted(unknown))}: not fields; use some of {self.fields}")
        named = self.named(bytes(self.size)) | values
        return self.pack(*map(named.__getitem__, self.fields))

    def before(self, field: str) -> "CStruct":
        """Return the part before a field; some structures are sent without their end."""
        return CStruct(self.text.partition(f" {field}:")[0])

    def offset_of(self, field: str) -> int:
        """Return the offset of a field in bytes."""
        values = list(self.unpack(bytes(self.size)))
        at = self.fields.index(field)
        values[at] = b"\1" if isinstance(values[at], bytes) else 1
        return int(self.pack(*values).index(1))
