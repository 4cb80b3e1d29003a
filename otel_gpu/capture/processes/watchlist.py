"""
Which processes are watched, and what is done for each: probes, names, interpreters, stacks.

A process comes in with its parent, by name, or because it uses CUDA; it changes with an exec
and goes with its end. Each of that is said by a record of the kernel side, or found by looking
at /proc now and then.
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
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.kernel_waits import is_locked
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
from otel_gpu.stacks.read_budget import NotReadError
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import json_record

# In the header of a record, one after the other.
_PROGRAM_AND_PID = struct.Struct("<QI")
_PROGRAM_START = wire.RECORD_HEADER.offset_of("program_ktime_ns")
_PROGRAM_BYTES = slice(_PROGRAM_START, _PROGRAM_START + _PROGRAM_AND_PID.size)
_NEWCOMERS_AT_A_TIME = 25
# When a process was started is known to a tick.
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_NEWCOMERS = 4096


class Watchlist:
    """
    The watched programs of one capture.

    Args:
        programs: The loaded programs.
        config: The configuration.
        user_stacks: Learns what is needed to resolve stacks of these processes.
        faults: Counts errors; one that is about a process costs its probes.
        cgroup: A cgroup whose processes to watch, also later ones.
        watch_all: Watch whatever maps a CUDA library.
        early_calls: Learns of processes that have lived before they were watched.
        missed_starts: Counts processes of which calls were missed.
        ending: Says whether processes still get probes.

    Attributes:
        block_windows: When reports of blocks are seen.
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
        # What was there before the capture has made calls before it; 0: it is still looked for.
        self._begun_ktime_ns = 0
        self._flags = process_flags(config)
        self._attachments = Attachments(
            programs,
            at_sites=config.capture.probe_sites,
            steps_foreign=config.capture.foreign_probes == "all",
            refusals=programs.refusals,
        )
        self.block_windows = BlockWindows(programs.blocks, self._attachments, config)
        work = programs.file_work
        self._interpreters = Interpreters(programs, in_advance=True, work=work)
        self._thread_contexts = ThreadContexts(programs.contexts, work)
        self._introductions = ProcessDiscovery(programs.processes, config.capture.environment)
        self._leftovers = StaleEntries(programs)
        self._watched: dict[int, int] = {}
        self._scanned: set[int] = set()
        # How many ticks have met a program.
        self._ticks: Recent[ProcessKey, int] = Recent(_MAX_NEWCOMERS)
        # Watched, and not looked at yet.
        self._lived_before: set[int] = set()
        # What they map could not be read in time.
        self._unlisted: set[int] = set()
        # Found by the kernel side, and not looked at yet.
        self._newcomers: dict[ProcessKey, None] = {}

    @property
    def programs(self) -> Mapping[int, int]:
        """``program_ktime_ns`` by pid of every process that is watched."""
        return self._watched

    @property
    def unknown_interpreters(self) -> Mapping[str, int]:
        """Why stacks lack lines of Python, each reason with the first process of it."""
        return self._interpreters.news

    @property
    def is_pending(self) -> bool:
        """Whether somebody waits to be looked at or introduced."""
        return bool(self._newcomers) or self._introductions.is_pending

    def cuda_users(self) -> list[int]:
        """Return the watched processes that use CUDA, and live."""
        users = self._attachments.cuda_users() & self._watched.keys()
        return sorted(filter(program_path, users))

    def trusts_python(self, program: ProcessKey) -> bool | None:
        """Say whether frames of Python are what they seem to be; None: that is not known yet."""
        return self._interpreters.trusts(program)

    def cannot_know_python(self, program: ProcessKey) -> bool:
        """Say whether the frames of Python of a program cannot be known, for a reason that was found."""
        return self._interpreters.is_unusable(program)

    def add_command(self, pid: int) -> Iterator[bytes]:
        """Watch what the user runs through us; it and its children stop while they get probes."""
        self._flags |= wire.PROCESS_STOP_ON_LOAD
        # The child maps what we map: the dynamic linker that it will most likely use.
        yield from self._probes(pid)
        # What is known of it before its exec is what is known of the agent: nothing.
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
        """Take in a RECORD_FORK."""
        fields = wire.FORK_RECORD.named(record)
        child_pid, program_ktime_ns = fields["child_pid"], fields["child_program_ktime_ns"]
        self._watched[child_pid] = program_ktime_ns
        self._attachments.inherit(fields["pid"], child_pid)
        self._interpreters.inherit(fields["pid"], child_pid, program_ktime_ns)
        self._thread_contexts.inherit(fields["pid"], child_pid, program_ktime_ns)
        parent = (fields["pid"], fields["program_ktime_ns"])
        self._user_stacks.processes.inherit(parent, (child_pid, program_ktime_ns))
        # Most children exec at once, which says more; the others are read when there is time.
        self._introductions.put_off(child_pid, program_ktime_ns)
        return ()

    def after_exec(self, record: bytes) -> Iterator[bytes]:
        """Take in a RECORD_EXEC, and let the process go on if it stands still."""
        fields = wire.EXEC_RECORD.named(record)
        pid = fields["pid"]
        with _hold(fields) as hold:
            self._introductions.give_up(pid, fields["old_program_ktime_ns"])
            self._watched[pid] = fields["program_ktime_ns"]
            self._attachments.forget(pid)
            self._interpreters.forget(pid)
            self._thread_contexts.forget(pid)
            self._user_stacks.processes.end((pid, fields["old_program_ktime_ns"]))
            note = self._standing_still(fields, hold) if hold.stopped else self._in_doubt
            yield from self._probes(pid, note)
            self._programs.mark_known(FileId(fields["device"], fields["inode"]))
            self._introductions.put_off(pid, fields["program_ktime_ns"])
        yield from self._introductions.make_some()

    def after_library(self, record: bytes) -> Iterator[bytes]:
        """Take in a RECORD_LIBRARY, and let the process go on if it stands still."""
        fields = wire.LIBRARY_RECORD.named(record)
        pid = fields["pid"]
        if fields["flags"] & wire.LIBRARY_NOT_CUDA:
            self._user_stacks.processes.hurry((pid, fields["program_ktime_ns"]))
            return
        path = fields["path"].split(b"\0")[0].decode(errors="replace")
        with _hold(fields) as hold:
            if hold.stopped:
                self._missed_starts.stood_still(pid)
                yield from self._probes(pid, self._standing_still(fields, hold))
            else:
                yield from self._follow(pid, path, fields["ktime_ns"])
        # Who uses the network alone, says what it does or has some file in memory is not watched
        # for that.
        is_other = is_verbs_library(path) or is_marks_library(path) or "/fd/" in path
        wants = not is_other or self._attachments.uses_cuda(pid)
        if self._watch_all and pid not in self._watched and wants:
            yield from self._watch(pid)
            yield from self._probes(pid)

    def after_preload(self, record: bytes) -> Iterator[bytes]:
        """Take in a RECORD_PRELOAD, and let the process go on if it stands still."""
        fields = wire.PRELOAD_RECORD.named(record)
        program = pid, program_ktime_ns = fields["pid"], fields["program_ktime_ns"]
        with _hold(fields) as hold:
            self._add_newcomer(pid, program_ktime_ns)
            is_open = self._programs.preloaded.open(program, fields["memory"])
            # The preload library counts no call, or not all of them any more.
            if not is_open or not fields["memory"]:
                note = self._standing_still(fields, hold) if hold.stopped else self._in_doubt
                yield from self._probes(pid, note)

    def after_tick(self, record: bytes) -> Iterator[bytes]:
        """
        Take in a RECORD_CPU_SAMPLE: its process may run Python, and not use CUDA.

        It is looked at with its first sample, and ever more seldom from then on.
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
        """Take in a RECORD_EXIT: there is nothing to ask the process any more."""
        header = header_of(record)
        self._missed_starts.settle(header.pid)
        self._introductions.give_up(header.pid, header.program_ktime_ns)
        self._user_stacks.processes.end((header.pid, header.program_ktime_ns))
        return ()

    def forget(self, pid: int, program_ktime_ns: int) -> None:
        """Let go of a program that ended."""
        self._introductions.give_up(pid, program_ktime_ns)
        self._user_stacks.processes.end((pid, program_ktime_ns))
        # Another process may have the number already.
        if self._watched.get(pid, program_ktime_ns) == program_ktime_ns:
            self._watched.pop(pid, None)
            self._scanned.discard(pid)
            self._unlisted.discard(pid)
            self._attachments.forget(pid)
            self._interpreters.forget(pid)
            self._thread_contexts.forget(pid)

    def notice(self, records: Iterable[bytes]) -> Iterator[bytes]:
        """
        Yield the records, and note whose they are.

        The kernel side watches whoever makes a CUDA call.
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
        """Look at some of those that the kernel side found, and introduce some that wait."""
        for _ in range(min(_NEWCOMERS_AT_A_TIME, len(self._newcomers))):
            pid, program_ktime_ns = program = next(iter(self._newcomers))
            del self._newcomers[program]
            if self._watched.get(pid) == program_ktime_ns:
                continue
            # Whoever ended or became another program meanwhile is looked at no more.
            if self._programs.processes.program_ktime_ns(pid) == program_ktime_ns:
                self._watched[pid] = program_ktime_ns
                self._programs.processes.watch_threads(pid, program_ktime_ns, self._flags)
                self._introductions.put_off(pid, program_ktime_ns)
                yield from self._probes(pid)
        yield from self._introductions.make_some()

    def discover(self) -> Iterator[bytes]:
        """Look for processes to watch, and let go of files that nobody maps any more."""
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
            # Those that made calls of which no record came, and those found by their library.
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
        self._introductions.retry()

    def let_ask(self) -> Iterable[bytes]:
        """Let programs ask for their device at no cost again, which was seen for some seconds."""
        self._attachments.let_ask()
        return ()

    def take_late(self) -> Iterator[bytes]:
        """Take in which probes were placed late; once all are, look for what was put off."""
        were_late = self._attachments.are_late
        for pid, info in self._attachments.take_late():
            yield json_record(wire.RECORD_PROBES, kernel_clock.ktime_ns(), info, pid=pid)
        if were_late and not self._attachments.are_late:
            yield from self.rescan()

    def rescan(self) -> Iterator[bytes]:
        """Place probes in whatever came in without the dynamic linker's help."""
        for pid in all_pids() if self._watch_all else list(self._watched):
            yield from self._probes(pid)

    def find_ended(self) -> set[ProcessKey]:
        """Return the programs, as (pid, program_ktime_ns), that ended without a record of it."""
        return self._leftovers.ended(self._watched)

    def free_stale_entries(self) -> set[ProcessKey]:
        """Free what ended programs left in the kernel's maps, and return those that live."""
        self._leftovers.free_threads()
        self._leftovers.free_memory()
        watched = self._programs.processes.programs()
        self._user_stacks.end_others(watched)
        return {*watched.items(), *self._watched.items()}

    def _add_newcomer(self, pid: int, program_ktime_ns: int) -> None:
        # Whoever finds no room is found by the next discovery.
        if self._watched.get(pid) != program_ktime_ns and len(self._newcomers) < _MAX_NEWCOMERS:
            self._newcomers[pid, program_ktime_ns] = None

    def _watch(self, pid: int) -> Iterator[bytes]:
        program_ktime_ns = self._programs.processes.watch(pid, self._flags)
        if program_ktime_ns:
            self._watched[pid] = program_ktime_ns
            self._lived_before.add(pid)
            yield from self._introductions.make(pid, program_ktime_ns)

    def _follow(self, pid: int, path: str, loaded_ktime_ns: int) -> Iterator[bytes]:
        """Place probes for a process that did not stop for them when it had loaded a library."""
        found: list[NewLibrary] = []

        def note(arrival: NewLibrary) -> None:
            found.append(arrival)
            if arrival.problem or arrival.probed_ktime_ns > loaded_ktime_ns:
                reason = arrival.problem or MissedStart.LIBRARY_LATE
                self._miss(pid, reason, arrival.mapped.path)

        yield from self._probes(pid, note)
        # Of one that has ended, /proc has a folder until its parent has asked for it, and no program.
        if found or not is_cuda_library(path.rpartition("/")[2]) or program_path(pid):
            return
        # Others that use the same file may come.
        with self._faults.at("probes"):
            try:
                for info in self._attachments.examine_path(pid, path, note):
                    yield json_record(wire.RECORD_PROBES, kernel_clock.ktime_ns(), info, pid=pid)
            except OSError:
                self._miss(pid, MissedStart.LIBRARY_GONE, path)

    def _standing_still(
        self, record: Mapping[str, Any], hold: Hold
    ) -> Callable[[NewLibrary], None]:
        """Return what notes the libraries of a process that stands still until they are probed."""

        def note(arrival: NewLibrary) -> None:
            problem = arrival.problem
            is_new = arrival.probed_ktime_ns > record["ktime_ns"]
            if not problem and is_new and not hold.lasts():
                problem = MissedStart.LET_GO
            if problem:
                self._miss(record["pid"], problem, arrival.mapped.path)

        return note

    def _in_doubt(self, arrival: NewLibrary) -> None:
        pid, path = arrival.mapped.pid, arrival.mapped.path
        if arrival.problem:
            self._miss(pid, arrival.problem, path)
        if arrival.problem or not self._begun_ktime_ns:
            return
        # Of one that has ended meanwhile, the dynamic linker's record is still to come.
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
        # Many may stand still, and each takes milliseconds: at the end they go on as they are.
        if self._ending.is_over:
            self._ending.unread += 1
            return
        # It is looked at once the kernel waits for nobody any more.
        if is_locked(pid):
            return
        # What is wrong with one process is no reason not to look at the next.
        with self._faults.at("probes"):
            yield from self._place_probes(pid, note or self._in_doubt)

    def _place_probes(self, pid: int, note: Callable[[NewLibrary], None]) -> Iterator[bytes]:
        with root_of(pid) as root:
            yield from self._examine(pid, root, note)

    def _examine(
        self, pid: int, root: int | None, note: Callable[[NewLibrary], None]
    ) -> Iterator[bytes]:
        # Its interpreter and its stacks only once it is watched: who begins to watch a process
        # whose libraries were seen already asks again. The files are listed once for all three, as
        # a process may stand still meanwhile.
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
        # Its library may only now have turned out to carry no probe.
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


def _hold(record: Mapping[str, Any]) -> Hold:
    return Hold(record["pid"], record["tid"], stopped=bool(record["stopped"]))
