"""
The watched programs, and their probes, facts, interpreters and stacks.

A process is watched because its parent is, because the user named it, or because it uses CUDA. An exec makes
it another program. Records of the kernel side report all of this; periodic searches of /proc find what they
miss.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.bpf.settings import process_flags
from otel_gpu.capture.ending import Ending
from otel_gpu.capture.maps.block_windows import BlockWindows
from otel_gpu.capture.probes.attachments import Attachments, NewLibrary
from otel_gpu.capture.probes.early_calls import EarlyCalls
from otel_gpu.capture.probes.missed_starts import MissedStart, MissedStarts
from otel_gpu.capture.processes.discovery import ProcessDiscovery
from otel_gpu.capture.processes.interpreters import Interpreters
from otel_gpu.capture.processes.stale_entries import StaleEntries
from otel_gpu.capture.processes.stopped_processes import Hold
from otel_gpu.capture.processes.thread_contexts import ThreadContexts
from otel_gpu.capture.record_headers import header_of
from otel_gpu.config import Config
from otel_gpu.faults import Faults
from otel_gpu.limits.recent import Recent
from otel_gpu.options import ForeignProbes
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.mapped_files import (
    FileId,
    all_pids,
    cgroup_pids,
    child_pids,
    is_cuda_library,
    is_marks_library,
    is_verbs_library,
    mapped_files,
    program_path,
    root_of,
)
from otel_gpu.procfs.process_facts import start_ktime_ns
from otel_gpu.procfs.reader import is_late
from otel_gpu.procfs.uninterruptible_waits import is_locked
from otel_gpu.stacks.read_budget import NotReadError
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import json_record

# Adjacent fields in the header of a record.
_PROGRAM_AND_PID = struct.Struct("<QI")
_PROGRAM_START = wire.RECORD_HEADER.offset_of("program_ktime_ns")
_PROGRAM_BYTES = slice(_PROGRAM_START, _PROGRAM_START + _PROGRAM_AND_PID.size)
_NEWCOMERS_AT_A_TIME = 25
# The resolution of a process's start time in /proc.
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_NEWCOMERS = 4096


class Watchlist:
    """
    The watched programs of one capture.

    Args:
        programs: The loaded programs.
        config: The configuration.
        user_stacks: Gets the mappings of these processes.
        faults: Counts errors; each costs only the probes of its process.
        cgroup: A cgroup whose present and future processes to watch.
        watch_all: Watch every process that maps a CUDA library.
        early_calls: Gets processes that started before they were watched.
        missed_starts: Counts processes whose calls were missed.
        ending: Whether processes still get probes.

    Attributes:
        block_windows: Limits the rate of block reports.
    """

    def __init__(
        self,
        programs: Programs,
        config: Config,
        user_stacks: UserStacks,
        faults: Faults,
        *,
        cgroup: Path | None,
        watch_all: bool,
        early_calls: EarlyCalls | None = None,
        missed_starts: MissedStarts | None = None,
        ending: Ending | None = None,
    ) -> None:
        self._programs = programs
        self._user_stacks = user_stacks
        self._wants_stacks = config.stacks.enabled
        self._faults = faults
        self._cgroup = cgroup
        self._watch_all = watch_all
        self._early_calls = early_calls
        self._ending = ending or Ending()
        self._missed_starts = missed_starts or MissedStarts(lambda _counter: None)
        # When the first discovery was complete, 0 before: earlier programs can have made calls before.
        self._begun_ktime_ns = 0
        self._flags = process_flags(config)
        self._attachments = Attachments(
            programs,
            at_sites=config.capture.probe_sites,
            steps_foreign=config.capture.foreign_probes == ForeignProbes.ALL,
            refusals=programs.refusals,
        )
        self.block_windows = BlockWindows(programs.blocks, self._attachments, config)
        work = programs.file_work
        self._interpreters = Interpreters(programs, in_advance=True, work=work)
        self._thread_contexts = ThreadContexts(programs.contexts, work)
        self._discovery = ProcessDiscovery(programs.processes, config.capture.environment)
        self._stale_entries = StaleEntries(programs)
        self._watched: dict[int, int] = {}
        self._scanned: set[int] = set()
        # How many on-CPU samples found each program.
        self._ticks: Recent[ProcessKey, int] = Recent(_MAX_NEWCOMERS, cache="known_processes")
        # Started before they were watched, and not examined yet.
        self._lived_before: set[int] = set()
        # Their mappings could not be read in time.
        self._unlisted: set[int] = set()
        # Found by the kernel side, and not examined yet.
        self._newcomers: dict[ProcessKey, None] = {}

    @property
    def programs(self) -> Mapping[int, int]:
        """``program_ktime_ns`` by pid of every process that is watched."""
        return self._watched

    @property
    def unknown_interpreters(self) -> Mapping[str, int]:
        """Reasons why stacks lack Python frames, each with the first pid."""
        return self._interpreters.news

    @property
    def is_pending(self) -> bool:
        """Whether programs wait to be examined or described."""
        return bool(self._newcomers) or self._discovery.is_pending

    def cuda_users(self) -> list[int]:
        """Return the living watched pids that use CUDA."""
        users = self._attachments.cuda_users() & self._watched.keys()
        return sorted(filter(program_path, users))

    def trusts_python(self, program: ProcessKey) -> bool | None:
        """Whether Python frames of a program are valid; None if that is unknown yet."""
        return self._interpreters.trusts(program)

    def cannot_know_python(self, program: ProcessKey) -> bool:
        """Whether Python frames of a program cannot be read, for a known reason."""
        return self._interpreters.is_unusable(program)

    def add_command(self, pid: int) -> Iterator[bytes]:
        """Watch the command; it and its children stop while they get probes."""
        self._flags |= wire.PROCESS_STOP_ON_LOAD
        # Before its exec the child maps the agent's dynamic linker, which it will most likely use, too.
        yield from self._probes(pid)
        # Before its exec it is still the agent's program, so no facts are read.
        self._watched[pid] = self._programs.processes.watch(pid, self._flags)

    def add_tree(self, pid: int) -> Iterator[bytes]:
        """Watch a process and its descendants."""
        if pid in self._watched or not Path(f"/proc/{pid}").exists():
            return
        yield from self._watch(pid)
        yield from self._probes(pid)
        for child_pid in child_pids(pid):
            yield from self.add_tree(child_pid)

    def after_fork(self, record: bytes) -> Iterable[bytes]:
        """Handle a RECORD_FORK."""
        fields = wire.FORK_RECORD.named(record)
        child_pid, program_ktime_ns = fields["child_pid"], fields["child_program_ktime_ns"]
        self._watched[child_pid] = program_ktime_ns
        self._attachments.inherit(fields["pid"], child_pid)
        self._interpreters.inherit(fields["pid"], child_pid, program_ktime_ns)
        self._thread_contexts.inherit(fields["pid"], child_pid, program_ktime_ns)
        parent = (fields["pid"], fields["program_ktime_ns"])
        self._user_stacks.processes.inherit(parent, (child_pid, program_ktime_ns))
        # Most children exec soon, so the facts are read later.
        self._discovery.put_off(child_pid, program_ktime_ns)
        return ()

    def after_exec(self, record: bytes) -> Iterator[bytes]:
        """Handle a RECORD_EXEC, and continue the process if it is stopped."""
        fields = wire.EXEC_RECORD.named(record)
        pid = fields["pid"]
        with self._hold(fields) as hold:
            self._discovery.give_up(pid, fields["old_program_ktime_ns"])
            self._watched[pid] = fields["program_ktime_ns"]
            self._attachments.forget(pid)
            self._interpreters.forget(pid)
            self._thread_contexts.forget(pid)
            self._user_stacks.processes.end((pid, fields["old_program_ktime_ns"]))
            note = self._note_missed(fields, hold) if hold.stopped else self._in_doubt
            yield from self._probes(pid, note)
            self._programs.mark_known(FileId(fields["device"], fields["inode"]))
            self._discovery.put_off(pid, fields["program_ktime_ns"])
        yield from self._discovery.make_some()

    def after_library(self, record: bytes) -> Iterator[bytes]:
        """Handle a RECORD_LIBRARY, and continue the process if it is stopped."""
        fields = wire.LIBRARY_RECORD.named(record)
        pid = fields["pid"]
        if fields["flags"] & wire.LIBRARY_NOT_CUDA:
            self._user_stacks.processes.hurry((pid, fields["program_ktime_ns"]))
            return
        path = fields["path"].split(b"\0")[0].decode(errors="replace")
        with self._hold(fields) as hold:
            yield from self._follow(fields, path, hold)
        # Libraries for RDMA or marks, and files in memory, are not enough to watch a process.
        is_other = is_verbs_library(path) or is_marks_library(path) or "/fd/" in path
        wants = not is_other or self._attachments.uses_cuda(pid)
        if self._watch_all and pid not in self._watched and wants:
            yield from self._watch(pid)
            yield from self._probes(pid)

    def after_preload(self, record: bytes) -> Iterator[bytes]:
        """Handle a RECORD_PRELOAD, and continue the process if it is stopped."""
        fields = wire.PRELOAD_RECORD.named(record)
        program = pid, program_ktime_ns = fields["pid"], fields["program_ktime_ns"]
        with self._hold(fields) as hold:
            self._add_newcomer(pid, program_ktime_ns)
            is_open = self._programs.preloaded.open(program, fields["memory"])
            # The preload library does not count all calls, so probes have to.
            if not is_open or not fields["memory"]:
                note = self._note_missed(fields, hold) if hold.stopped else self._in_doubt
                yield from self._probes(pid, note)

    def after_tick(self, record: bytes) -> Iterator[bytes]:
        """
        Handle a RECORD_CPU_SAMPLE, whose process can run Python without CUDA.

        It is examined at its samples number 1, 2, 4, 8 and so on.
        """
        program_ktime_ns, pid = _PROGRAM_AND_PID.unpack_from(record, _PROGRAM_START)
        seen = self._ticks.get((pid, program_ktime_ns), 0) + 1
        self._ticks[pid, program_ktime_ns] = seen
        is_seldom = seen & (seen - 1) == 0
        if (
            is_seldom
            and self._watched.get(pid) == program_ktime_ns
            and pid not in self._interpreters
        ):
            yield from self._probes(pid)

    def after_exit(self, record: bytes) -> Iterable[bytes]:
        """Handle a RECORD_EXIT."""
        header = header_of(record)
        self._missed_starts.settle(header.pid)
        self._discovery.give_up(header.pid, header.program_ktime_ns)
        self._user_stacks.processes.end((header.pid, header.program_ktime_ns))
        return ()

    def forget(self, pid: int, program_ktime_ns: int) -> None:
        """Forget a program that ended."""
        self._discovery.give_up(pid, program_ktime_ns)
        self._user_stacks.processes.end((pid, program_ktime_ns))
        # Another process can already have the pid.
        if self._watched.get(pid, program_ktime_ns) == program_ktime_ns:
            self._watched.pop(pid, None)
            self._scanned.discard(pid)
            self._unlisted.discard(pid)
            self._attachments.forget(pid)
            self._interpreters.forget(pid)
            self._thread_contexts.forget(pid)

    def notice(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """
        Yield the records, and queue the programs that they are about.

        With ``watch_all``, the kernel side watches every process that makes a CUDA call.
        """
        if not self._watch_all:
            yield from records
            return
        starts = set()
        for record in records:
            starts.add(record[_PROGRAM_BYTES])
            yield record
        for raw in starts:
            program_ktime_ns, pid = _PROGRAM_AND_PID.unpack(raw)
            self._add_newcomer(pid, program_ktime_ns)

    def describe_some(self) -> Iterator[bytes]:
        """Examine some programs that the kernel side found, and yield records of some queued ones."""
        for _ in range(min(_NEWCOMERS_AT_A_TIME, len(self._newcomers))):
            pid, program_ktime_ns = program = next(iter(self._newcomers))
            del self._newcomers[program]
            if self._watched.get(pid) == program_ktime_ns:
                continue
            # Skip programs that have ended or were replaced since.
            if self._programs.processes.program_ktime_ns(pid) == program_ktime_ns:
                self._watched[pid] = program_ktime_ns
                self._programs.processes.watch_threads(pid, program_ktime_ns, self._flags)
                self._discovery.put_off(pid, program_ktime_ns)
                yield from self._probes(pid)
        yield from self._discovery.make_some()

    def discover(self) -> Iterator[bytes]:
        """Search /proc for processes to watch, and remove probes of unused files."""
        if self._cgroup:
            with contextlib.suppress(OSError):
                for pid in set(cgroup_pids(self._cgroup)) - self._watched.keys():
                    yield from self.add_tree(pid)
                    if self._begun_ktime_ns and self._attachments.uses_cuda(pid):
                        self._miss(pid, MissedStart.FOUND_LATE)
        if self._watch_all:
            pids = set(all_pids())
            self._attachments.keep(pids)
            pids.discard(os.getpid())
            for pid in pids - self._scanned:
                yield from self._probes(pid)
            self._scanned = pids
            # Programs that made calls without a record, and programs that were found by their library.
            for pid, program_ktime_ns in self._programs.processes.programs().items():
                self._add_newcomer(pid, program_ktime_ns)
            for pid in self._attachments.cuda_users() - self._watched.keys():
                yield from self._watch(pid)
                yield from self._probes(pid)
        for pid, program_ktime_ns in self._programs.preloaded.take_refused():
            if self._watched.get(pid) == program_ktime_ns:
                yield from self._probes(pid)
        yield from self._ask_again()
        self._attachments.detach_unused()
        self._interpreters.examine_again()
        self._missed_starts.settle_old()
        self._begun_ktime_ns = self._begun_ktime_ns or kernel_clock.ktime_ns()

    def _ask_again(self) -> Iterator[bytes]:
        for pid in [pid for pid in self._unlisted if not is_late(pid)]:
            self._unlisted.discard(pid)
            yield from self._probes(pid)
        self._discovery.retry()

    def let_ask(self) -> Iterable[bytes]:
        """Remove probes at queries for the device after some seconds."""
        self._attachments.let_ask()
        return ()

    def take_late(self) -> Iterator[bytes]:
        """Handle probes that were placed late; once all are, examine all processes again."""
        were_late = self._attachments.are_late
        for pid, info in self._attachments.take_late():
            yield json_record(wire.RECORD_PROBES, kernel_clock.ktime_ns(), info, pid=pid)
        if were_late and not self._attachments.are_late:
            yield from self.rescan()

    def rescan(self) -> Iterator[bytes]:
        """Place probes in files that were mapped without the dynamic linker."""
        for pid in all_pids() if self._watch_all else list(self._watched):
            yield from self._probes(pid)

    def find_ended(self) -> set[ProcessKey]:
        """Return the programs that ended without a record."""
        return self._stale_entries.ended(self._watched)

    def free_stale_entries(self) -> set[ProcessKey]:
        """Delete map entries of ended programs, and return the living programs."""
        self._stale_entries.free_threads()
        self._stale_entries.free_memory()
        watched = self._programs.processes.programs()
        self._user_stacks.end_others(watched)
        return {*watched.items(), *self._watched.items()}

    def _add_newcomer(self, pid: int, program_ktime_ns: int) -> None:
        # Beyond the limit, programs are found by the next discovery.
        if self._watched.get(pid) != program_ktime_ns and len(self._newcomers) < _MAX_NEWCOMERS:
            self._newcomers[pid, program_ktime_ns] = None

    def _watch(self, pid: int) -> Iterator[bytes]:
        program_ktime_ns = self._programs.processes.watch(pid, self._flags)
        if program_ktime_ns:
            self._watched[pid] = program_ktime_ns
            self._lived_before.add(pid)
            yield from self._discovery.make(pid, program_ktime_ns)

    def _follow(self, record: Mapping[str, Any], path: str, hold: Hold) -> Iterator[bytes]:
        # The process loaded a library.
        pid = record["pid"]
        found: list[NewLibrary] = []
        note_missed = self._note_missed(record, hold)

        def note(arrival: NewLibrary) -> None:
            found.append(arrival)
            note_missed(arrival)

        yield from self._probes(pid, note)
        if hold.stopped and hold.lasts():
            self._missed_starts.stood_still(pid)
            return
        # An earlier stop can have led to the library, or a search of /proc.
        loaded_ktime_ns = record["ktime_ns"]
        is_new = hold.stopped or 0 < self._begun_ktime_ns < loaded_ktime_ns
        if is_new and self._attachments.has_probes_since(
            pid, loaded_ktime_ns, "" if hold.stopped else path
        ):
            self._miss(pid, _late(hold), path)
        if found or not is_cuda_library(path.rpartition("/")[2]) or self._runs(record):
            return
        # Later processes can use the same file.
        with self._faults.at("probes"):
            try:
                for info in self._attachments.examine_path(pid, path, note):
                    yield json_record(wire.RECORD_PROBES, kernel_clock.ktime_ns(), info, pid=pid)
            except OSError:
                reason = MissedStart.LET_GO if hold.stopped else MissedStart.LIBRARY_GONE
                self._miss(pid, reason, path)

    def _runs(self, record: Mapping[str, Any]) -> bool:
        # Whether the process still runs the program of a record.
        pid, program_ktime_ns = record["pid"], record["program_ktime_ns"]
        is_other = self._programs.processes.program_ktime_ns(pid) != program_ktime_ns
        # An ended process has a folder in /proc until its parent waits for it, but no executable.
        return bool(program_path(pid)) and not (program_ktime_ns and is_other)

    def _hold(self, record: Mapping[str, Any]) -> Hold:
        pid, tid, ktime_ns = record["pid"], record["tid"], record["ktime_ns"]
        again = partial(self._programs.processes.has_stopped_since, pid, tid, ktime_ns)
        stopped = bool(record["stopped"])
        return Hold(pid, tid, stopped=stopped, ktime_ns=ktime_ns, has_stopped_again=again)

    def _note_missed(self, record: Mapping[str, Any], hold: Hold) -> Callable[[NewLibrary], None]:
        # A callback for new libraries of a process, which can be stopped until they are probed.
        pid = record["pid"]

        def note(arrival: NewLibrary) -> None:
            reason = arrival.problem
            is_new = arrival.probed_ktime_ns > record["ktime_ns"]
            if not reason and is_new and not (hold.stopped and hold.lasts()):
                # Since its exec, the process can have come to its stop for this library.
                if record["kind"] == wire.RECORD_EXEC and arrival.mapped.path != program_path(pid):
                    self._in_doubt(arrival)
                    return
                reason = _late(hold)
            if reason:
                self._miss(pid, reason, arrival.mapped.path)

        return note

    def _in_doubt(self, arrival: NewLibrary) -> None:
        pid, path = arrival.mapped.pid, arrival.mapped.path
        if arrival.problem:
            self._miss(pid, arrival.problem, path)
        if arrival.problem or not self._begun_ktime_ns:
            return
        # If the process has ended, the dynamic linker's record is still to come.
        started_ktime_ns = start_ktime_ns(pid)
        if started_ktime_ns is not None and arrival.probed_ktime_ns > max(
            started_ktime_ns + _TICK_NS, self._begun_ktime_ns
        ):
            self._missed_starts.doubt(pid, self._watched.get(pid, 0), path)

    def _miss(self, pid: int, reason: MissedStart, file: str = "") -> None:
        self._missed_starts.add(pid, self._watched.get(pid, 0), reason, file=file)

    def _probes(
        self, pid: int, note: Callable[[NewLibrary], None] | None = None
    ) -> Iterator[bytes]:
        # At the end, processes are continued without probes, because each takes milliseconds.
        if self._ending.is_over:
            self._ending.unread += 1
            return
        # It is examined once the kernel does not block any more.
        if is_locked(pid):
            return
        # An error about one process must not affect the others.
        with self._faults.at("probes"):
            yield from self._place_probes(pid, note or self._in_doubt)

    def _place_probes(self, pid: int, note: Callable[[NewLibrary], None]) -> Iterator[bytes]:
        with root_of(pid) as root:
            yield from self._examine(pid, root, note)

    def _examine(
        self, pid: int, root: int | None, note: Callable[[NewLibrary], None]
    ) -> Iterator[bytes]:
        # Interpreter and stacks are examined only once the process is watched; watching it examines it
        # again. Its files are listed once for all three, because the process can be stopped until then.
        program = (pid, self._watched.get(pid, 0))
        try:
            with self._programs.file_work.listing(pid):
                mapped = list(mapped_files(pid))
                is_preloaded = self._programs.preloaded.is_preloaded(program, mapped)
                if pid in self._watched:
                    is_preloaded = is_preloaded and self._programs.preloaded.examine(program)
                    self._interpreters.examine(pid, self._watched[pid], mapped)
                    self._thread_contexts.examine(pid, self._watched[pid], mapped)
        except NotReadError:
            return
        if is_late(pid):
            self._unlisted.add(pid)
            return
        lived_before = pid in self._lived_before
        examine = partial(
            self._attachments.examine, pid, mapped, lived_before=lived_before, root=root, note=note
        )
        found = list(examine(is_preloaded=is_preloaded))
        # The preload library can have turned out just now to take no probe.
        if is_preloaded and not self._programs.preloaded.has_library(mapped):
            self._programs.preloaded.refuse(program)
            found += examine()
        for info in found:
            yield json_record(wire.RECORD_PROBES, kernel_clock.ktime_ns(), info, pid=pid)
        self._programs.preloaded.ask(program)
        if self._wants_stacks and pid in self._watched and self._attachments.uses_cuda(pid):
            self._user_stacks.processes.learn((pid, self._watched[pid]), mapped)
            if lived_before and self._early_calls:
                self._early_calls.expect(pid, self._watched[pid])
        self._lived_before.discard(pid)


def _late(hold: Hold) -> MissedStart:
    return MissedStart.LET_GO if hold.stopped else MissedStart.LIBRARY_LATE
