"""
The functions of an ELF file, by address.

A library can have half a million functions, too many to keep their names. So only their starts are
kept, in eight bytes each: the address in the upper 40 bits and the number of the symbol in the lower
24, which sorts by address. Size and name are read from the file at each lookup. So a cached table, or
one of a changed file, cannot give a wrong name: the symbol must still start at that address.

Sorting works in parts that fit a cache, so that it needs only a few megabytes more than the table.
docs/decisions/0018-symbols.md compares NumPy and pyelftools.
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

# More than the largest known library has with all debug symbols; reading them takes 2 s.
_MAX_SYMBOLS = 4 << 20
_CHUNK_SYMBOLS = 1 << 14
_SAMPLE_STEP = 1 << 8
_SAMPLES_PER_PART = 1 << 6
_MAX_ALIASES = 32
_MAX_ENCLOSING = 8
_SHORT_NAME_BYTES = 256
_MAX_NAME_BYTES = 4096


class SymbolSource(NamedTuple):
    """
    A symbol section and its names.

    ``elf`` is the separate file that has them; None: the file of the table itself, which can be closed
    and opened again.
    """

    elf: ElfImage | None
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


def symbol_source(elf: ElfImage, section: str, *, separate: bool) -> SymbolSource | None:
    """
    Return ``.symtab`` or ``.dynsym``, if it has symbols and is not sparse.

    ``separate``: it is a debug file, and not the mapped file.
    """
    symbols = elf.section_header(section)
    if symbols is None or not 0 < symbols.link < len(elf.sections):
        return None
    names = elf.sections[symbols.link]
    if not elf.is_on_disk(symbols.size_bytes + names.size_bytes):
        return None
    size_left = elf.size_bytes - symbols.file_offset
    count = min(symbols.size_bytes, max(size_left, 0)) // _SYMBOL.size
    if count <= 1:  # The first is always empty.
        return None
    file = elf if separate else None
    return SymbolSource(
        elf=file,
        symbols_at=symbols.file_offset,
        symbols=count,
        names_at=names.file_offset,
        names_bytes=names.size_bytes,
    )


class SymbolTable:
    """
    The starts of the functions in the executable segments of an ELF file.

    It owns the separate files in ``sources``. ``keys`` are cached ones of the same sources; without
    them, all symbols are read.
    """

    def __init__(
        self, elf: ElfImage, sources: Sequence[SymbolSource], keys: Sequence[int] | None = None
    ) -> None:
        starts = [segment.address for segment in elf.segments if segment.executable]
        self._base = min(starts, default=0)
        self._sources = sources
        self._whole = sum(source.symbols for source in sources) <= _MAX_SYMBOLS
        self.keys: Sequence[int] = self._read(elf) if keys is None else keys

    def close(self) -> None:
        """Close the separate files."""
        for source in self._sources:
            if source.elf is not None:
                source.elf.close()

    def find(self, elf: ElfImage, address: int) -> tuple[str, int] | None:
        """
        Return the function at a virtual address, and the offset in it; or None.

        A function without a size extends to the next one, within its section. Of nested functions, the
        innermost wins. Of several with the same start, these win in order: an exported one, one with
        fewer leading underscores, a strong one, the shortest name, the first by alphabet.
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
            same = self._candidates(elf, first, above)
            if not (len(same) == 1 and relative - start < same[0].size):
                same = self._holders(elf, same, relative - start, nearest=not depth)
            name = _best_name(elf, same)
            if name:
                return name, relative - start
            above = first
        return None

    def _candidates(self, elf: ElfImage, first: int, above: int) -> list[_Candidate]:
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
            entry = (source.elf or elf).read_file(place, _SYMBOL.size)
            if len(entry) == _SYMBOL.size:
                name, info, _, section, value, size = _SYMBOL.unpack(entry)
                is_there = value - self._base == self.keys[index] >> _NUMBER_BITS
                if is_there and info & _TYPE_MASK in _FUNCTIONS:
                    found.append(
                        _Candidate(
                            source=source,
                            name=name,
                            info=info,
                            section=section,
                            value=value,
                            size=size,
                        )
                    )
        return found

    def _holders(
        self, elf: ElfImage, same: list[_Candidate], offset: int, *, nearest: bool
    ) -> list[_Candidate]:
        # Those that contain an offset after their common start.
        sized = [candidate for candidate in same if candidate.size]
        if sized:
            return [candidate for candidate in sized if offset < candidate.size]
        if not nearest or not self._whole:
            return []
        return [candidate for candidate in same if _within_section(elf, candidate, offset)]

    def _read(self, elf: ElfImage) -> "array[int]":
        segments = [segment for segment in elf.segments if segment.executable]
        end = max((segment.address + segment.memory_bytes for segment in segments), default=0)
        limit = min(end - self._base, _ADDRESS_LIMIT)
        runs: list[array[int]] = []
        before = 0
        for source in self._sources:
            count = min(source.symbols, _MAX_SYMBOLS - before)
            for first in range(0, count, _CHUNK_SYMBOLS):
                data = (source.elf or elf).read_file(
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
            # Section number 0: the function is in another file.
            if word >> 48 and 0 <= value - base < limit and word >> 32 & _TYPE_MASK in _FUNCTIONS
        ]
        keys.sort()
        return array("Q", keys)


def _within_section(elf: ElfImage, candidate: _Candidate, offset: int) -> bool:
    # Whether an offset after the start of a function without a size is in its section.
    sections = (candidate.source.elf or elf).sections
    if candidate.section >= len(sections):
        return offset == 0
    section = sections[candidate.section]
    return section.address <= candidate.value < section.address + section.size_bytes - offset


def _merged(runs: "list[array[int]]") -> "array[int]":
    # In parts, as each Python number takes forty bytes.
    samples = sorted(chain.from_iterable(run[::_SAMPLE_STEP] for run in runs))
    pivots = samples[_SAMPLES_PER_PART::_SAMPLES_PER_PART]
    places = [0] * len(runs)
    merged = array("Q")
    for pivot in [*pivots, None]:
        part: list[int] = []
        for number, run in enumerate(runs):
            start = places[number]
            end = len(run) if pivot is None else bisect_left(run, pivot, start)
            part += run[start:end]
            places[number] = end
        part.sort()
        merged.fromlist(part)
    return merged


def _best_name(elf: ElfImage, same: list[_Candidate]) -> str | None:
    named = [(_name(elf, candidate), candidate.info >> 4) for candidate in same]
    named = [pair for pair in named if pair[0] and not _is_mark(pair[0])]
    if len(named) > 1:
        named.sort(key=_rank)
    return named[0][0] if named else None


def _name(elf: ElfImage, candidate: _Candidate) -> str:
    source = candidate.source
    size_left = source.names_bytes - candidate.name
    place = source.names_at + candidate.name
    read = (source.elf or elf).read_file
    name, end, _ = read(place, min(_SHORT_NAME_BYTES, size_left)).partition(b"\0")
    if not end:
        name = read(place, min(_MAX_NAME_BYTES, size_left)).partition(b"\0")[0]
    # A version follows the @.
    return name.decode("utf-8", "replace").partition("@")[0]


def _is_mark(name: str) -> bool:
    # ARM's compilers mark the starts of code and data.
    return name.startswith(_ARM_MARKS) and (len(name) == 2 or name[2] == ".")  # noqa: PLR2004


def _rank(named: tuple[str, int]) -> tuple[bool, int, bool, int, str]:
    name, binding = named
    underscores = 0 if name.startswith(_MANGLED) else len(name) - len(name.lstrip("_"))
    return binding == _LOCAL, underscores, binding == _WEAK, len(name), name
