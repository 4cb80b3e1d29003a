"""
Merges the two rings into the order of events.

Forks, execs and exits of processes have their own ring. A program's other records must come after its
start and before its end.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.ending import Ending
from otel_gpu.capture.maps.map_snapshots import Snapshots
from otel_gpu.capture.processes.stopped_processes import let_all_go_on
from otel_gpu.capture.processes.watchlist import Watchlist
from otel_gpu.capture.record_completion import RecordCompletion
from otel_gpu.capture.record_headers import header_of
from otel_gpu.faults import Faults
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.stacks.user_stacks import UserStacks

_OLD_PROGRAM = wire.EXEC_RECORD.offset_of("old_program_ktime_ns")


class Lifecycle:
    """
    Reads both rings, and acts on starts and ends of processes.

    Args:
        programs: The loaded programs.
        user_stacks: Gets the handles of kernels.
        snapshots: Yields the last readings of programs that ended.
        watchlist: The watched programs.
        completion: Completes the records of the event ring.
        faults: Counts errors; each costs only its record.
        ending: Whether records are still read.
        note_ended: Called with programs that ended, before later records are read.

    Attributes:
        had_records: Whether the latest reading contained records of processes.
    """

    def __init__(
        self,
        programs: Programs,
        user_stacks: UserStacks,
        snapshots: Snapshots,
        watchlist: Watchlist,
        completion: RecordCompletion,
        faults: Faults,
        ending: Ending,
        *,
        note_ended: Callable[[Iterable[ProcessKey]], None],
    ) -> None:
        self._programs = programs
        self._user_stacks = user_stacks
        self._snapshots = snapshots
        self._watchlist = watchlist
        self._completion = completion
        self._faults = faults
        self._ending = ending
        self._note_ended = note_ended
        self.had_records = False
        # By kind of record, with their names in errors.
        self._handlers: Mapping[int, tuple[str, Callable[[bytes], Iterable[bytes]]]] = {
            wire.RECORD_FORK: ("after_fork", watchlist.after_fork),
            wire.RECORD_EXEC: ("after_exec", watchlist.after_exec),
            wire.RECORD_EXIT: ("after_exit", watchlist.after_exit),
            wire.RECORD_LIBRARY: ("after_library", watchlist.after_library),
            wire.RECORD_PRELOAD: ("after_preload", watchlist.after_preload),
        }

    def read(self) -> Iterator[bytes]:
        """Yield the completed records of both rings."""
        # The position of the event ring is read first. So the fork or exec of every process with
        # events in this batch is in the lifecycle records.
        lifecycle: Sequence[bytes] = ()
        with self._faults.at("rings"):
            try:
                until = self._programs.events.position()
                lifecycle = tuple(self._programs.lifecycle.read())
                self.had_records = bool(lifecycle)
                yield from self._handle(lifecycle, until)
            except BaseException:
                let_all_go_on(lifecycle)
                raise

    def last_readings(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the final series, times, memory, communicators and steps of programs that ended."""
        if ended:
            with self._faults.at("last_aggregates"):
                yield from self._snapshots.last_aggregates(ended)
            with self._faults.at("last_times"):
                yield from self._snapshots.last_times(ended)
            with self._faults.at("shares"):
                self._programs.shares.end(ended)
            with self._faults.at("last_memory"):
                yield from self._snapshots.last_memory(ended)
            with self._faults.at("last_communicators"):
                yield from self._snapshots.last_communicators(ended)
            with self._faults.at("last_steps"):
                yield from self._snapshots.steps.last(ended)

    def _handle(self, lifecycle: Sequence[bytes], until: int) -> Iterator[bytes]:
        if self._ending.is_over:
            self._give_up(lifecycle)
            lifecycle = ()
        headers = [header_of(record) for record in lifecycle]
        replaced = {
            (header.pid, _replaced_program(record))
            for header, record in zip(headers, lifecycle, strict=True)
            if header.kind == wire.RECORD_EXEC
        }
        ended = {
            (header.pid, header.program_ktime_ns)
            for header in headers
            if header.kind == wire.RECORD_EXIT
        }
        self._note_ended(ended)
        # A program's last readings come before its end, but after its start.
        yield from self.last_readings(replaced)
        exits = []
        for number, (header, record) in enumerate(zip(headers, lifecycle, strict=True)):
            if self._ending.is_over:
                self._give_up(lifecycle[number:])
                break
            if header.kind == wire.RECORD_EXIT:
                exits.append(record)
            elif header.kind == wire.RECORD_HANDLE:
                with self._faults.at("stacks"):
                    self._user_stacks.kernels.take(record)
            elif header.kind != wire.RECORD_PRELOAD:
                yield record
            if header.kind in self._handlers:
                place, handle = self._handlers[header.kind]
                with self._faults.at(place):
                    yield from handle(record)
        with self._faults.at("stacks"):
            self._user_stacks.processes.ask_due()
        records = self._watchlist.notice(self._ending.within(self._programs.events.read(until)))
        yield from self._completion.complete(records)
        # Without these, the capture's final snapshot contains what ended programs counted.
        if self._ending.is_over:
            self._ending.unread += len(exits)
            return
        yield from self.last_readings(ended)
        yield from exits
        # Last, because records from before the end, such as steps, need the program's entry.
        for pid, program_ktime_ns in ended:
            with self._faults.at("after_exit"):
                self._watchlist.forget(pid, program_ktime_ns)

    def _give_up(self, lifecycle: Sequence[bytes]) -> None:
        # Stopped processes must be continued in any case.
        let_all_go_on(lifecycle)
        self._ending.unread += len(lifecycle)


def _replaced_program(record: bytes) -> int:
    return int.from_bytes(record[_OLD_PROGRAM : _OLD_PROGRAM + 8], "little")
