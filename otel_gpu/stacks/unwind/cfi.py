"""
Call frame information: finds the caller of an instruction without frame pointers.

Some facts about .eh_frame
--------------------------

Compilers write it for exceptions, so optimised code without frame pointers has it too, and
``strip`` leaves it. Per function there is one entry (FDE): a program that, run up to an
address, gives that address's *row*:

    CFA = rsp + 48          the canonical frame address: what rsp is in the caller
    rbp at CFA - 16         where the function saved what the caller had in registers
    rip at CFA - 8          the return address

A function begins with CFA = rsp + 8 (the call pushed the return address), and each push or
``sub rsp`` moves the offset. What the functions of a file have in common is in a shared
entry (CIE), whose program runs first.

Entries have no order, but the linker adds ``.eh_frame_hdr``: the start of every function with
the address of its entry, sorted. So one entry is found with a dozen reads, whatever the size
of the file, and nothing is read before it is needed. A file without that table has no rows
here.

DWARF numbers registers in its own way: 7 is rsp, 6 rbp, 16 the return address; on AArch64 31
is sp, 29 the frame pointer and 30 the link register.
"""

import struct
from bisect import bisect_right
from typing import Final

from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.unwind.cfi_rows import CfiRow, Common, row_at
from otel_gpu.stacks.unwind.leb128 import sleb128, uleb128

_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_WORD: Final = (1 << 64) - 1

# The longest entry seen, of a function of rustc, has 33,676 bytes; most have below 100.
_MAX_ENTRY_BYTES: Final = 64 << 10
_FIRST_READ_BYTES: Final = 256
_MAX_FUNCTIONS: Final = 1 << 26
_MAX_CIE_BYTES: Final = 1 << 10
_MAX_KNOWN_CIES: Final = 64
_MAX_AUGMENTATION: Final = 8

_HEADER_VERSION, _HEADER_BYTES = 1, 16
_UDATA4, _SDATA4_DATAREL = 0x03, 0x3B
_ENTRY_BYTES: Final = 8
_BLOCK_ENTRIES: Final = 512

_FORMATS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in zip((0x00, 0x02, 0x03, 0x04, 0x0A, 0x0B, 0x0C), "QHIQhiq", strict=True)
}
_FORMAT_MASK: Final = 0x0F
_PC_RELATIVE: Final = 0x10


