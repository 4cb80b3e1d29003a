"""
What an ELF file exports: where its functions are, and its build id.

Only headers and symbol tables are read. A driver library is a hundred megabytes
and exports thousands of symbols, so symbols are unpacked in bulk.
"""

import mmap
import os
import struct
from typing import BinaryIO

from otel_gpu.stacks.elf_image import ElfImage, Section

_SYMBOL = struct.Struct("<IBBHQQ")
_TYPE_MASK = 0xF
_FUNCTION = 2
_HIDDEN_VERSION = 0x8000
_MAX_TABLE_BYTES = 512 << 20
_PREFIXES = (
    *(
        b"cu",
        b"nccl",
        b"ibv_",
        b"__cudaGetKernel\0",
        b"_dl_debug_state\0",
        b"_r_debug\0",
        b"_PyRuntime\0",
        b"otel_gpu_door_",
        b"Py_Version\0",
    ),
    *(b"fork\0", b"vfork\0", b"posix_spawn", b"_ZN3c1027report", b"otel_gpu_"),
)


class ElfSymbols:
    """
    The symbols of one file that may get a probe.

    Attributes:
        functions: (name, file offset) of each defined function.
        addresses: Name to virtual address, of functions and objects.
        sizes: Name to size in bytes.
        code_pages: File offset to virtual address of the pages at which code segments begin.
        build_id: The GNU build id in hex, or None.

    Raises:
        ValueError: It is not a 64-bit little-endian ELF file, or it is damaged.
    """

    def __init__(self, stream: BinaryIO) -> None:
        image = ElfImage(os.dup(stream.fileno()))
        self._image = image
        # A mapping begins at a page, a segment may not.
        self.code_pages = {
            _page(segment.file_offset): _page(segment.address)
            for segment in image.segments
            if segment.executable
        }
        self.build_id = image.build_id
        self.addresses: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.functions: list[tuple[str, int]] = []
        for name in (".dynsym", ".symtab"):
            section = image.section_header(name)
            if section is not None and section.link < len(image.sections):
                self._read_table(section, image.sections[section.link])
        image.close()

    def _read_table(self, table: Section, names: Section) -> None:
        text = self._content(names)
        if not any(prefix in text for prefix in _PREFIXES):
            return
        data = self._content(table)
        whole = len(data) - len(data) % _SYMBOL.size
        hidden = self._hidden_versions() if table.name == ".dynsym" else frozenset()
        later = []
        rows = enumerate(_SYMBOL.iter_unpack(data[:whole]))
        wanted = ((n, row) for n, row in rows if row[3] and text.startswith(_PREFIXES, row[0]))
        for number, row in wanted:
            if number in hidden:
                later.append(row)
            else:
                self._add_symbol(text, row)
        # Of several versions of a function the default one, which the others call.
        for row in later:
            self._add_symbol(text, row)

    def _hidden_versions(self) -> frozenset[int]:
        """Return which dynamic symbols are of a version that only programs linked with it use."""
        section = self._image.section_header(".gnu.version")
        data = self._content(section) if section is not None else b""
        versions = struct.unpack(f"<{len(data) // 2}H", data[: len(data) & ~1])
        return frozenset(n for n, version in enumerate(versions) if version & _HIDDEN_VERSION)

    def _add_symbol(self, text: bytes, row: tuple[int, ...]) -> None:
        name_offset, info, _other, _section, value, size = row
        name = text[name_offset : text.find(b"\0", name_offset)].decode(errors="replace")
        if name in self.addresses:
            return
        self.addresses[name] = value
        self.sizes[name] = size
        if info & _TYPE_MASK == _FUNCTION:
            file_offset = self.file_offset(value)
            if file_offset is not None:
                self.functions.append((name, file_offset))

    def file_offset(self, address: int) -> int | None:
        """Return where in the file a virtual address is loaded from."""
        return self._image.file_offset_of(address)

    def _content(self, section: Section) -> bytes:
        if section.size_bytes > _MAX_TABLE_BYTES:
            return b""
        return self._image.read_file(section.file_offset, section.size_bytes)


def exported_functions(path: str) -> list[tuple[str, int]]:
    """
    Return the functions of a file that probes may go to, as (name, file offset).

    Raises:
        OSError: It cannot be read.
        ValueError: It is no ELF file that we understand.
    """
    # A path can lead to a pipe, whose writer must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        return ElfSymbols(stream).functions


def _page(address: int) -> int:
    return address - address % mmap.PAGESIZE
