"""
What an ELF file exports: where its functions are, and its build id.

Only headers and symbol tables are read. A driver library is a hundred megabytes
and exports thousands of symbols, so sections are found by pyelftools and symbols
unpacked in bulk.
"""

import os
import struct
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

_SYMBOL = struct.Struct("<IBBHQQ")
_TYPE_MASK = 0xF
_WORD_BITS = 64
_FUNCTION = 2
_MAX_TABLE_BYTES = 512 << 20
_PREFIXES = (
    b"cu",
    b"_dl_debug_state\0",
    b"_r_debug\0",
    b"fork\0",
    b"vfork\0",
    b"posix_spawn",
    b"_PyRuntime\0",
)


class ElfSymbols:
    """
    The symbols of one file that somebody here may want a probe on.

    Attributes:
        functions: (name, file offset) of each defined function.
        addresses: Name to virtual address, of functions and objects.
        sizes: Name to size in bytes.
        build_id: The GNU build id in hex, or None.

    Raises:
        ValueError: It is not a 64-bit little-endian ELF file, or it is damaged.
    """

    def __init__(self, stream: BinaryIO) -> None:
        try:
            elf = ELFFile(stream)
            if elf.elfclass != _WORD_BITS or not elf.little_endian:
                message = "not a 64-bit little-endian ELF file"
                raise ValueError(message)
            self._segments = [
                (segment["p_vaddr"], segment["p_filesz"], segment["p_offset"])
                for segment in elf.iter_segments()
                if segment["p_type"] == "PT_LOAD"
            ]
            self.build_id = _build_id(elf)
            self.addresses: dict[str, int] = {}
            self.sizes: dict[str, int] = {}
            self.functions: list[tuple[str, int]] = []
            for name in (".dynsym", ".symtab"):
                section = elf.get_section_by_name(name)
                if section is not None:
                    names = elf.get_section(section["sh_link"])
                    self._read_table(stream, section, names)
        except (ELFError, KeyError, AttributeError, TypeError, struct.error) as error:
            message = f"not a readable ELF file: {error}"
            raise ValueError(message) from error

    def _read_table(self, stream: BinaryIO, table: object, names: object) -> None:
        text = _section_bytes(stream, names)
        if not any(prefix in text for prefix in _PREFIXES):
            return
        data = _section_bytes(stream, table)
        whole = len(data) - len(data) % _SYMBOL.size
        for name_offset, info, _other, section, value, size in _SYMBOL.iter_unpack(data[:whole]):
            if not section or not text.startswith(_PREFIXES, name_offset):
                continue
            name = text[name_offset : text.find(b"\0", name_offset)].decode(errors="replace")
            if name in self.addresses:
                continue
            self.addresses[name] = value
            self.sizes[name] = size
            if info & _TYPE_MASK == _FUNCTION:
                file_offset = self.file_offset(value)
                if file_offset is not None:
                    self.functions.append((name, file_offset))

    def address_at(self, file_offset: int) -> int | None:
        """Return the virtual address of a place in the file."""
        for start, size, segment_offset in self._segments:
            # A mapping starts at a page, a segment may not.
            if segment_offset - 4096 < file_offset < segment_offset + size:
                return int(start + file_offset - segment_offset)
        return None

    def file_offset(self, address: int) -> int | None:
        """Return where in the file a virtual address is loaded from."""
        for start, size, file_offset in self._segments:
            if start <= address < start + size:
                return int(address - start + file_offset)
        return None


def exported_functions(path: str) -> list[tuple[str, int]]:
    """
    Return the functions of a file that probes may go to, as (name, file offset).

    Raises:
        OSError: It cannot be read.
        ValueError: It is no ELF file that we understand.
    """
    # A path can lead to what is no plain file; nobody is to wait for a pipe's writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        return ElfSymbols(stream).functions


def _section_bytes(stream: BinaryIO, section: object) -> bytes:
    header = section.header  # type: ignore[attr-defined]
    size_bytes = int(header["sh_size"])
    if size_bytes > _MAX_TABLE_BYTES or header["sh_type"] == "SHT_NOBITS":
        return b""
    stream.seek(header["sh_offset"])
    return stream.read(size_bytes)


def _build_id(elf: ELFFile) -> str | None:
    section = elf.get_section_by_name(".note.gnu.build-id")
    if isinstance(section, NoteSection):
        for note in section.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return str(note["n_desc"])
    return None
