"""
Which files carry our probes, for whom, and until when.

A uprobe belongs to an inode: once a library carries probes, every process that maps
it later runs into them, with no gap. It also keeps that inode, and so its file system,
in use; a library that is mapped no more must be let go, or no container could be
unmounted.
"""

import logging
import os
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otel_gpu.capture.libraries import ElfSymbols
from otel_gpu.capture.objects import Link
from otel_gpu.capture.programs import (
    ENTER_CALL,
    ENTER_FORK,
    EXIT_CALL,
    LIBRARY_LIST_CHANGED,
    REPORT_BLOCK,
    REPORT_OUT_OF_MEMORY,
    Programs,
)
from otel_gpu.errors import BpfError
from otel_gpu.probe_table import Probe, probes_of
from otel_gpu.procfs.mapped_files import FileId, MappedFile

# How long an unused file keeps its probes: a training script that is started again at
# once should not pay for them twice.
UNUSED_LIMIT_S = 30.0
MAX_FILES = 4096
_FORKS = ("fork", "vfork", "posix_spawn", "posix_spawnp")
# As of PyTorch 2.0, and before.
_REPORTS = {
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE": REPORT_BLOCK,
    "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE": REPORT_BLOCK,
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE": REPORT_OUT_OF_MEMORY,
    "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE": REPORT_OUT_OF_MEMORY,
}
_U64 = (1 << 64) - 1

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _File:
    is_cuda: bool = False
    links: list[Link] = field(default_factory=list)
    users: set[int] = field(default_factory=set)
    unused_since_s: float | None = None
    # Of a library to which blocks are reported: itself, where the function is, and the probe.
    report_fd: int = -1
    report_offsets: list[int] = field(default_factory=list)
    report_links: list[Link] = field(default_factory=list)


