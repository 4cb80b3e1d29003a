"""Reads the kernel side's maps into records: series, times, memory, counters, open calls."""

import struct
from collections.abc import Callable, Collection, Iterator

from otel_gpu import wire
from otel_gpu.capture.bpf.kernel_shares import COUNTERS_OF_REFUSALS
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.maps.blocks import is_over
from otel_gpu.capture.maps.communicators import is_ended
from otel_gpu.capture.maps.ended_waits import EndedWaits
from otel_gpu.capture.maps.kernel_stacks import KernelStacks
from otel_gpu.capture.maps.thresholds import find_thresholds
from otel_gpu.capture.maps.unwatched_blockers import UnwatchedBlockers
from otel_gpu.capture.maps.waited_resources import ResourceMaps
from otel_gpu.capture.steps.detector import FoundSteps
from otel_gpu.config import Config
from otel_gpu.limits.shares import ShareBound
from otel_gpu.procfs import kernel_clock
from otel_gpu.procfs.proc_files import read_file
from otel_gpu.procfs.process_log import PROCESS_LOG
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import (
    MAX_COMMUNICATORS_PER_RECORD,
    Entry,
    aggregates_records,
    counters_record,
    json_record,
    memory_records,
    open_call_record,
    thread_context_record,
    times_record,
)
from otel_gpu.wire.histogram_layout import duration_bounds_ns

# Head of the keys of series and times: program_ktime_ns, pid.
_PROCESS_KEY = struct.Struct("<QI")
_TIMES_STACK = wire.TIMES_KEY.fields.index("kernel_stack")
_TIMES_END_STACK = wire.TIMES_KEY.fields.index("end_kernel_stack")
_TIMES_RESOURCE = wire.TIMES_KEY.fields.index("resource")
_TIMES_WHO = wire.TIMES_KEY.fields.index("who_pid")
_NO_TOTALS = bytes(wire.MEMORY_TOTALS.size)
# Head of the keys of holders and communicators: program_ktime_ns, stack or handle, pid.
_HOLDER_KEY = struct.Struct("<QQI")
# How many consecutive readings can skip open waits if the lifecycle ring is never empty.
_MOST_PUT_OFF = 3
_ENDED_NS = wire.TIMES.fields.index("ended_ns")


class _Reading:
    # One map: which entries changed since the previous read.

    def __init__(
        self,
        read: Callable[[], Iterator[Entry]],
        free: Callable[[bytes], None],
        key_of: Callable[[bytes], ProcessKey],
        read_of: Callable[[Collection[ProcessKey]], Iterator[Entry]] | None = None,
    ) -> None:
        self._read = read
        self._read_of = read_of or (lambda _: read())
        self._free = free
        self._process_key = key_of
        self.latest: dict[bytes, bytes] = {}
        # Previous values of the entries that were returned last, without new ones.
        self.before: dict[bytes, bytes] = {}

    def changed(self) -> list[Entry]:
        changed = [entry for entry in self._read() if self.latest.get(entry[0]) != entry[1]]
        self.before = {key: self.latest[key] for key, _ in changed if key in self.latest}
        self.latest.update(changed)
        return changed

    def keys(self) -> set[ProcessKey]:
        return {self._process_key(key) for key in self.latest}

    def last(self, ended: Collection[ProcessKey]) -> list[Entry]:
        # Also deletes them.
        last = [entry for entry in self._read_of(ended) if self._process_key(entry[0]) in ended]
        self.before = {}
        for key, _ in last:
            if key in self.latest:
                self.before[key] = self.latest[key]
            self.drop(key)
        return last

    def drop(self, key: bytes) -> None:
        # For an entry that will not change any more.
        self._free(key)
        self.latest.pop(key, None)


