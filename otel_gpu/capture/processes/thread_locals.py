"""
Finds thread-local symbols: from a file's relocations, and the values that the dynamic linker wrote.
"""

# Thread-local storage
# --------------------
#
# A library reaches its thread-local storage through one or two words that the dynamic linker fills in
# (relocations). Their kind depends on how the library was compiled:
#
#   TLSDESC        two words; the second is a distance from the thread pointer, or the address of
#                  module and offset
#   TPOFF, TPREL   one word: the distance from the thread pointer
#   DTPMOD         two words: module and offset
#
# A relocation names the symbol. If no other library can define it (it is protected, or linked with
# -Bsymbolic), the relocation has its offset in the storage of the module instead.
#
# The storage of an executable is at a distance that is known when it is linked, so it needs no
# relocation. A static executable may not even have a table of dynamic symbols.
#
# A distance is below 4 GiB, or negative; an address is neither. Finding the symbol, or that a library
# does not have it, takes four short reads, because the table of names is hashed and has a Bloom filter.

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from otel_gpu.stacks.symbols.elf_file import ElfImage, Section

_MAX_CHAIN: Final = 4096
_MAX_TABLE_BYTES: Final = 64 << 20
_PAGE_MASK: Final = 4095
_THREAD_LOCAL: Final = 6  # STT_TLS
_FLAGS, _PROGRAM = 0x6FFFFFFB, 0x08000000  # DT_FLAGS_1, DF_1_PIE
_X86_64, _AARCH64 = 62, 183
# By machine: TLSDESC, DTPMOD, TPOFF or TPREL.
_RELOCATIONS: Final = {_X86_64: (36, 16, 18), _AARCH64: (1031, 1028, 1030)}
# Before the storage of an executable, on AArch64.
_AARCH64_HEAD_BYTES: Final = 16
_MAX_DISTANCE: Final = 1 << 32
# As in the kernel side. A lazy dynamic linker has another value there until the first use.
_MAX_MODULES: Final = 4096

_HASH_HEADER: Final = struct.Struct("<IIII")
_OLD_HASH_HEADER: Final = struct.Struct("<II")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_SIGNED_WORD: Final = struct.Struct("<q")
_TWO_WORDS: Final = struct.Struct("<Qq")

DESCRIPTOR, MODULE, DISTANCE = 0, 1, 2
"""Kinds of relocations: TLSDESC; DTPMOD; TPOFF or TPREL."""
FIXED: Final = 3
"""Without a relocation: ``ThreadLocalSlot.address`` is the distance, in the executable."""


class ThreadLocalSlot(NamedTuple):
    """The words that the dynamic linker fills in, at a virtual address of the file."""

    kind: int
    address: int
    pages: dict[int, int]  # file offset to address, of the pages at which code begins


class ThreadLocal(NamedTuple):
    """A thread-local symbol: its index in the symbol table, and its offset in the module's storage."""

    number: int
    offset: int


def find_slot(elf: ElfImage, name: bytes) -> ThreadLocalSlot | None:
    """Return the words that lead to a thread-local symbol; None if the file lacks it or does not use it."""
    symbol = find_symbol(elf, name)
    kinds = _RELOCATIONS.get(elf.machine)
    if symbol is None or kinds is None:
        return None
    pages = {
        one.file_offset & ~_PAGE_MASK: one.address & ~_PAGE_MASK
        for one in elf.segments
        if one.executable
    }
    for address, information, addend in _relocations(elf):
        named, kind = information >> 32, information & 0xFFFFFFFF
        if kind not in kinds:
            continue
        kind = kinds.index(kind)
        # Of module and offset, the static linker has written the second.
        is_pair = kind == MODULE
        offset = int.from_bytes(elf.read(address + 8, 8), "little") if is_pair else addend
        if named == symbol.number if named else offset == symbol.offset:
            return ThreadLocalSlot(kind, address, pages)
    distance = _fixed_distance(elf, symbol)
    return None if distance is None else ThreadLocalSlot(FIXED, distance, pages)


def place_of(
    slot: ThreadLocalSlot, start: int, read: Callable[[int, int], bytes]
) -> tuple[int, int] | None:
    """
    Return module and offset of a thread-local variable; module 0: from the thread pointer.

    None: the dynamic linker has not filled them in yet, or they are invalid.

    Args:
        slot: From ``find_slot``.
        start: The process's address of the file's address 0.
        read: Reads the memory of the process.
    """
    if slot.kind == FIXED:
        return 0, slot.address
    address = start + slot.address
    try:
        if slot.kind == DISTANCE:
            (offset,) = _SIGNED_WORD.unpack(read(address, _SIGNED_WORD.size))
            return (0, offset) if offset else None
        if slot.kind == DESCRIPTOR:
            resolver, argument = _TWO_WORDS.unpack(read(address, _TWO_WORDS.size))
            if not resolver or not argument:
                return None
            if argument < _MAX_DISTANCE:
                return 0, argument
            address = argument
        module, offset = _TWO_WORDS.unpack(read(address, _TWO_WORDS.size))
    except struct.error:
        return None
    return (module, offset) if 0 < module < _MAX_MODULES else None


def find_symbol(elf: ElfImage, name: bytes) -> ThreadLocal | None:
    """Return a thread-local symbol that a library exports or a static executable contains, or None."""
    if _is_static(elf):
        return _find_unhashed(elf, name)
    symbols = elf.section_header(".dynsym")
    if symbols is None or symbols.link >= len(elf.sections):
        return None
    names = elf.sections[symbols.link]
    for number in _numbers(elf, name):
        if found := _thread_local(elf, symbols, names=names, number=number, name=name):
            return found
    return None