class Attachments:
    """The probes in libraries."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._files: dict[FileId, _File] = {}

    def examine(self, pid: int, files: Iterable[MappedFile]) -> Iterator[dict[str, Any]]:
        """
        Put probes into everything that a process maps and that wants them.

        Yields:
            What RECORD_PROBES says, per library that is new.
        """
        try:
            executable = str(Path(f"/proc/{pid}/exe").readlink())
        except OSError:
            return
        self.forget(pid)
        for mapped in files:
            known = self._files.get(mapped.file)
            # What carries no probe and is not mapped may be gone, its inode another's.
            if known is None or not (known.users or known.links):
                if not (
                    mapped.is_cuda_library
                    or mapped.is_dynamic_linker
                    or mapped.is_c_library
                    or (mapped.is_allocator and self._programs.blocks.are_followed)
                    or mapped.path == executable
                ):
                    continue
                if len(self._files) >= MAX_FILES:
                    _logger.warning("%s of process %d gets no probe: too many", mapped.path, pid)
                    continue
                known = self._files[mapped.file] = _File()
                yield from self._attach(mapped, known)
            known.users.add(pid)

    def reporters(self) -> dict[FileId, set[int]]:
        """Return the processes that may report blocks, by the library that they report them to."""
        return {key: file.users for key, file in self._files.items() if file.report_offsets}

    def see_reports(self, library: FileId) -> None:
        """See the blocks that are reported to a library from now on."""
        self._see_reports(self._files[library])

    def ignore_reports(self, library: FileId) -> None:
        """Have blocks be reported to a library at no cost, and unseen."""
        self._programs.bpf.detach(self._files[library].report_links)
        self._files[library].report_links = []

    def cuda_users(self) -> set[int]:
        """Return the processes that map a file with CUDA probes."""
        return {pid for file in self._files.values() if file.is_cuda for pid in file.users}

    def uses_cuda(self, pid: int) -> bool:
        """Say whether a process maps a file with CUDA probes."""
        return any(pid in file.users for file in self._files.values() if file.is_cuda)

    def inherit(self, parent_pid: int, child_pid: int) -> None:
        """A forked child maps what its parent maps."""
        for file in self._files.values():
            if parent_pid in file.users:
                file.users.add(child_pid)

    def forget(self, pid: int) -> None:
        """A process ended, or became another program."""
        for file in self._files.values():
            file.users.discard(pid)

    def keep(self, pids: Collection[int]) -> None:
        """Forget all other processes: the end of one that is not watched is not reported."""
        for file in self._files.values():
            file.users.intersection_update(pids)

    def detach_unused(self, now_s: float | None = None) -> None:
        """Let go of files that no process has mapped for a while."""
        now_s = time.monotonic() if now_s is None else now_s
        detached = False
        for key, file in list(self._files.items()):
            if file.users:
                file.unused_since_s = None
            elif file.unused_since_s is None:
                file.unused_since_s = now_s
            elif now_s - file.unused_since_s >= UNUSED_LIMIT_S:
                self._programs.bpf.detach([*file.links, *file.report_links])
                if file.report_fd >= 0:
                    os.close(file.report_fd)
                del self._files[key]
                detached = True
        if detached:
            self._programs.forget_known()

    def _attach(self, mapped: MappedFile, file: _File) -> Iterator[dict[str, Any]]:
        try:
            fd = mapped.open()
        except OSError as error:
            _logger.warning("%s of process %d is not read: %s", mapped.path, mapped.pid, error)
            return
        with os.fdopen(fd, "rb") as stream:
            try:
                symbols = ElfSymbols(stream)
                path = f"/proc/self/fd/{fd}"
                if mapped.is_dynamic_linker:
                    self._attach_linker(symbols, path, file)
                if mapped.is_c_library:
                    self._attach_forks(symbols, path, file)
                if mapped.is_allocator:
                    self._attach_reports(symbols, fd, file)
                yield from self._attach_calls(symbols, path, mapped, file)
            except (ValueError, OSError, BpfError) as error:
                _logger.warning("%s of process %d: %s", mapped.path, mapped.pid, error)

    def _attach_linker(self, symbols: ElfSymbols, path: str, file: _File) -> None:
        offsets = dict(symbols.functions)
        function, state = "_dl_debug_state", "_r_debug"
        if function in offsets and state in symbols.addresses:
            distance = symbols.addresses[state] - symbols.addresses[function]
            file.links += self._programs.bpf.attach_uprobes(
                LIBRARY_LIST_CHANGED, path, [(offsets[function], distance & _U64)]
            )

    def _attach_forks(self, symbols: ElfSymbols, path: str, file: _File) -> None:
        offsets = {offset for name, offset in symbols.functions if name in _FORKS}
        file.links += self._programs.bpf.attach_uprobes(
            ENTER_FORK, path, [(offset, 0) for offset in sorted(offsets)]
        )

    def _attach_reports(self, symbols: ElfSymbols, fd: int, file: _File) -> None:
        found = {name: offset for name, offset in symbols.functions if name in _REPORTS}
        failures = [(found[name], 0) for name in found if _REPORTS[name] == REPORT_OUT_OF_MEMORY]
        file.links += self._programs.bpf.attach_uprobes(
            REPORT_OUT_OF_MEMORY, f"/proc/self/fd/{fd}", failures
        )
        file.report_offsets = [found[name] for name in found if _REPORTS[name] == REPORT_BLOCK]
        if file.report_offsets:
            file.report_fd = os.dup(fd)
            self._see_reports(file)

    def _see_reports(self, file: _File) -> None:
        places = [(offset, 0) for offset in file.report_offsets]
        path = f"/proc/self/fd/{file.report_fd}"
        file.report_links = self._programs.bpf.attach_uprobes(REPORT_BLOCK, path, places)

    def _attach_calls(
        self, symbols: ElfSymbols, path: str, mapped: MappedFile, file: _File
    ) -> Iterator[dict[str, Any]]:
        probes = probes_of(symbols.functions)
        if not probes:
            return
        failed = self._attach_all(path, probes, mapped, file)
        file.is_cuda = len(failed) < len(probes)
        yield {
            "library": mapped.path,
            "device": mapped.file.device,
            "inode": mapped.file.inode,
            "build_id": symbols.build_id,
            "symbols": len(probes) - len(failed),
            "exported": len(probes),
            "failed": failed,
        }

    def _attach_all(
        self, path: str, probes: list[Probe], mapped: MappedFile, file: _File
    ) -> list[str]:
        """Probe these functions, and return the symbols of those that carry none."""
        try:
            file.links += self._attach_pairs(path, probes)
        except BpfError as error:
            # It may be about one function, which is not to cost us the others.
            failed = []
            for probe in probes:
                try:
                    file.links += self._attach_pairs(path, [probe])
                except BpfError:
                    failed.append(probe.symbol)
            _logger.warning(
                "%s of process %d: %d of %d functions carry no probe: %s",
                *(mapped.path, mapped.pid, len(failed), len(probes), error),
            )
            return failed
        return []

    def _attach_pairs(self, path: str, probes: list[Probe]) -> list[Link]:
        bpf = self._programs.bpf
        places = [(probe.file_offset, probe.api.number | probe.variant << 16) for probe in probes]
        # Returns first: an entry without its return would stay open for ever.
        links = bpf.attach_uprobes(EXIT_CALL, path, places, on_return=True)
        try:
            return links + bpf.attach_uprobes(ENTER_CALL, path, places)
        except BpfError:
            bpf.detach(links)
            raise
