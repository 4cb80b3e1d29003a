"""
Finds where threads publish the span of their application that they are in (OTEP 4947).

A library of the process has the thread-local symbol ``otel_thread_ctx_v1``. Once the dynamic linker has
placed the library, its location is sent to the kernel side, which reads it.
"""

import logging
import struct
from collections.abc import Iterable
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.processes.thread_locals import FIXED, ThreadLocalSlot, find_slot, place_of
from otel_gpu.errors import MapFullError
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs.mapped_files import FileId, MappedFile, mappings_of, program_path
from otel_gpu.procfs.process_memory import memory_of
from otel_gpu.procfs.process_root import ServedError
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.symbols.elf_file import ElfImage

SYMBOL: Final = b"otel_thread_ctx_v1"

_MAX_FILES: Final = 16_384
_PID: Final = struct.Struct("<I")

_logger = logging.getLogger(__name__)


class ContextPlaces:
    """
    The kernel side's map of context locations.

    Args:
        bpf: The object with the map.
        lost: Counters by ``enum counter``, for locations beyond the size of the map.
    """

    def __init__(self, bpf: BpfObject, lost: list[int]) -> None:
        self._places = bpf.map("thread_contexts")
        self._publishers = bpf.map("publishers")
        self._lost = lost
        self._pids: set[int] = set()

    def set(self, pid: int, place: bytes) -> None:
        """Set the location in a process, as ``THREAD_CONTEXT_PLACE``."""
        try:
            self._places.update(_PID.pack(pid), place)
        except MapFullError:
            self._lost[wire.COUNTER_LOST_INTERPRETERS_FULL] += 1
            return
        self._pids.add(pid)
        self._count()

    def forget(self, pid: int) -> None:
        """Delete a process that ended."""
        self._places.delete(_PID.pack(pid))
        self._pids.discard(pid)
        self._count()

    def _count(self) -> None:
        # The kernel side skips the lookup at calls if there are none.
        self._publishers.update(_PID.pack(0), _PID.pack(len(self._pids)))


class ThreadContexts:
    """Finds the processes that publish the context of their threads."""

    def __init__(self, places: ContextPlaces, work: FileWork | None = None) -> None:
        self._places = places
        self._work = work or FileWork()
        self._slots: Recent[FileId, ThreadLocalSlot | None] = Recent(_MAX_FILES)
        # By pid: program_ktime_ns, module and offset.
        self._known: dict[int, tuple[int, int, int]] = {}

    def examine(self, pid: int, program_ktime_ns: int, files: Iterable[MappedFile]) -> None:
        """Search the symbol in a process's mapped files, unless it was found."""
        known = self._known.get(pid)
        if known is not None and known[0] == program_ktime_ns:
            return
        for mapped in files:
            slot = self._slot_of(mapped)
            place = None if slot is None else _read_place(slot, mapped)
            if place is not None:
                _logger.debug("process %d publishes thread contexts by %s", pid, mapped.name)
                self._set(pid, program_ktime_ns, *place)
                return

    def inherit(self, parent_pid: int, child_pid: int, program_ktime_ns: int) -> None:
        """Give a forked child its parent's location: their libraries are the same."""
        known = self._known.get(parent_pid)
        if known is not None:
            self._set(child_pid, program_ktime_ns, *known[1:])

    def forget(self, pid: int) -> None:
        """Forget a process that ended or executed another program."""
        if self._known.pop(pid, None) is not None:
            self._places.forget(pid)

    def _set(self, pid: int, program_ktime_ns: int, module: int, offset: int) -> None:
        self._known[pid] = (program_ktime_ns, module, offset)
        place = wire.THREAD_CONTEXT_PLACE.pack(program_ktime_ns, offset, module)
        self._places.set(pid, place)

    def _slot_of(self, mapped: MappedFile) -> ThreadLocalSlot | None:
        # Inodes are reused. A location from the wrong file leads to an invalid context, which is ignored.
        if mapped.file not in self._slots:
            try:
                with self._work.reading(mapped.pid, mapped.path):
                    self._slots[mapped.file] = _find_slot(mapped, self._work)
            except (NotReadError, ServedError):
                return None
        return self._slots[mapped.file]


def _find_slot(mapped: MappedFile, work: FileWork) -> ThreadLocalSlot | None:
    try:
        elf = ElfImage(work.open(mapped))
    except ServedError:
        raise  # Not cached, because its inode can soon be another file's.
    except (OSError, ValueError):
        return None
    try:
        return find_slot(elf, SYMBOL)
    finally:
        elf.close()


def _read_place(slot: ThreadLocalSlot, mapped: MappedFile) -> tuple[int, int] | None:
    # Module and offset; None: the dynamic linker has not filled them in, or they are invalid.
    if slot.kind == FIXED and mapped.path != program_path(mapped.pid):
        return None
    starts = (
        mapping.start - slot.pages[mapping.file_offset]
        for mapping in (mapped, *mappings_of(mapped))
        if mapping.file_offset in slot.pages
    )
    start = next(starts, None)
    if start is None:
        return None
    with memory_of(mapped.pid) as read:
        return place_of(slot, start, read)
