"""
What code a process has at an address.

Libraries are loaded and code is generated at any time, so a process is asked for its mappings more
than once (process_images.py). That can be too late for a process that ends, so the files of the
first answer are opened at once, as long as there is room, and what was known stays known.

The maps file stays open: the kernel binds it to the memory of the program that ran when it
was opened. Read later, it never shows another process that has the same pid, nor the program
that this one became.
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
from otel_gpu.stacks.symbols.elf_file import ElfImage, image_of

VDSO = "[vdso]"
UPROBES = "[uprobes]"

_MAX_IMAGES = 256
# A process can have 65,530, of half a kilobyte each here, and most have a few hundred. Of too many, those at
# the lowest addresses are kept, where the program is, and at the highest, where its libraries are.
_LOWEST_MAPPINGS, _HIGHEST_MAPPINGS = 64, 4032
MAPPING_BYTES = 500
"""What one of them takes, about."""
_MAX_VDSO_BYTES = 1 << 20


class Mapping(NamedTuple):
    """
    A range of executable memory.

    ``address - bias`` is the virtual address in ``image``, which is None where there is no
    ELF file (any more). ``path`` may be ``[vdso]``, ``[uprobes]``, or empty (code made at run
    time). ``pid`` is the process that was asked, and ``file`` is empty for what is no file.
    """

    start: int
    end: int
    file_offset: int
    path: str
    image: ElfImage | None
    bias: int
    pid: int = 0
    file: FileId = FileId(0, 0)


class ElfFiles:
    """
    The ELF files that processes map, each open once; the one not used for longest goes first.

    ``work`` is what listing them may take. A file is closed when the last process that maps it is closed: an open file keeps the
    file system of a container that has ended.
    """

    def __init__(self, limit: int = _MAX_IMAGES, work: FileWork | None = None) -> None:
        self.work = work or FileWork()
        # A file that was opened and not yet looked into is a bare descriptor.
        self._files: Recent[FileId, ElfImage | int] = Recent(
            limit, evict=lambda _, file: _close(file)
        )
        self._users: Counter[FileId] = Counter()
        self._vdso: ElfImage | None = None
        self._vdso_bytes = -1
        self.mappings_left_out = 0
        """Of processes that have more than are kept."""

    def hold(self, mapped: MappedFile) -> None:
        """Count a process that maps a file, and open that, to be read when the process is gone."""
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
        """Return the ELF file that is mapped; None if it is no ELF file, or cannot be opened."""
        held = self._files.pop(mapped.file, None)
        try:
            if held is None:
                with self.work.reading(mapped.pid, mapped.path):
                    held = self.work.open(mapped)
            image = ElfImage(held) if isinstance(held, int) else held
        except (OSError, ValueError):
            return None
        self._files[mapped.file] = image
        return image

    def use(self, file: FileId) -> None:
        """Remember that a file was needed just now."""
        self._files.use(file)

    def vdso(self, size_bytes: int) -> ElfImage | None:
        """Return the kernel's own library; one of another length than ours is another one."""
        if self._vdso_bytes < 0:
            self._vdso, self._vdso_bytes = _own_vdso()
        return self._vdso if size_bytes == self._vdso_bytes else None

    def close(self) -> None:
        """Close all files; what is asked for later is opened again."""
        for file in (*self._files.values(), self._vdso):
            _close(file)
        self._files.clear()
        self._vdso, self._vdso_bytes = None, -1


