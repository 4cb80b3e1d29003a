"""
Places probes in files, and removes them when no process maps the file.

A uprobe belongs to an inode: once a library carries probes, every process that maps it later hits
them from its first call. The probe also keeps the inode, and so its file system, in use. If probes in
unused files were not removed, containers could not be unmounted.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import (
    AT_PRELOAD,
    ENTER_FORK,
    LIBRARY_LIST_CHANGED,
    NOTE_RANGES,
    REPORT_BLOCK,
    REPORT_OUT_OF_MEMORY,
    REPORT_RANGE,
    REPORT_STEP,
    Programs,
)
from otel_gpu.capture.preload.preloaded_programs import PRELOAD_THREAD
from otel_gpu.capture.probes.attacher import AnyLink, ProbeLink, waiting
from otel_gpu.capture.probes.call_probes import attach_probes
from otel_gpu.capture.probes.device_queries import DeviceQueries, asks_of
from otel_gpu.capture.probes.elf_exports import ElfSymbols
from otel_gpu.capture.probes.library_sites import LibrarySites, describe_sites
from otel_gpu.capture.probes.missed_starts import MissedStart
from otel_gpu.capture.probes.refusals import Refusals
from otel_gpu.errors import BpfError
from otel_gpu.limits.recent import Recent
from otel_gpu.limits.shares import EntryOwner, ShareBound, Shares, of_user
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import FileId, MappedFile, all_pids, file_of, program_path
from otel_gpu.procfs.proc_files import close_file, process_name, stream_of
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.procfs.process_root import ServedError, open_in_root
from otel_gpu.procfs.uninterruptible_waits import find_waits, waits_for_server
from otel_gpu.procfs.users import OWN, real_uid, user_name
from otel_gpu.stacks.read_budget import NotReadError
from otel_gpu.wire.bodies import ProbedLibrary
from otel_gpu.wire.probe_symbols import Probe, probes_of

# How long an unused file keeps its probes, so that a script that is restarted at once does not wait for
# them again.
UNUSED_LIMIT_S = 30.0
MAX_FILES = 4096
_MAX_UNREAD = 256
_MAX_NAMED = 4
# In the dynamic linker (glibc, musl): the function that it calls when its list of libraries has changed,
# and the symbols of that list (0) or of a pointer to it (1).
_LIST_CHANGED = "_dl_debug_state"
_LISTS = {"_r_debug": 0, "_dl_debug_addr": 1}
_FORKS = ("fork", "vfork", "posix_spawn", "posix_spawnp")
# Since PyTorch 2.0, and before.
_REPORTS = {
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE": REPORT_BLOCK,
    "_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE": REPORT_BLOCK,
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE": REPORT_OUT_OF_MEMORY,
    "_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE": REPORT_OUT_OF_MEMORY,
}
_MARKS = {
    "otel_gpu_step": REPORT_STEP,
    "otel_gpu_nvtx_range": REPORT_RANGE,
    "otel_gpu_nvtx_thread": NOTE_RANGES,
}
_PRELOAD = {
    PRELOAD_THREAD: wire.PRELOAD_PROBE_THREAD,
    "otel_gpu_preload_call": wire.PRELOAD_PROBE_CALL,
    "otel_gpu_preload_gap": wire.PRELOAD_PROBE_GAP,
}
_U64 = (1 << 64) - 1

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _File:
    # The share that it counts for: that of the first program that mapped it.
    holder: EntryOwner
    path: str
    is_program: bool = False
    is_cuda: bool = False
    # When the library got its probes; 0: it has none yet.
    probed_ktime_ns: int = 0
    links: list[AnyLink] = field(default_factory=list)
    users: set[int] = field(default_factory=set)
    unused_since_s: float | None = None
    # Users that count frequent calls themselves. While all users do, those calls carry no probe.
    preloaded_users: set[int] = field(default_factory=set)
    hot: list[Probe] = field(default_factory=list)
    # All frequent functions of the library, with or without a probe.
    hot_count: int = 0
    hot_links: list[AnyLink] = field(default_factory=list)
    only_preloaded_since_s: float | None = None
    asks: DeviceQueries | None = None
    # The body of RECORD_PROBES.
    info: ProbedLibrary | None = None
    # If frameworks report blocks to it: its descriptor, the offsets of the functions, and the probes.
    report_fd: int = -1
    report_offsets: list[int] = field(default_factory=list)
    report_links: list[AnyLink] = field(default_factory=list)

    @property
    def all_links(self) -> list[AnyLink]:
        return [*self.links, *self.hot_links, *self.report_links]


class NewLibrary(NamedTuple):
    """
    A library with functions to probe, in a process that newly maps it.

    ``probed_ktime_ns`` is when it got its probes; 0: it has none, because of ``problem``.
    """

    mapped: MappedFile
    probed_ktime_ns: int
    problem: MissedStart | None


def _holders(pid: int) -> str:
    # The processes that the kernel can be waiting for, which need not map the file.
    found = dict(find_waits([pid]))
    found |= dict(wait for wait in find_waits(all_pids()) if waits_for_server(wait))
    named = [
        f"process {holder} ({process_name(holder)}) {of_user(user_name(real_uid(holder)))}, which waits in {place}"
        for holder, place in list(found.items())[:_MAX_NAMED]
    ]
    return " or ".join(named) or "a program that maps such a file"


# The kernel waits for each link that is detached, and there can be thousands.
_DETACHES_S = 0.1


class Attachments:
    """
    The probes in libraries.

    Args:
        programs: The loaded programs.
        at_sites: Put probes where they cost least; False: always at function entries.
        steps_foreign: See ``LibrarySites``.
        refusals: Gets programs that map more files than their share.

    Attributes:
        are_late: Whether the kernel delays probes.
    """

    def __init__(
        self,
        programs: Programs,
        *,
        at_sites: bool = True,
        steps_foreign: bool = False,
        refusals: Refusals | None = None,
    ) -> None:
        self._programs = programs
        self._at_sites = at_sites
        self._steps_foreign = steps_foreign
        self._files: dict[FileId, _File] = {}
        self._shares = Shares(MAX_FILES)
        self._refusals = refusals or Refusals()
        self._unread: Recent[str, None] = Recent(_MAX_UNREAD)
        # Files that wait for probes, with the process that was examined.
        self._late: dict[FileId, int] = {}
        self._waits_for = ""
        self.are_late = False

    def examine(
        self,
        pid: int,
        files: Iterable[MappedFile],
        *,
        is_preloaded: bool = False,
        lived_before: bool = False,
        root: int | None = None,
        note: Callable[[NewLibrary], None] = lambda _arrival: None,
    ) -> Iterator[ProbedLibrary]:
        """
        Place probes in the mapped files of a process that need them.

        ``is_preloaded``: the process counts frequent calls itself, so these get no probes.
        ``lived_before``: it selected its device before it was watched. ``root``: see ``MappedFile.open``.
        ``note`` is called with libraries that are new to the process.

        Yields:
            The body of RECORD_PROBES for each new library.
        """
        executable = program_path(pid)
        had = {key for key, file in self._files.items() if pid in file.users}
        self.forget(pid)
        holder, refused = EntryOwner(pid, real_uid(pid)), 0
        for mapped in files:
            known = self._files.get(mapped.file)
            problem = None
            # A file without probes and users may be deleted, and its inode reused.
            is_same = mapped.file in had and known is not None and known.path == mapped.path
            if known is None or not (known.users or known.links or is_same):
                if not self._wants(mapped, executable):
                    continue
                known = _File(holder, mapped.path, is_program=mapped.path == executable)
                infos, problem = self._probe_file(mapped, known, root, is_preloaded=is_preloaded)
                refused += problem is MissedStart.TOO_MANY
                yield from infos
            elif mapped.file in self._late and not known.probed_ktime_ns:
                problem = MissedStart.LATE
            known.users.add(pid)
            if is_preloaded:
                known.preloaded_users.add(pid)
            elif known.hot and not known.hot_links:
                yield from self._probe_hot(mapped, known, root)
            if lived_before and known.asks:
                known.asks.see(mapped)
            if mapped.file not in had and (known.is_cuda or mapped.is_cuda_library):
                is_refused = bool(known.info) and not known.is_cuda
                note(
                    NewLibrary(
                        mapped,
                        known.probed_ktime_ns,
                        MissedStart.REFUSED if is_refused else problem,
                    )
                )
        if refused:
            self._refusals.add_at_least(ShareBound.FILES, holder, refused)

    def take_late(self) -> Iterator[tuple[int, ProbedLibrary]]:
        """
        Handle files whose delayed probes were placed.

        Yields:
            A pid that maps the file, and the body of RECORD_PROBES.
        """
        self.are_late = self._programs.bpf.take_answers()
        for key, pid in list(self._late.items()):
            file = self._files.get(key)
            links = file.all_links if file else []
            if waiting(links):
                continue
            del self._late[key]
            if file is None:
                continue
            if any(isinstance(link, ProbeLink) and link.error for link in links):
                # It is probed again when a process that maps it is next examined.
                self._remove(key, file)
                continue
            if not file.probed_ktime_ns:
                file.probed_ktime_ns = kernel_clock.ktime_ns()
            if file.info:
                yield pid, file.info
        if not self.are_late:
            self._waits_for = ""

    def _note_late(self, mapped: MappedFile, file: _File) -> bool:
        # Whether the file waits for probes.
        if not waiting(file.all_links):
            return False
        self._late[mapped.file] = mapped.pid
        self.are_late = True
        self._waits_for = self._waits_for or _holders(mapped.pid)
        PROCESS_LOG.warning(
            _logger,
            mapped.pid,
            "%s of process %d has no probes yet: the kernel waits for %s",
            *(mapped.path, mapped.pid, self._waits_for),
        )
        return True

    def examine_path(
        self, pid: int, path: str, note: Callable[[NewLibrary], None]
    ) -> Iterator[ProbedLibrary]:
        """
        Place probes in a library of a process that has ended, for later processes.

        Raises:
            OSError: The path cannot be opened.
        """
        try:
            fd = open_in_root("/", path, user=OWN, pid=pid)
        except ServedError as error:
            self._programs.file_work.refuse(pid, path, error)
            raise
        try:
            mapped = MappedFile(pid, file_of(fd), start=0, end=0, path=path)
        finally:
            close_file(fd)
        yield from self.examine(pid, [mapped], note=note)
        self.forget(pid)

    def _wants(self, mapped: MappedFile, executable: str) -> bool:
        return (
            mapped.is_cuda_library
            or mapped.is_verbs_library
            or mapped.is_dynamic_linker
            or mapped.is_c_library
            or mapped.is_marks_library
            or mapped.is_preload_library
            or mapped.is_in_memory
            or (mapped.is_allocator and self._programs.blocks.are_followed)
            or mapped.path == executable
        )

    def reporters(self) -> dict[FileId, set[int]]:
        """Return, by library, the pids that can report blocks to it."""
        return {key: file.users for key, file in self._files.items() if file.report_offsets}

    def see_reports(self, library: FileId) -> None:
        """Probe the functions to which blocks are reported."""
        self._see_reports(self._files[library])

    def ignore_reports(self, library: FileId) -> None:
        """Remove the probes at the functions to which blocks are reported."""
        self._programs.bpf.detach(self._files[library].report_links)
        self._files[library].report_links = []

    def cuda_users(self) -> set[int]:
        """Return the pids that map a file with CUDA probes."""
        return {pid for file in self._files.values() if file.is_cuda for pid in file.users}

    def uses_cuda(self, pid: int) -> bool:
        """Whether a process maps a file with CUDA probes."""
        return any(pid in file.users for file in self._files.values() if file.is_cuda)

    def has_probes_since(self, pid: int, ktime_ns: int, path: str = "") -> bool:
        """Whether a file that a process maps, of that path or any, got CUDA probes after that time."""
        return any(
            pid in file.users and file.probed_ktime_ns > ktime_ns and path in {"", file.path}
            for file in self._files.values()
            if file.is_cuda
        )

    def inherit(self, parent_pid: int, child_pid: int) -> None:
        """Give a forked child the mappings of its parent."""
        for file in self._files.values():
            if parent_pid in file.users:
                file.users.add(child_pid)
            if parent_pid in file.preloaded_users:
                file.preloaded_users.add(child_pid)

    def forget(self, pid: int) -> None:
        """Forget the mappings of a process that ended or executed another program."""
        for file in self._files.values():
            file.users.discard(pid)
            file.preloaded_users.discard(pid)

    def keep(self, pids: Collection[int]) -> None:
        """Forget all processes but these, because ends of unwatched processes are not reported."""
        for file in self._files.values():
            file.users.intersection_update(pids)
            file.preloaded_users.intersection_update(pids)

    def let_ask(self, now_s: float | None = None) -> None:
        """Remove probes at queries for the device that have been there for some seconds."""
        until_s = time.monotonic() + _DETACHES_S
        for file in self._files.values():
            if file.asks:
                file.asks.expire(time.monotonic() if now_s is None else now_s)
                # The others come next time.
                if time.monotonic() >= until_s:
                    break

    def detach_unused(self, now_s: float | None = None) -> None:
        """Remove the probes of files that no process has mapped for a while."""
        until_s = time.monotonic() + _DETACHES_S
        now_s = time.monotonic() if now_s is None else now_s
        detached = False
        for key, file in list(self._files.items()):
            if file.users:
                file.unused_since_s = None
                self._leave_to_preloaded(file, now_s)
            elif file.unused_since_s is None:
                file.unused_since_s = now_s
            elif now_s - file.unused_since_s >= UNUSED_LIMIT_S:
                self._remove(key, file)
                detached = True
                # The others come next time.
                if time.monotonic() >= until_s:
                    break
        if detached:
            self._programs.forget_known()

    def _remove(self, key: FileId, file: _File) -> None:
        self._programs.bpf.detach(file.all_links)
        if file.asks:
            file.asks.ignore()
        if file.report_fd >= 0:
            close_file(file.report_fd)
        self._drop(key)

    def _drop(self, key: FileId) -> None:
        self._shares.release(self._files.pop(key).holder)

    def _leave_to_preloaded(self, file: _File, now_s: float) -> None:
        if not (file.hot and file.hot_links) or file.users - file.preloaded_users:
            file.only_preloaded_since_s = None
        elif file.only_preloaded_since_s is None:
            file.only_preloaded_since_s = now_s
        elif now_s - file.only_preloaded_since_s >= UNUSED_LIMIT_S:
            self._programs.bpf.detach(file.hot_links)
            file.hot_links = []
            if file.info is not None:
                symbols = file.info["symbols"] - len(file.hot)
                file.info = {**file.info, "symbols": symbols, "preload": file.hot_count}

    def _probe_file(
        self, mapped: MappedFile, file: _File, root: int | None, *, is_preloaded: bool
    ) -> tuple[Sequence[ProbedLibrary], MissedStart | None]:
        # Returns bodies of RECORD_PROBES, and why the file has no probes.
        if mapped.file in self._files:
            self._drop(mapped.file)
        if not self._programs.bpf.can_queue:
            return (), MissedStart.LATE
        if not self._shares.take(file.holder):
            return (), MissedStart.TOO_MANY
        try:
            stream = self._open(mapped, root)
            if stream is None:
                self._shares.release(file.holder)
                return (), MissedStart.UNREADABLE
            with stream, self._programs.file_work.reading(mapped.pid, mapped.path):
                self._files[mapped.file] = file
                infos = tuple(self._attach(mapped, stream, file, is_preloaded=is_preloaded))
        except NotReadError:  # It can be read for another process, or later.
            if mapped.file not in self._files:
                self._shares.release(file.holder)
            return (), MissedStart.NOT_READ
        if self._note_late(mapped, file):
            file.probed_ktime_ns = 0
            return (), MissedStart.LATE
        return infos, None

    def _attach(
        self, mapped: MappedFile, stream: BinaryIO, file: _File, *, is_preloaded: bool
    ) -> Iterator[ProbedLibrary]:
        with stream:
            fd = stream.fileno()
            try:
                symbols = ElfSymbols(stream)
                sites = LibrarySites(
                    symbols,
                    stream,
                    are_chosen=self._at_sites,
                    steps_foreign=self._steps_foreign,
                )
                path = f"/proc/self/fd/{fd}"
                self._attach_linker(symbols, sites, path=path, file=file)
                if mapped.is_c_library:
                    self._attach_entries(
                        symbols,
                        sites,
                        path=path,
                        file=file,
                        programs=dict.fromkeys(_FORKS, ENTER_FORK),
                    )
                if mapped.is_marks_library:
                    self._attach_entries(
                        symbols, sites, path=path, file=file, programs=_MARKS, are_own=True
                    )
                if mapped.is_allocator:
                    self._attach_reports(symbols, sites, fd=fd, file=file)
                if mapped.is_preload_library and self._attach_preload(
                    symbols, sites, path=path, mapped=mapped, file=file
                ):
                    return
                yield from self._attach_calls(
                    symbols, sites, path=path, mapped=mapped, file=file, is_preloaded=is_preloaded
                )
            except (ValueError, OSError, BpfError) as error:
                # Anonymous memory can also be code that a program generated.
                if not (mapped.is_in_memory and isinstance(error, ValueError)):
                    text = "%s of process %d: %s"
                    PROCESS_LOG.warning(_logger, mapped.pid, text, mapped.path, mapped.pid, error)

    def _attach_linker(
        self, symbols: ElfSymbols, sites: LibrarySites, path: str, file: _File
    ) -> None:
        entry = dict(symbols.functions).get(_LIST_CHANGED)
        lists = (name for name in _LISTS if name in symbols.addresses)
        if entry is not None and (name := next(lists, None)):
            distance = symbols.addresses[name] - symbols.addresses[_LIST_CHANGED]
            for place in sites.choose({_LIST_CHANGED: entry}, reads_stack=False).values():
                cookie = (distance - (place - entry) << 1 | _LISTS[name]) & _U64
                file.links += self._programs.bpf.attach_uprobes(
                    LIBRARY_LIST_CHANGED, path, [(place, cookie)]
                )

    def _attach_entries(
        self,
        symbols: ElfSymbols,
        sites: LibrarySites,
        path: str,
        file: _File,
        programs: Mapping[str, str],
        *,
        are_own: bool = False,
    ) -> None:
        # Functions whose BPF programs read only arguments.
        found = {name: offset for name, offset in symbols.functions if name in programs}
        by_program: dict[str, set[int]] = {}
        chosen = sites.choose(found, reads_stack=False, are_own=are_own)
        for name, place in chosen.items():
            by_program.setdefault(programs[name], set()).add(place)
        for program, places in by_program.items():
            file.links += self._programs.bpf.attach_uprobes(
                program, path, [(place, 0) for place in sorted(places)]
            )

    def _attach_reports(
        self, symbols: ElfSymbols, sites: LibrarySites, fd: int, file: _File
    ) -> None:
        found = sites.choose({name: at for name, at in symbols.functions if name in _REPORTS})
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

    def _attach_preload(
        self,
        symbols: ElfSymbols,
        sites: LibrarySites,
        path: str,
        mapped: MappedFile,
        file: _File,
    ) -> bool:
        # Whether the file is the preload library, whose wrappers of CUDA functions get no probes.
        found = {name: offset for name, offset in symbols.functions if name in _PRELOAD}
        if found and self._programs.preloaded.suits:
            chosen = sites.choose(found, reads_stack=False, are_own=True)
            places = [(offset, _PRELOAD[name]) for name, offset in chosen.items()]
            try:
                file.links += self._programs.bpf.attach_uprobes(AT_PRELOAD, path, places)
            except BpfError:
                self._programs.preloaded.refuse_library(mapped.file)
                raise
        return PRELOAD_THREAD in found

    def _attach_calls(
        self,
        symbols: ElfSymbols,
        sites: LibrarySites,
        path: str,
        mapped: MappedFile,
        file: _File,
        *,
        is_preloaded: bool,
    ) -> Iterator[ProbedLibrary]:
        exported = probes_of(symbols.functions, mapped.name)
        if not exported:
            return
        probes = sites.move(exported)
        if unsafe := list(sites.unsafe):
            _logger.warning(
                "%s of process %d: %d of %d functions carry no probe: the kernel would single-step "
                "them, which is not safe on arm64 (capture.foreign_probes)",
                *(mapped.path, mapped.pid, len(exported) - len(probes), len(exported)),
            )
        file.asks = DeviceQueries(self._programs.bpf, sites.move(asks_of(symbols.functions)))
        # The preload library cannot intercept functions that are linked into the program.
        hot = [] if file.is_program else [probe for probe in probes if probe.api.preload]
        left_out = hot if is_preloaded else []
        placed = [probe for probe in probes if probe not in left_out]
        failed = self._attach_all(path, probes=placed, mapped=mapped, file=file)
        file.hot = [probe for probe in hot if probe.symbol not in failed]
        if not file.is_program:
            file.hot_count = sum(probe.api.preload for probe in exported) - len(hot) + len(file.hot)
        file.is_cuda = len(failed) < len(probes) and not mapped.is_verbs_library
        file.probed_ktime_ns = kernel_clock.ktime_ns()
        file.info = {
            "library": mapped.path,
            "device": mapped.file.device,
            "inode": mapped.file.inode,
            "build_id": symbols.build_id,
            "symbols": len(probes) - len(failed) - len(left_out),
            "exported": len(exported),
            "failed": failed,
            "unsafe": unsafe,
            "preload": file.hot_count if is_preloaded else 0,
            "sites": describe_sites(sites.chosen),
        }
        yield file.info

    def _probe_hot(
        self, mapped: MappedFile, file: _File, root: int | None
    ) -> Iterator[ProbedLibrary]:
        # A process that is not preloaded maps the file, so its frequent functions need probes.
        try:
            stream = self._open(mapped, root)
        except NotReadError:
            return
        if stream is None:
            return
        with stream:
            path = f"/proc/self/fd/{stream.fileno()}"
            failed = self._attach_all(path, probes=file.hot, mapped=mapped, file=file)
            file.hot = [probe for probe in file.hot if probe.symbol not in failed]
        if file.info is None:
            return
        file.info = {
            **file.info,
            "symbols": file.info["symbols"] + len(file.hot),
            "failed": [*file.info["failed"], *failed],
            "preload": 0,
        }
        if not self._note_late(mapped, file):
            yield file.info

    def _attach_all(
        self, path: str, probes: list[Probe], mapped: MappedFile, file: _File
    ) -> list[str]:
        # Returns the symbols of functions that got no probe.
        failed, error = self._attach_parts(path, probes, file)
        if failed:
            PROCESS_LOG.warning(
                _logger,
                mapped.pid,
                "%s of process %d: %d of %d functions carry no probe: %s",
                *(mapped.path, mapped.pid, len(failed), len(probes), error),
            )
        return failed

    def _attach_parts(
        self, path: str, probes: list[Probe], file: _File
    ) -> tuple[list[str], BpfError | None]:
        # An error can be about a single function, so the rest is tried in halves.
        try:
            self._attach_kinds(path, probes, file)
        except BpfError as error:
            if len(probes) == 1:
                return [probes[0].symbol], error
            middle = len(probes) // 2
            parts = [
                self._attach_parts(path, part, file) for part in (probes[:middle], probes[middle:])
            ]
            return [symbol for failed, _ in parts for symbol in failed], error
        return [], None

    def _attach_kinds(self, path: str, probes: list[Probe], file: _File) -> None:
        links = attach_probes(
            self._programs.bpf, path, [probe for probe in probes if not probe.api.preload]
        )
        try:
            file.hot_links += attach_probes(
                self._programs.bpf, path, [probe for probe in probes if probe.api.preload]
            )
        except BpfError:
            self._programs.bpf.detach(links)
            raise
        file.links += links

    def _open(self, mapped: MappedFile, root: int | None) -> BinaryIO | None:
        work = self._programs.file_work
        try:
            with work.reading(mapped.pid, mapped.path):
                return stream_of(work.open(mapped, root))
        except OSError as error:
            # Logged once per path, because many short processes can share a library.
            if mapped.path not in self._unread:
                self._unread[mapped.path] = None
                text = "%s of process %d is not read: %s"
                PROCESS_LOG.warning(_logger, mapped.pid, text, mapped.path, mapped.pid, error)
            return None
