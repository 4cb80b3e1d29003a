"""
The functions of one ELF file, by address.

A library may have half a million functions, and an agent no memory for their names. So only
where they start is kept, in eight bytes each: the address in the upper 40 bits and the number
of the symbol in the lower 24, which sorts by address. Size and name are read from the file at
each look-up. That also means that a table from a cache, or of a file that was written to,
cannot give a wrong name: the symbol must still start where the table says.

Sorting goes in pieces that fit a cache, so that building needs a few megabytes above the
table itself. Against NumPy and pyelftools see docs/decisions/0018-symbols.md.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from otel_gpu.stacks.symbols.elf_file import ElfImage

_SYMBOL = struct.Struct("<IBBHQQ")
_NUMBER_BITS = 24
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_ADDRESS_LIMIT = 1 << 40
_TYPE_MASK = 0xF
_FUNCTIONS = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
_LOCAL, _WEAK = 0, 2
_MANGLED = ("_Z", "_R")
_ARM_MARKS = ("$a", "$d", "$t", "$x")

# More than the largest library in the field has with all its debug symbols; they take 2 s.
_MAX_SYMBOLS = 4 << 20
_CHUNK_SYMBOLS = 1 << 14
_SAMPLE_STEP = 1 << 8
_SAMPLES_PER_PIECE = 1 << 6
_MAX_ALIASES = 32
_MAX_ENCLOSING = 8
_SHORT_NAME_BYTES = 256
_MAX_NAME_BYTES = 4096


class SymbolSource(NamedTuple):
    """
    A symbol section and the names for it.

    ``image`` is the file that holds them, None for the image itself that the table is of:
    that one may be closed and opened again.
    """

    image: ElfImage | None
    symbols_at: int
    symbols: int
    names_at: int
    names_bytes: int


class _Candidate(NamedTuple):
    source: SymbolSource
    name: int
    info: int
    section: int
    value: int
    size: int


def symbol_source(image: ElfImage, section: str, *, separate: bool) -> SymbolSource | None:
    """
    Return ``.symtab`` or ``.dynsym``, if the image has symbols in it and is not sparse.

    ``separate`` says that it is not the file that is mapped, but one about it.
    """
    symbols = image.section_header(section)
    if symbols is None or not 0 < symbols.link < len(image.sections):
        return None
    names = image.sections[symbols.link]
    if not image.is_on_disk(symbols.size_bytes + names.size_bytes):
        return None
    room = image.size_bytes - symbols.file_offset
    count = min(symbols.size_bytes, max(room, 0)) // _SYMBOL.size
    if count <= 1:  # The first is always empty.
        return None
    file = image if separate else None
    return SymbolSource(file, symbols.file_offset, count, names.file_offset, names.size_bytes)


class SymbolTable:
    """
    Where the functions of one image start that are in its executable segments.

    Separate files in ``sources`` belong to the table then. ``keys`` is what it was for the same
    sources before; without, all their symbols are read.
    """

    def __init__(
        self, image: ElfImage, sources: Sequence[SymbolSource], keys: Sequence[int] | None = None
    ) -> None:
        starts = [segment.address for segment in image.segments if segment.executable]
        self._base = min(starts, default=0)
        self._sources = sources
        self._whole = sum(source.symbols for source in sources) <= _MAX_SYMBOLS
        self.keys: Sequence[int] = self._read(image) if keys is None else keys

    def close(self) -> None:
        """Close the separate files."""
        for source in self._sources:
            if source.image is not None:
                source.image.close()

    def find(self, image: ElfImage, address: int) -> tuple[str, int] | None:
        """
        Return the function that holds a virtual address, and the offset in it; or None.

        A function without a size reaches to the next one, within its section. Where
        functions lie in each other, it is the innermost. Of several with the same start
        it is, in this order: one that the file exports, one with fewer underscores before
        its name, a strong one, the shortest name, the first of the alphabet.
        """
        relative = address - self._base
        if not 0 <= relative < _ADDRESS_LIMIT:
            return None
        keys = self.keys
        above = bisect_right(keys, relative << _NUMBER_BITS | _NUMBER_MASK)
        for depth in range(_MAX_ENCLOSING):
            if above == 0:
                return None
            first = above - 1
            start = keys[first] >> _NUMBER_BITS
            while first > 0 and keys[first - 1] >> _NUMBER_BITS == start:
                first -= 1
                if above - first == _MAX_ALIASES:
                    break
            same = self._candidates(image, first, above)
            if not (len(same) == 1 and relative - start < same[0].size):
                same = self._holders(image, same, relative - start, nearest=not depth)
            name = _best_name(image, same)
            if name:
                return name, relative - start
            above = first
        return None

    def _candidates(self, image: ElfImage, first: int, above: int) -> list[_Candidate]:
        found = []
        for index in range(first, above):
            number = self.keys[index] & _NUMBER_MASK
            for source in self._sources:
                if number < source.symbols:
                    break
                number -= source.symbols
            else:
                continue
            place = source.symbols_at + number * _SYMBOL.size
            entry = (source.image or image).read_file(place, _SYMBOL.size)
            if len(entry) == _SYMBOL.size:
                name, info, _, section, value, size = _SYMBOL.unpack(entry)
                is_there = value - self._base == self.keys[index] >> _NUMBER_BITS
                if is_there and info & _TYPE_MASK in _FUNCTIONS:
                    found.append(_Candidate(source, name, info, section, value, size))
        return found

    def _holders(
        self, image: ElfImage, same: list[_Candidate], offset: int, *, nearest: bool
    ) -> list[_Candidate]:
        # Those that reach to a place after their common start.
        sized = [candidate for candidate in same if candidate.size]
        if sized:
            return [candidate for candidate in sized if offset < candidate.size]
        if not nearest or not self._whole:
            return []
        return [candidate for candidate in same if _within_section(image, candidate, offset)]

    def _read(self, image: ElfImage) -> "array[int]":
        segments = [segment for segment in image.segments if segment.executable]
        end = max((segment.address + segment.memory_bytes for segment in segments), default=0)
        limit = min(end - self._base, _ADDRESS_LIMIT)
        runs: list[array[int]] = []
        before = 0
        for source in self._sources:
            count = min(source.symbols, _MAX_SYMBOLS - before)
            for first in range(0, count, _CHUNK_SYMBOLS):
                data = (source.image or image).read_file(
                    source.symbols_at + first * _SYMBOL.size,
                    min(count - first, _CHUNK_SYMBOLS) * _SYMBOL.size,
                )
                runs.append(self._chunk(data, before + first, limit))
            before += source.symbols
            if before >= _MAX_SYMBOLS:
                break
        return _merged(runs)

    def _chunk(self, data: bytes, first: int, limit: int) -> "array[int]":
        # Three words a symbol: name, info, other and section; value; size.
        words = memoryview(data)[: len(data) - len(data) % _SYMBOL.size].cast("Q")
        base = self._base
        keys = [
            (value - base) << _NUMBER_BITS | number
            for number, (word, value) in enumerate(
                zip(words[0::3].tolist(), words[1::3].tolist(), strict=True), first
            )
            # A section number of 0 means that the function is in another file.
            if word >> 48 and 0 <= value - base < limit and word >> 32 & _TYPE_MASK in _FUNCTIONS
        ]
        keys.sort()
        return array("Q", keys)


def _within_section(image: ElfImage, candidate: _Candidate, offset: int) -> bool:
    # Whether a place after the start of a function without a size is in its section.
    sections = (candidate.source.image or image).sections
    if candidate.section >= len(sections):
        return offset == 0
    section = sections[candidate.section]
    return section.address <= candidate.value < section.address + section.size_bytes - offset


def _merged(runs: "list[array[int]]") -> "array[int]":
    # Piece by piece: as Python numbers, all at once would take forty bytes each.
    samples = sorted(chain.from_iterable(run[::_SAMPLE_STEP] for run in runs))
    pivots = samples[_SAMPLES_PER_PIECE::_SAMPLES_PER_PIECE]
    places = [0] * len(runs)
    merged = array("Q")
    for pivot in [*pivots, None]:
        piece: list[int] = []
        for number, run in enumerate(runs):
            start = places[number]
            end = len(run) if pivot is None else bisect_left(run, pivot, start)
            piece += run[start:end]
            places[number] = end
        piece.sort()
        merged.fromlist(piece)
    return merged


def _best_name(image: ElfImage, same: list[_Candidate]) -> str | None:
    named = [(_name(image, candidate), candidate.info >> 4) for candidate in same]
    named = [pair for pair in named if pair[0] and not _is_mark(pair[0])]
    if len(named) > 1:
        named.sort(key=_rank)
    return named[0][0] if named else None


def _name(image: ElfImage, candidate: _Candidate) -> str:
    source = candidate.source
    room = source.names_bytes - candidate.name
    place = source.names_at + candidate.name
    read = (source.image or image).read_file
    name, end, _ = read(place, min(_SHORT_NAME_BYTES, room)).partition(b"\0")
    if not end:
        name = read(place, min(_MAX_NAME_BYTES, room)).partition(b"\0")[0]
    # What follows an @ is a version.
    return name.decode("utf-8", "replace").partition("@")[0]


def _is_mark(name: str) -> bool:
    # ARM's compilers mark where code and data begin.
    return name.startswith(_ARM_MARKS) and (len(name) == 2 or name[2] == ".")  # noqa: PLR2004


def _rank(named: tuple[str, int]) -> tuple[bool, int, bool, int, str]:
    name, binding = named
    underscores = 0 if name.startswith(_MANGLED) else len(name) - len(name.lstrip("_"))
    return binding == _LOCAL, underscores, binding == _WEAK, len(name), name
