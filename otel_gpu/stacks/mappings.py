"""
The executable mappings of processes, by address.

A process loads libraries and generates code at any time, so its mappings are read more than once
(programs.py). A later read can come after its end. So the files of the first read are opened at once,
up to a bound, and known mappings are kept.

The maps file stays open: the kernel binds it to the memory of the program that ran when it was opened.
So a later read never shows another process with the same pid, nor the program that replaced this one.
"""

import contextlib
import os
from bisect import bisect_right
from collections import Counter, deque
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.mapped_files import MAX_MAPS_BYTES, FileId, MappedFile, executable_mappings
from otel_gpu.procfs.proc_files import close_file
from otel_gpu.procfs.reader import LateError, open_maps, read_maps
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.symbols.elf_file import ElfImage, elf_in_memory

VDSO = "[vdso]"
UPROBES = "[uprobes]"

_MAX_ELF_FILES = 256
# A process can have 65,530 mappings, of half a kilobyte each here; most have a few hundred. Beyond the
# bound, only those at the lowest addresses (the program) and at the highest (its libraries) are kept.
_LOWEST_MAPPINGS, _HIGHEST_MAPPINGS = 64, 4032
MAPPING_BYTES = 500
"""Approximate size of one mapping."""
_MAX_VDSO_BYTES = 1 << 20


class Mapping(NamedTuple):
    """
    A range of executable memory.

    ``address - bias`` is the virtual address in ``elf``, which is None without an ELF file, or after it
    was closed. ``path`` may be ``[vdso]``, ``[uprobes]``, or empty (code made at run
    time). ``pid`` is the process that was read; ``file`` is zero for anonymous memory.
    """

    start: int
    end: int
    file_offset: int
    path: str
    elf: ElfImage | None
    bias: int
    pid: int = 0
    file: FileId = FileId(0, 0)


class ElfFiles:
    """
    The ELF files that processes map, each open once; the least recently used one is evicted first.

    ``work`` is the budget for reading mappings. A file is closed with the last process that maps it, as
    an open file keeps the file system of an ended container mounted.
    """

    def __init__(self, limit: int = _MAX_ELF_FILES, work: FileWork | None = None) -> None:
        self.work = work or FileWork()
        # A file that was opened and not read yet is a bare descriptor.
        self._files: Recent[FileId, ElfImage | int] = Recent(
            limit, evict=lambda _, file: _close(file)
        )
        self._users: Counter[FileId] = Counter()
        self._vdso: ElfImage | None = None
        self._vdso_bytes = -1
        self.mappings_left_out = 0
        """Mappings beyond the bound of their process."""

    def hold(self, mapped: MappedFile) -> None:
        """Count a process that maps a file, and open the file while the process lives."""
        self._users[mapped.file] += 1
        if len(self._files) < self._files.limit and mapped.file not in self._files:
            with (
                contextlib.suppress(OSError, NotReadError),
                self.work.reading(mapped.pid, mapped.path),
            ):
                self._files[mapped.file] = self.work.open(mapped)

    def release(self, file: FileId) -> None:
        """Undo one ``hold``."""
        self._users[file] -= 1
        if self._users[file] <= 0:
            del self._users[file]
            _close(self._files.pop(file, None))

    def get(self, mapped: MappedFile) -> ElfImage | None:
        """Return the ELF file of a mapping; None: not an ELF file, or it cannot be opened."""
        held = self._files.pop(mapped.file, None)
        try:
            if held is None:
                with self.work.reading(mapped.pid, mapped.path):
                    held = self.work.open(mapped)
            elf = ElfImage(held) if isinstance(held, int) else held
        except (OSError, ValueError):
            return None
        self._files[mapped.file] = elf
        return elf

    def use(self, file: FileId) -> None:
        """Mark a file as recently used."""
        self._files.use(file)

    def vdso(self, size_bytes: int) -> ElfImage | None:
        """Return the vdso, if its size is that of ours."""
        if self._vdso_bytes < 0:
            self._vdso, self._vdso_bytes = _own_vdso()
        return self._vdso if size_bytes == self._vdso_bytes else None

    def close(self) -> None:
        """Close all files; a later ``get`` opens its file again."""
        for file in (*self._files.values(), self._vdso):
            _close(file)
        self._files.clear()
        self._vdso, self._vdso_bytes = None, -1