class CallFrames:
    """
    The call frame information of one file, read on demand.

    Attributes:
        work: Bytes of entries read so far.
    """

    def __init__(self, elf: ElfImage) -> None:
        self.work = 0
        self._elf = elf
        self._cies: dict[int, Common] = {}
        self._header = elf.eh_frame_header or 0
        self._table = self._functions = 0
        if self._header:
            self._read_header()

    def row(self, address: int) -> CfiRow | None:
        """Return the row of a virtual address; None: the file has none."""
        try:
            entry = self._find(address)
            return None if entry is None else self._row(entry, address)
        except (ValueError, IndexError, struct.error, OverflowError):
            return None

    def _read_header(self) -> None:
        head = bytes(self._elf.read(self._header, _HEADER_BYTES))
        if len(head) < _HEADER_BYTES or head[0] != _HEADER_VERSION:
            return
        _, pointer_encoding, count_encoding, table_encoding = head[:4]
        pointer_format = _FORMATS.get(pointer_encoding & _FORMAT_MASK)
        if pointer_format is None or count_encoding != _UDATA4 or table_encoding != _SDATA4_DATAREL:
            return
        at = 4 + pointer_format.size
        functions = _U32.unpack_from(head, at)[0]
        if functions <= _MAX_FUNCTIONS:
            self._table = self._header + at + _U32.size
            self._functions = functions

    def _find(self, address: int) -> int | None:
        # The address of the FDE of the last function that starts at the address or before.
        wanted = address - self._header
        first, last = 0, self._functions
        while last - first > _BLOCK_ENTRIES:
            middle = (first + last) // 2
            if self._start(middle) <= wanted:
                first = middle
            else:
                last = middle
        block = self._elf.read(self._table + first * _ENTRY_BYTES, (last - first) * _ENTRY_BYTES)
        if len(block) < _ENTRY_BYTES:
            return None
        starts = block[: len(block) // _ENTRY_BYTES * _ENTRY_BYTES].cast("i")
        index = bisect_right(starts[::2], wanted) - 1
        return self._header + starts[2 * index + 1] if index >= 0 else None

    def _start(self, index: int) -> int:
        start: int = _I32.unpack(self._elf.read(self._table + index * _ENTRY_BYTES, 4))[0]
        return start

    def _row(self, entry: int, address: int) -> CfiRow | None:
        data = self._entry(entry)
        distance = _U32.unpack_from(data)[0]
        if not distance:
            raise ValueError("a CIE where an FDE should be")
        # An entry begins with its length, `data` with what follows: how far before itself
        # the CIE is.
        cie = self._cie(entry + 4 - distance)
        encoding = cie.pointer_encoding
        start, at = _pointer(data, at=4, encoding=encoding, base=entry + 4)
        size_bytes, at = _pointer(data, at, encoding=encoding & _FORMAT_MASK, base=0)
        if not start <= address < start + size_bytes:
            return None
        if cie.has_augmentation:
            skipped, at = uleb128(data, at)
            at += skipped
        return row_at(cie, program=data[at:], start=start, end=start + size_bytes, address=address)

    def _entry(self, address: int) -> bytes:
        # With its length, without it in what is returned.
        data = bytes(self._elf.read(address, _FIRST_READ_BYTES))
        end = 4 + _U32.unpack_from(data)[0]
        if end > _MAX_ENTRY_BYTES:  # also the mark of the 64-bit format, which no compiler writes
            raise ValueError("an entry that is too long")
        if end > len(data):
            data = bytes(self._elf.read(address, end))
        if end > len(data):
            raise ValueError("an entry that is cut short")
        self.work += end
        return data[4:end]

    def _cie(self, address: int) -> Common:
        cie = self._cies.get(address)
        if cie is None:
            if len(self._cies) >= _MAX_KNOWN_CIES:
                self._cies.clear()
            data = self._entry(address)
            if len(data) > _MAX_CIE_BYTES:
                raise ValueError("a CIE that is too long")
            cie = self._cies[address] = _parse_cie(data)
        return cie


def _parse_cie(data: bytes) -> Common:
    version = data[4]
    if _U32.unpack_from(data)[0] or version not in (1, 3):
        raise ValueError("no CIE of a known version")
    end = data.index(0, 5, 5 + _MAX_AUGMENTATION)
    augmentation, at = data[5:end].decode("ascii"), end + 1
    code_alignment, at = uleb128(data, at)
    data_alignment, at = sleb128(data, at)
    return_register, at = (data[at], at + 1) if version == 1 else uleb128(data, at)
    program_at, encoding = at, 0
    if augmentation.startswith("z"):
        size_bytes, at = uleb128(data, at)
        program_at = at + size_bytes
    elif augmentation:
        raise ValueError("an augmentation of unknown size")
    for letter in augmentation[1:]:
        if letter == "R":
            encoding, at = data[at], at + 1
        elif letter == "L":
            at += 1
        elif letter == "P":
            at += 1 + _FORMATS[data[at] & _FORMAT_MASK].size
        elif letter not in "SBG":  # signal frame; keys of pointer authentication; tagged memory
            raise ValueError("an unknown augmentation")
    about = (augmentation.startswith("z"), "S" in augmentation, data[program_at:])
    return Common(code_alignment, data_alignment, return_register, encoding, *about)


def _pointer(data: bytes, at: int, encoding: int, base: int) -> tuple[int, int]:
    # `base` is the address of the first byte of `data`.
    form = _FORMATS.get(encoding & _FORMAT_MASK)
    if form is None or encoding & ~_FORMAT_MASK not in (0, _PC_RELATIVE):
        raise ValueError("a pointer in an unknown encoding")
    value = form.unpack_from(data, at)[0]
    if encoding & _PC_RELATIVE:
        value += base + at
    return value & _WORD, at + form.size