def gnu_hash(name: bytes) -> int:
    """Return the hash of a name in ``.gnu.hash``."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def old_hash(name: bytes) -> int:
    """Return the hash of a name in ``.hash``."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def _relocations(elf: ElfImage) -> Iterator[tuple[int, int, int]]:
    for name in (".rela.dyn", ".rela.plt"):
        section = elf.section_header(name)
        if section is not None and section.size_bytes <= _MAX_TABLE_BYTES:
            data = elf.read_file(section.file_offset, section.size_bytes)
            yield from _RELOCATION.iter_unpack(data[: len(data) - len(data) % _RELOCATION.size])


def _fixed_distance(elf: ElfImage, symbol: ThreadLocal) -> int | None:
    # As linkers compute it: before the thread pointer (x86-64), or behind a header at it (AArch64).
    storage = elf.thread_storage
    if storage is None or symbol.offset > storage.memory_bytes:
        return None
    mask = max(storage.alignment, 1) - 1
    if elf.machine == _AARCH64:
        head = _AARCH64_HEAD_BYTES
        return symbol.offset + head + ((storage.address - head) & mask)
    end = -storage.address - storage.memory_bytes
    return symbol.offset - storage.memory_bytes - (end & mask)


def _numbers(elf: ElfImage, name: bytes) -> Iterator[int]:
    # Indices of symbols that can have the name, from either hash table.
    table = elf.section_header(".gnu.hash")
    if table is not None:
        yield from _gnu_chain(elf, table.file_offset, gnu_hash(name))
        return
    table = elf.section_header(".hash")
    if table is None:
        return
    header = elf.read_file(table.file_offset, _OLD_HASH_HEADER.size)
    buckets = int.from_bytes(header[:4], "little")
    if not buckets:
        return
    at = table.file_offset + _OLD_HASH_HEADER.size
    number = _number(elf, at + 4 * (old_hash(name) % buckets), 4)
    for _ in range(_MAX_CHAIN):
        if not number:
            return
        yield number
        number = _number(elf, at + 4 * (buckets + number), 4)


def _gnu_chain(elf: ElfImage, at: int, value: int) -> Iterator[int]:
    header = elf.read_file(at, _HASH_HEADER.size)
    if len(header) < _HASH_HEADER.size:
        return
    buckets, first, filters, shift = _HASH_HEADER.unpack(header)
    if not buckets or not filters:
        return
    at += _HASH_HEADER.size
    word = _number(elf, at + 8 * ((value // 64) % filters), 8)
    wanted = 1 << value % 64 | 1 << (value >> shift) % 64
    if word & wanted != wanted:
        return
    at += 8 * filters
    first_of_chain = _number(elf, at + 4 * (value % buckets), 4)
    at += 4 * buckets
    end = first_of_chain + (_MAX_CHAIN if first_of_chain >= first else 0)
    for number in range(first_of_chain, end):
        entry = _number(elf, at + 4 * (number - first), 4)
        if (entry | 1) == (value | 1):
            yield number
        if entry & 1:
            return


def _is_static(elf: ElfImage) -> bool:
    # A static PIE has DF_1_PIE; without that, a file without an interpreter is a library.
    if elf.section_header(".interp") is not None:
        return False
    entries = elf.section(".dynamic")
    whole = _TWO_WORDS.iter_unpack(entries[: len(entries) - len(entries) % _TWO_WORDS.size])
    return not entries or any(tag == _FLAGS and value & _PROGRAM for tag, value in whole)


def _find_unhashed(elf: ElfImage, name: bytes) -> ThreadLocal | None:
    # Stripped executables lack this table.
    symbols = elf.section_header(".symtab")
    if symbols is None or elf.thread_storage is None or symbols.link >= len(elf.sections):
        return None
    names = elf.sections[symbols.link]
    if max(names.size_bytes, symbols.size_bytes) > _MAX_TABLE_BYTES:
        return None
    at = elf.read_file(names.file_offset, names.size_bytes).find(b"\0" + name + b"\0") + 1
    if not at:
        return None
    data = elf.read_file(symbols.file_offset, symbols.size_bytes)
    entries = _SYMBOL.iter_unpack(data[: len(data) - len(data) % _SYMBOL.size])
    for number, (named, information, _, _, offset, _) in enumerate(entries):
        if named == at and information & 0xF == _THREAD_LOCAL:
            return ThreadLocal(number, offset)
    return None


def _thread_local(
    elf: ElfImage, symbols: Section, names: Section, number: int, name: bytes
) -> ThreadLocal | None:
    entry = elf.read_file(symbols.file_offset + number * _SYMBOL.size, _SYMBOL.size)
    if len(entry) < _SYMBOL.size:
        return None
    at, information, _, section, offset, _ = _SYMBOL.unpack(entry)
    text = elf.read_file(names.file_offset + at, len(name) + 1)
    is_it = text == name + b"\0" and information & 0xF == _THREAD_LOCAL and section
    return ThreadLocal(number, offset) if is_it else None


def _number(elf: ElfImage, file_offset: int, size_bytes: int) -> int:
    return int.from_bytes(elf.read_file(file_offset, size_bytes), "little")