class Mappings:
    """
    The executable mappings of one process while it runs one program.

    Files are opened in ``elf_files``, which all processes share. Close it when the process is evicted,
    which can be after its end.
    """

    def __init__(self, pid: int, elf_files: ElfFiles) -> None:
        self.pid = pid
        self._elf_files = elf_files
        self._maps = -1
        self._answer = 0
        self._left_out = 0
        self._mapped: list[MappedFile] = []
        self._starts: list[int] = []
        self._known: dict[MappedFile, Mapping] = {}
        self._files: set[FileId] = set()  # each held once in elf_files
        with contextlib.suppress(OSError):
            self._maps = open_maps(pid)
        self.refresh()

    def __del__(self) -> None:
        # Also after a failed construction.
        if hasattr(self, "_files"):
            self.close()

    def close(self) -> None:
        """Release the files; nothing is found from now on."""
        self._ask_no_more()
        self._set([])

    def find(self, address: int) -> Mapping | None:
        """Return the executable mapping of an address at the last read, or None."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._mapped[index].end:
            return None
        return self._mapping(self._mapped[index])

    def refresh(self) -> None:
        """Read the mappings again; an ended process, or a late read, changes nothing."""
        with contextlib.suppress(NotReadError):
            if self._maps >= 0:
                with self._elf_files.work.listing(self.pid):
                    self._refresh()

    def _refresh(self) -> None:
        content = b""
        try:
            content = read_maps(self.pid, self._maps, MAX_MAPS_BYTES)
        except LateError:
            return
        except OSError:
            pass
        if not content:
            self._ask_no_more()  # It ended, or runs another program.
        elif hash(content) != self._answer:
            # Parsing takes ten times as long as reading, and the text is mostly unchanged.
            self._answer = hash(content)
            text = content.decode("utf-8", "replace")
            found = executable_mappings(self.pid, text)
            mapped = list(islice(found, _LOWEST_MAPPINGS))
            highest = deque(enumerate(found, 1), _HIGHEST_MAPPINGS)
            mapped += [line for _, line in highest]
            left_out = highest[-1][0] - len(highest) if highest else 0
            self._elf_files.mappings_left_out += max(0, left_out - self._left_out)
            self._left_out = left_out
            self._set(sorted(mapped, key=lambda line: line.start))

    @property
    def count(self) -> int:
        """Number of mappings kept."""
        return len(self._mapped)

    def inherit(self, pid: int) -> "Mappings":
        """Return the mappings of a forked child, which can end before they are read."""
        child = Mappings(pid, self._elf_files)
        if not child._mapped:
            child._set(self._mapped)  # Files are opened through the parent, which can outlive the
            # child.
        return child

    def _ask_no_more(self) -> None:
        maps, self._maps = self._maps, -1
        if maps >= 0:
            os.close(maps)

    def _mapping(self, mapped: MappedFile) -> Mapping:
        known = self._known.get(mapped)
        if known is not None and (known.elf is None or not known.elf.closed):
            self._elf_files.use(mapped.file)
            return known
        _, file, start, end, path, file_offset = mapped
        elf, bias = None, 0
        if path.startswith("/"):
            elf = self._elf_files.get(mapped)
        elif path == VDSO:
            elf = self._elf_files.vdso(end - start)
        address = elf.address_of(file_offset) if elf else None
        if address is None:
            elf = None
        else:
            bias = start - address
        file = file if file.inode else FileId(0, 0)
        known = Mapping(
            start=start,
            end=end,
            file_offset=file_offset,
            path=path,
            elf=elf,
            bias=bias,
            pid=self.pid,
            file=file,
        )
        self._known[mapped] = known
        return known

    def _set(self, mapped: list[MappedFile]) -> None:
        self._mapped = mapped
        self._starts = [line.start for line in mapped]
        self._known = {line: self._known[line] for line in mapped if line in self._known}
        files = {line.file: line for line in mapped if line.path.startswith("/")}
        for file in files.keys() - self._files:
            self._elf_files.hold(files[file])
        for file in self._files - files.keys():
            self._elf_files.release(file)
        self._files = set(files)


def _close(file: ElfImage | int | None) -> None:
    if isinstance(file, int):
        close_file(file)
    elif file is not None:
        file.close()


def _own_vdso() -> tuple[ElfImage | None, int]:
    # It is memory, so it is copied into a file.
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        own = (line for line in executable_mappings(os.getpid(), text) if line.path == VDSO)
        mapped = next(own)
        size_bytes = mapped.end - mapped.start
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(mapped.start)
            content = memory.read(min(size_bytes, _MAX_VDSO_BYTES))
        return elf_in_memory(content), size_bytes
    except (OSError, ValueError, StopIteration):
        return None, 0