class Mappings:
    """
    The executable memory of one process, as long as it runs one program.

    Files are opened in ``images``, common to all processes. Close it when the process is forgotten,
    which can be later than its end.
    """

    def __init__(self, pid: int, images: ElfFiles) -> None:
        self.pid = pid
        self._images = images
        self._maps = -1
        self._answer = 0
        self._left_out = 0
        self._mapped: list[MappedFile] = []
        self._starts: list[int] = []
        self._known: dict[MappedFile, Mapping] = {}
        self._files: set[FileId] = set()  # each held once in images
        with contextlib.suppress(OSError):
            self._maps = open_maps(pid)
        self.refresh()

    def __del__(self) -> None:
        # Also for an object whose construction failed at its first line.
        if hasattr(self, "_files"):
            self.close()

    def close(self) -> None:
        """Give back what is open; from now on nothing is found."""
        self._ask_no_more()
        self._set([])

    def find(self, address: int) -> Mapping | None:
        """Return the executable mapping that held an address when it was last asked, or None."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address >= self._mapped[index].end:
            return None
        return self._mapping(self._mapped[index])

    def refresh(self) -> None:
        """Read the mappings again; when the process is gone, or that takes too long, nothing changes."""
        with contextlib.suppress(NotReadError):
            if self._maps >= 0:
                with self._images.work.listing(self.pid):
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
            self._ask_no_more()  # It is gone, or has become another program.
        elif hash(content) != self._answer:
            # It takes ten times as long to understand it as to read it, and it is mostly the same.
            self._answer = hash(content)
            text = content.decode("utf-8", "replace")
            found = executable_mappings(self.pid, text)
            mapped = list(islice(found, _LOWEST_MAPPINGS))
            highest = deque(enumerate(found, 1), _HIGHEST_MAPPINGS)
            mapped += [line for _, line in highest]
            left_out = highest[-1][0] - len(highest) if highest else 0
            self._images.mappings_left_out += max(0, left_out - self._left_out)
            self._left_out = left_out
            self._set(sorted(mapped, key=lambda line: line.start))

    @property
    def count(self) -> int:
        """How many are kept."""
        return len(self._mapped)

    def inherit(self, pid: int) -> "Mappings":
        """Return the mappings of a child that was just forked, which it may not live to show."""
        child = Mappings(pid, self._images)
        if not child._mapped:
            child._set(self._mapped)  # Files are opened through the parent, which may live on.
        return child

    def _ask_no_more(self) -> None:
        maps, self._maps = self._maps, -1
        if maps >= 0:
            os.close(maps)

    def _mapping(self, mapped: MappedFile) -> Mapping:
        known = self._known.get(mapped)
        if known is not None and (known.image is None or not known.image.closed):
            self._images.use(mapped.file)
            return known
        _, file, start, end, path, file_offset = mapped
        image, bias = None, 0
        if path.startswith("/"):
            image = self._images.get(mapped)
        elif path == VDSO:
            image = self._images.vdso(end - start)
        address = image.address_of(file_offset) if image else None
        if address is None:
            image = None
        else:
            bias = start - address
        file = file if file.inode else FileId(0, 0)
        known = Mapping(start, end, file_offset, path, image, bias, self.pid, file)
        self._known[mapped] = known
        return known

    def _set(self, mapped: list[MappedFile]) -> None:
        self._mapped = mapped
        self._starts = [line.start for line in mapped]
        self._known = {line: self._known[line] for line in mapped if line in self._known}
        files = {line.file: line for line in mapped if line.path.startswith("/")}
        for file in files.keys() - self._files:
            self._images.hold(files[file])
        for file in self._files - files.keys():
            self._images.release(file)
        self._files = set(files)


def _close(file: ElfImage | int | None) -> None:
    if isinstance(file, int):
        close_file(file)
    elif file is not None:
        file.close()


def _own_vdso() -> tuple[ElfImage | None, int]:
    # It is no file, so it is copied into one.
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        own = (line for line in executable_mappings(os.getpid(), text) if line.path == VDSO)
        mapped = next(own)
        size_bytes = mapped.end - mapped.start
        with Path("/proc/self/mem").open("rb", buffering=0) as memory:
            memory.seek(mapped.start)
            content = memory.read(min(size_bytes, _MAX_VDSO_BYTES))
        return image_of(content), size_bytes
    except (OSError, ValueError, StopIteration):
        return None, 0
