"""Names of native functions, by address."""

import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeAlias

from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.symbols.debug_files import symbol_sources
from otel_gpu.stacks.symbols.demangling import Demangler
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.symbols.perf_map import PerfMap
from otel_gpu.stacks.symbols.symbol_cache import SymbolCache, cache_folder
from otel_gpu.stacks.symbols.symbol_table import SymbolTable
from otel_gpu.wire.frames import clean

_Named: TypeAlias = tuple[str, int] | None

_MAX_NAMES = 1 << 14
_MAX_TEXTS = 1 << 12
_MAX_TABLES = 128
_MAX_KEYS = 4 << 20  # 32 MiB in all tables, without those of the cache on disk
_MAX_PERF_MAPS = 4
# Smaller tables are built faster than loaded from disk.
_CACHED_KEYS = 20_000


class Symbols:
    """
    Names of functions in mapped files; files are read on first use.

    Attributes:
        malformed: Malformed lines of perf maps.
    """

    def __init__(
        self,
        cache: SymbolCache | None = None,
        demangler: Demangler | None = None,
        clock: Callable[[], float] = time.monotonic,
        work: FileWork | None = None,
    ) -> None:
        self._cache = cache or SymbolCache(cache_folder())
        self._demangler = demangler or Demangler()
        self._clock = clock
        self._work = work or FileWork(clock=clock)
        self._names: Recent[Hashable, _Named] = Recent(_MAX_NAMES, cache="symbol_names")
        self._texts: Recent[str, str] = Recent(_MAX_TEXTS, cache="symbol_names")
        self._perf_maps: Recent[int, PerfMap] = Recent(_MAX_PERF_MAPS)
        self._tables: OrderedDict[Hashable, SymbolTable] = OrderedDict()
        CACHES.register("symbol_tables", self, "_tables")
        self.malformed = 0

    def close(self) -> None:
        """Clear all caches, and end the demangler."""
        self._demangler.close()
        for table in self._tables.values():
            table.close()
        for kept in (self._names, self._texts, self._tables, self._perf_maps):
            kept.clear()

    def name(self, mapping: Mapping, address: int) -> _Named:
        """
        Return the function at an address of a process, and the offset in it, or None.

        The function is demangled, printable and at most 512 characters long. For a return address
        the caller subtracts 1.
        """
        elf = mapping.elf
        if elf is None:
            return self._made_name(mapping, address)
        # A build id can be forged, and inodes are reused: together they identify a file.
        identity = (mapping.file, elf.build_id or elf)
        key = (identity, address - mapping.bias)
        if key in self._names:
            return self._names.use(key)
        if elf.closed:
            return None
        try:
            # It stops everything else.
            with self._work.reading(mapping.pid, mapping.path):
                table = self._table(identity, mapping, elf)
                found = table.find(elf, address - mapping.bias)
        except NotReadError:
            return None
        if found is not None:
            text = self.text(found[0])
            if text is None:
                return clean(found[0]), found[1]
            found = text, found[1]
        self._names[key] = found
        return found

    def text(self, name: str) -> str | None:
        """Return a possibly mangled name as text; None: not known yet."""
        text = self._texts.use(name)
        if text is None and (text := self._demangler.text(name)) is not None:
            self._texts[name] = text = clean(text)
        return text

    def _made_name(self, mapping: Mapping, address: int) -> _Named:
        # The kernel's code has its name as path.
        if mapping.pid <= 0 or mapping.path.startswith("["):
            return None
        perf_map = self._perf_maps.use(mapping.pid)
        if perf_map is None:
            perf_map = PerfMap(mapping.pid, self._clock, self._work)
            self._perf_maps[mapping.pid] = perf_map
        malformed = perf_map.malformed
        found = perf_map.find(address)
        self.malformed += perf_map.malformed - malformed
        return None if found is None else (clean(found[0]), found[1])

    def _table(self, identity: Hashable, mapping: Mapping, elf: ElfImage) -> SymbolTable:
        table = self._tables.get(identity)
        if table is not None:
            self._tables.move_to_end(identity)
            return table
        table = self._tables[identity] = self._read_table(mapping, elf)
        while len(self._tables) > 1 and (
            len(self._tables) > _MAX_TABLES
            or sum(map(_held_keys, self._tables.values())) > _MAX_KEYS
        ):
            self._tables.popitem(last=False)[1].close()
        return table

    def _read_table(self, mapping: Mapping, elf: ElfImage) -> SymbolTable:
        sources = symbol_sources(elf, mapping.pid, path=mapping.path, work=self._work)
        build_id = elf.build_id
        if build_id is None or sum(source.symbols for source in sources) <= _CACHED_KEYS:
            return SymbolTable(elf, sources)
        keys = self._cache.load(build_id, sources)
        if keys is None:
            keys = SymbolTable(elf, sources).keys
            self._cache.store(build_id, sources, keys)
            # The cached table is file memory, which the kernel can reclaim.
            keys = self._cache.load(build_id, sources) or keys
        return SymbolTable(elf, sources, keys)


def _held_keys(table: SymbolTable) -> int:
    return len(table.keys) if isinstance(table.keys, array) else 0
