"""
Reads the functions that an ELF file exports, and its build id.

Only headers and symbol tables are read. A driver library has a hundred megabytes and exports thousands
of symbols, so symbols are unpacked in bulk.

Files are untrusted input: any file can have the name of a CUDA library and tables of any size. So names are
read in windows, with all symbols for each window, which bounds memory. Tables above a size, and tables
of sparse files, are refused, which bounds time.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO

from otel_gpu.procfs.proc_files import stream_of
from otel_gpu.stacks.symbols.elf_file import ElfImage, Section

_TABLES = (".dynsym", ".symtab")
_SYMBOL = struct.Struct("<IBBHQQ")
# A row is three 64-bit numbers; the second is the address.
_ROW_NUMBERS, _VALUE = 3, 1
_TYPE_MASK = 0xF
_FUNCTION = 2
_HIDDEN_VERSION = 0x8000
# More than any known library has. Reading this much takes three seconds.
_MAX_TABLE_BYTES = 64 << 20
_MAX_NAMES_BYTES = 128 << 20
_WINDOW_BYTES = 16 << 20
_MAX_NAME_BYTES = 512
_CHUNK_BYTES = _SYMBOL.size << 15
_VERSION_BYTES = 2
_MAX_FOUND = 1 << 16
_PREFIXES = (
    *(
        b"cu",
        b"nccl",
        b"ibv_",
        b"__cudaGetKernel\0",
        b"_dl_debug_state\0",
        b"_r_debug\0",
        b"_dl_debug_addr\0",
        b"_PyRuntime\0",
        b"otel_gpu_preload_",
        b"Py_Version\0",
    ),
    *(b"fork\0", b"vfork\0", b"posix_spawn", b"_ZN3c1027report", b"otel_gpu_"),
)


class ElfSymbols:
    """
    The symbols of one file whose names begin with ``prefixes``; by default those that can get a probe.

    Attributes:
        functions: (name, file offset) of each defined function.
        addresses: Virtual addresses of functions and objects by name.
        sizes: Sizes in bytes by name.
        code_pages: Virtual addresses by file offset, of the pages at which code segments begin.
        build_id: The GNU build id in hex, or None.
        machine: ``e_machine`` of ELF.

    Raises:
        ValueError: It is not a 64-bit little-endian ELF file, it is damaged or sparse, or its
            symbol tables are too large.
    """

    def __init__(self, stream: BinaryIO, prefixes: tuple[bytes, ...] = _PREFIXES) -> None:
        self._prefixes = prefixes
        elf = ElfImage(os.dup(stream.fileno()))
        self._elf = elf
        # Mappings begin at page boundaries, segments need not.
        self.code_pages = {
            _page(segment.file_offset): _page(segment.address)
            for segment in elf.segments
            if segment.executable
        }
        self.build_id = elf.build_id
        self.machine = elf.machine
        self.addresses: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self.functions: list[tuple[str, int]] = []
        for name in _TABLES:
            section = elf.section_header(name)
            if section is not None and section.link < len(elf.sections):
                self._read_table(section, elf.sections[section.link])
        elf.close()

    def starts_among(self, stream: BinaryIO, addresses: set[int]) -> set[int]:
        """Return which of these addresses are the start of any symbol."""
        elf = ElfImage(os.dup(stream.fileno()))
        found: set[int] = set()
        with closing(elf):
            for table in filter(None, map(elf.section_header, _TABLES)):
                end = table.file_offset + min(table.size_bytes, _MAX_TABLE_BYTES)
                for begin in range(table.file_offset, end, _CHUNK_BYTES):
                    data = elf.read_file(begin, min(_CHUNK_BYTES, end - begin))
                    rows = memoryview(data)[: len(data) - len(data) % _SYMBOL.size]
                    found.update(addresses.intersection(rows.cast("Q")[_VALUE::_ROW_NUMBERS]))
        return found

    def _read_table(self, table: Section, names: Section) -> None:
        if table.size_bytes > _MAX_TABLE_BYTES or names.size_bytes > _MAX_NAMES_BYTES:
            raise ValueError(f"its {table.name} is too large for a library")
        if not self._elf.is_on_disk(table.size_bytes + names.size_bytes):
            raise ValueError(f"its {table.name} is missing from the disk: the file is sparse")
        found = sorted(self._find_rows(table, names))
        versions = self._elf.section_header(".gnu.version") if found else None
        later = []
        for number, name, row in found:
            if versions and table.name == ".dynsym" and self._is_hidden(versions, number):
                later.append((name, row))
            else:
                self._add_symbol(name, row)
        # Of several versions of a symbol, the default one comes first and is used.
        for name, row in later:
            self._add_symbol(name, row)

    def _find_rows(
        self, table: Section, names: Section
    ) -> Iterator[tuple[int, bytes, tuple[int, ...]]]:
        # Number, name and row of matching symbols.
        count = 0
        for begin in range(0, names.size_bytes, _WINDOW_BYTES):
            # Windows overlap, so that a name at the end of one is complete.
            size = min(_WINDOW_BYTES + _MAX_NAME_BYTES, names.size_bytes - begin)
            text = self._elf.read_file(names.file_offset + begin, size)
            if not any(prefix in text for prefix in self._prefixes):
                continue
            for number, row in self._rows(table):
                at = row[0] - begin
                if not (row[3] and 0 <= at < _WINDOW_BYTES and text.startswith(self._prefixes, at)):
                    continue
                count += 1
                if count > _MAX_FOUND:
                    raise ValueError(f"its {table.name} has too many symbols for a CUDA library")
                end = text.find(b"\0", at, at + _MAX_NAME_BYTES)
                if end >= 0:
                    yield number, text[at:end], row

    def _rows(self, table: Section) -> Iterator[tuple[int, tuple[int, ...]]]:
        number = 0
        for begin in range(0, table.size_bytes, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, table.size_bytes - begin)
            data = self._elf.read_file(table.file_offset + begin, size)
            yield from enumerate(
                _SYMBOL.iter_unpack(data[: len(data) - len(data) % _SYMBOL.size]), number
            )
            number += _CHUNK_BYTES // _SYMBOL.size

    def _is_hidden(self, versions: Section, number: int) -> bool:
        # Whether a symbol has a non-default version.
        place = _VERSION_BYTES * number
        if place + _VERSION_BYTES > versions.size_bytes:
            return False
        version = self._elf.read_file(versions.file_offset + place, _VERSION_BYTES)
        return bool(int.from_bytes(version, "little") & _HIDDEN_VERSION)

    def _add_symbol(self, text: bytes, row: tuple[int, ...]) -> None:
        _name, info, _other, _section, value, size = row
        name = text.decode(errors="replace")
        if name in self.addresses:
            return
        self.addresses[name] = value
        self.sizes[name] = size
        if info & _TYPE_MASK == _FUNCTION:
            file_offset = self.file_offset(value)
            if file_offset is not None:
                self.functions.append((name, file_offset))

    def file_offset(self, address: int) -> int | None:
        """Return the file offset of a virtual address; None if it is not loaded from the file."""
        return self._elf.file_offset_of(address)


def exported_functions(path: str) -> list[tuple[str, int]]:
    """
    Return the functions of a file that can get probes, as (name, file offset).

    Raises:
        OSError: The file cannot be read.
        ValueError: See ``ElfSymbols``.
    """
    # Do not block if the path leads to a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with stream_of(descriptor) as stream:
        return ElfSymbols(stream).functions


def _page(address: int) -> int:
    return address - address % mmap.PAGESIZE
