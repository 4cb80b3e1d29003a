"""ELF files made by hand, with symbol tables that no linker would make."""

import struct
from pathlib import Path

NAMES = b"\0.dynsym\0.dynstr\0.shstrtab\0.gnu.version\0"
_SECTIONS_AT, _NAMES_AT, _CONTENT_AT = 4096, 8192, 1 << 20
_PROGBITS, _STRTAB, _DYNSYM, _VERSYM = 1, 3, 11, 0x6FFFFFFF


def symbol(name: int, *, value: int = 0x1000) -> bytes:
    """Return the row of a function in the first section, whose name begins at an offset."""
    return struct.pack("<IBBHQQ", name, 0x12, 0, 1, value, 16)


def write_elf(
    path: Path,
    *,
    symbols: bytes = b"",
    texts: bytes = b"",
    versions: bytes = b"",
    symbols_bytes: int = 0,
    texts_bytes: int = 0,
    versions_bytes: int = 0,
) -> Path:
    """
    Write a 64-bit ELF file with ``.dynsym``, ``.dynstr`` and ``.gnu.version``; return its path.

    Where a size in bytes is larger than the content, the rest of the section is a hole in the file.
    """
    sizes = [
        max(len(content), size)
        for content, size in (
            (symbols, symbols_bytes),
            (texts, texts_bytes),
            (versions, versions_bytes),
        )
    ]
    places = [_CONTENT_AT]
    for size in sizes:
        places.append(places[-1] + (size + 4095) // 4096 * 4096)
    headers = [
        bytes(64),
        _section(b".dynsym", _DYNSYM, places[0], sizes[0], link=2),
        _section(b".dynstr", _STRTAB, places[1], sizes[1]),
        _section(b".shstrtab", _STRTAB, _NAMES_AT, len(NAMES)),
        _section(b".gnu.version", _VERSYM, places[2], sizes[2], link=1),
    ]
    load = struct.pack("<IIQQQQQQ", _PROGBITS, 5, 0, 0, 0, 1 << 20, 1 << 20, 4096)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        *(b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, _SECTIONS_AT, 0),
        *(64, 56, 1, 64, len(headers), 3),
    )
    with path.open("wb") as file:
        file.write(header + load)
        for place, content in (
            (_SECTIONS_AT, b"".join(headers)),
            (_NAMES_AT, NAMES),
            *zip(places, (symbols, texts, versions), strict=False),
        ):
            file.seek(place)
            file.write(content)
        file.truncate(max(places[-1], file.tell()))
    return path


def _section(name: bytes, kind: int, offset: int, size: int, *, link: int = 0) -> bytes:
    at = NAMES.index(name)
    return struct.pack("<IIQQQQIIQQ", at, kind, 2, 0, offset, size, link, 0, 8, 24)