class Snapshots:
    """
    Reads the maps of one capture.

    Args:
        programs: The loaded programs.
        config: Floors, limits and histogram layout.
        user_stacks: Resolves the stacks of open calls.
        watched: Returns the watched pids.
    """

    def __init__(
        self,
        programs: Programs,
        config: Config,
        user_stacks: UserStacks,
        watched: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self._programs = programs
        self._user_stacks = user_stacks
        self._bounds_ns = duration_bounds_ns(config)
        self._floor_ns = round(config.spans.slow_floor_us * 1_000)
        self._open_limit_ns = round(config.capture.open_call_limit_s * 1_000_000_000)
        self._series = _Reading(
            programs.read_aggregates,
            free=programs.forget_aggregate,
            key_of=_process_key,
            read_of=programs.read_aggregates,
        )
        self._times = _Reading(
            programs.read_times,
            free=programs.forget_times,
            key_of=_process_key,
            read_of=programs.read_times,
        )
        self._ended_waits = EndedWaits(self._times.drop)
        blocks = programs.blocks
        self._memory = _Reading(blocks.read_totals, blocks.forget_totals, _process_key)
        self._holders = _Reading(blocks.read_holders, blocks.forget_holder, _holder_key)
        ranks = programs.communicators
        self._communicators = _Reading(ranks.read, ranks.forget, _holder_key)
        self._thresholds: dict[tuple[int, int, int, int], int] = {}
        self._counters: tuple[int, ...] = ()
        # How many consecutive readings skipped open waits.
        self._put_off = 0
        # The latest COUNTERS_OF_REFUSALS, and whether the latest report had refusals.
        self._refused = [0] * len(COUNTERS_OF_REFUSALS)
        self._were_refused = False
        self.stacks = KernelStacks(programs)
        self.resources = ResourceMaps(programs, watched)
        self.culprits = UnwatchedBlockers(watched)
        detectors = (programs.detectors, programs.preloaded.detectors)
        self.steps = FoundSteps(
            detectors, programs.processes.program_ktime_ns, lose=self._lose_steps
        )

    def _lose_steps(self, pid: int, uid: int) -> None:
        self._programs.lose(wire.COUNTER_STEP_THREADS_RATE_LIMITED)
        reason = "its share of our time, or that of its user, is used up"
        self._programs.unread.add(pid, uid, what="the order of its calls", reason=reason)

    def aggregates(self) -> Iterator[bytes]:
        """Yield the series that changed since the previous read."""
        changed = self._series.changed()
        yield from aggregates_records(kernel_clock.ktime_ns(), changed)

    def last_aggregates(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the series of programs that ended, and delete them."""
        yield from aggregates_records(kernel_clock.ktime_ns(), self._series.last(ended))

    def times(self) -> Iterator[bytes]:
        """Yield the time-accounting entries that changed since the previous read."""
        # The lifecycle ring can contain a process that we stopped. Its wait must not be added while it
        # is open: only once it continues is it known that we caused it.
        if self._programs.lifecycle.fill and self._put_off < _MOST_PUT_OFF:
            self._put_off += 1
        else:
            self._put_off = 0
            self._programs.book_passing()
        yield from self._pack_times(kernel_clock.ktime_ns(), self._times.changed())

    def fold_ended_waits(self) -> Iterator[bytes]:
        """Merge time-accounting entries about processes that ended, and yield the changes."""
        # Entries of preloaded programs are computed here, not read from the kernel's map.
        folded = self._ended_waits.fold(self._times.latest, self._programs.preloaded.keys())
        if folded:
            yield times_record(kernel_clock.ktime_ns(), folded)

    def last_times(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the times of programs that ended; delete them, and close their preload memory."""
        yield from self._pack_times(kernel_clock.ktime_ns(), self._times.last(ended))
        self._programs.preloaded.close(ended)

    def memory(self) -> Iterator[bytes]:
        """Yield changed totals and holders of the frameworks' allocators."""
        yield from self._pack_memory(self._memory.changed(), self._holders.changed())

    def last_memory(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield totals and holders of programs that ended, and delete them."""
        totals = self._memory.last(ended)
        yield from self._pack_memory(totals, self._holders.last(ended))
        # The map of blocks can be large, and most programs have none.
        if totals:
            self._programs.blocks.forget_blocks(ended)

    def _pack_memory(self, totals: list[Entry], holders: list[Entry]) -> Iterator[bytes]:
        ktime_ns = kernel_clock.ktime_ns()
        reported = [entry for entry in totals if entry[1] != _NO_TOTALS]
        yield from memory_records(wire.RECORD_MEMORY, ktime_ns, reported)
        yield from memory_records(wire.RECORD_HOLDERS, ktime_ns, holders)
        for key, holder in holders:
            if is_over(key, holder):
                self._holders.drop(key)

    def forget_holders(self, programs: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the holders of these programs with zeros, because they are out of date; delete them."""
        gone = self._holders.last(programs)
        self._programs.blocks.forget_blocks(programs)
        nothing = bytes(wire.HOLDER.size)
        entries = [(key, nothing) for key, _ in gone]
        yield from memory_records(wire.RECORD_HOLDERS, kernel_clock.ktime_ns(), entries)

    def communicators(self) -> Iterator[bytes]:
        """Yield the communicators that changed."""
        changed = self._communicators.changed()
        yield from _communicators_records(changed)
        for key, communicator in changed:
            if is_ended(communicator):
                self._communicators.drop(key)

    def last_communicators(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the communicators of programs that ended, and delete them."""
        yield from _communicators_records(self._communicators.last(ended))

    def memory_map(self, record: bytes) -> Iterator[bytes]:
        """Yield the memory map at the failure in an OUT_OF_MEMORY record."""
        failed = wire.OUT_OF_MEMORY_RECORD.named(record)
        pid, program_ktime_ns, ktime_ns = (
            failed[name] for name in ("pid", "program_ktime_ns", "ktime_ns")
        )
        info = self._programs.blocks.read_map((pid, program_ktime_ns), failed["device"], ktime_ns)
        if info is not None:
            yield json_record(
                wire.RECORD_MEMORY_MAP, ktime_ns, info, pid=pid, program_ktime_ns=program_ktime_ns
            )

    def last_of_others(self, living: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield and delete all entries of programs that are not in ``living``."""
        readings = (
            *(self._series, self._times, self._memory, self._holders),
            self._communicators,
        )
        found = set().union(*(reading.keys() for reading in readings))
        ended = (found | self._programs.preloaded.keys()) - set(living)
        if ended:
            yield from self.last_aggregates(ended)
            yield from self.last_times(ended)
            self._programs.shares.end(ended)
            yield from self.last_memory(ended)
            yield from self.last_communicators(ended)

    def _pack_times(self, ktime_ns: int, entries: list[Entry]) -> Iterator[bytes]:
        for key, value in entries:
            fields = wire.TIMES_KEY.unpack(key)
            yield from self.stacks.describe(fields[_TIMES_STACK])
            yield from self.stacks.describe(fields[_TIMES_END_STACK])
            yield from self.resources.describe(fields[_TIMES_RESOURCE])
            if who := fields[_TIMES_WHO]:
                before = self._times.before.get(key)
                self.culprits.note(who, _ended_ns(value) - (_ended_ns(before) if before else 0))
        if entries:
            yield times_record(ktime_ns, entries)

    def push_thresholds(self) -> None:
        """Send the durations from which calls are slow, by series, to the kernel side."""
        current = find_thresholds(self._series.latest.items(), self._bounds_ns, self._floor_ns)
        for name, threshold_ns in current.items():
            if self._thresholds.get(name) != threshold_ns:
                self._programs.set_threshold(*name, threshold_ns)
        for name in self._thresholds.keys() - current.keys():
            self._programs.forget_threshold(*name)
        self._programs.preloaded.set_thresholds(current)
        self._thresholds = current

    def counters(self) -> Iterator[bytes]:
        """Yield the counters of losses and limits."""
        self._counters = self._programs.read_counters()
        yield counters_record(kernel_clock.ktime_ns(), self._counters)

    def describe_refusals(self) -> None:
        """Find out which programs and users were refused entries since the previous counters."""
        counted = [self._counters[counter] for counter in COUNTERS_OF_REFUSALS]
        for holder, lines in PROCESS_LOG.left_out().items():
            self._programs.refusals.add(ShareBound.LOG_LINES, holder, lines)
        if counted != self._refused or self._were_refused or self._programs.refusals.are_new:
            found = list(self._programs.shares.refused())
            self._refused, self._were_refused = counted, bool(found)
            self._programs.refusals.describe(found)

    def open_calls(self) -> Iterator[bytes]:
        """Yield the calls that have been open for longer than the limit, with their stacks."""
        now_ktime_ns = kernel_clock.ktime_ns()
        for thread, calls in self._programs.open_threads():
            pid, tid, program_ktime_ns = thread["pid"], thread["tid"], thread["program_ktime_ns"]
            root_start_ktime_ns = calls[0]["start_ktime_ns"]
            if now_ktime_ns - root_start_ktime_ns < self._open_limit_ns:
                continue
            sample = self._programs.stall_sample(tid) or b""
            if thread["context.span_id"] and thread["noted_ktime_ns"] == root_start_ktime_ns:
                yield thread_context_record(now_ktime_ns, thread, root_start_ktime_ns)
            comm = read_file(f"/proc/{pid}/task/{tid}/comm", wire.COMM_BYTES).rstrip(b"\n")
            for depth, call in enumerate(calls):
                if now_ktime_ns - call["start_ktime_ns"] < self._open_limit_ns:
                    break
                stack, symbols = self._user_stacks.resolve_open(
                    sample,
                    program=(pid, program_ktime_ns),
                    tid=tid,
                    start_ktime_ns=call["start_ktime_ns"],
                )
                yield from symbols
                yield open_call_record(
                    now_ktime_ns,
                    pid=pid,
                    tid=tid,
                    program_ktime_ns=program_ktime_ns,
                    start_ktime_ns=call["start_ktime_ns"],
                    device=call["device"],
                    api=call["api"],
                    root_start_ktime_ns=root_start_ktime_ns,
                    blocked_ns=thread["blocked_ns"] - call["blocked_ns"],
                    run_queue_ns=thread["run_queue_ns"] - call["run_queue_ns"],
                    depth=depth,
                    comm=comm,
                    user_stack=stack,
                )


def _ended_ns(times: bytes) -> int:
    ended_ns: int = wire.TIMES.unpack(times)[_ENDED_NS]
    return ended_ns


def _holder_key(key: bytes) -> ProcessKey:
    program_ktime_ns, _, pid = _HOLDER_KEY.unpack_from(key)
    return pid, program_ktime_ns


def _process_key(key: bytes) -> ProcessKey:
    program_ktime_ns, pid = _PROCESS_KEY.unpack_from(key)
    return pid, program_ktime_ns


def _communicators_records(entries: list[Entry]) -> Iterator[bytes]:
    kind, most = wire.RECORD_COMMUNICATORS, MAX_COMMUNICATORS_PER_RECORD
    return memory_records(kind, kernel_clock.ktime_ns(), entries=entries, most=most)
