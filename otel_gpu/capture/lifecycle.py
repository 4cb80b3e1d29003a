"""
Reads both rings in the order in which things happened.

What processes do (forks, execs, ends) comes through a ring of its own: nothing of a program may
come before what names it, or after its end.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from otel_gpu import wire
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.ending import Ending
from otel_gpu.capture.maps.snapshots import Snapshots
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
    Says what processes do, and has done what must be done then.

    Args:
        programs: The loaded programs.
        user_stacks: Learns the handles of kernels.
        snapshots: Gives the last readings of what ended.
        watchlist: Keeps who is watched.
        completion: Completes the other records.
        faults: Counts errors; one costs what it is about.
        ending: Says whether records are still read.
        note_ended: Is called with the programs that ended, before what came after is read.

    Attributes:
        had_records: Whether processes did anything by the last reading.
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
        """Yield what both rings hold, completed."""
        # Where the calls end is noted first: then no call in this batch can belong to a
        # process whose fork or exec is not in it.
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
        """Yield all that will ever be read of programs that ended."""
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
        # A program's last series come before its end, but after all that names it.
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
        # Nothing of it may come after its end. Without that, what it counted is in the last reading of all.
        if self._ending.is_over:
            self._ending.unread += len(exits)
            return
        yield from self.last_readings(ended)
        yield from exits
        # Last: what a program said before its end, such as a step, is about one that is known.
        for pid, program_ktime_ns in ended:
            with self._faults.at("after_exit"):
                self._watchlist.forget(pid, program_ktime_ns)

    def _give_up(self, lifecycle: Sequence[bytes]) -> None:
        """Do nothing more than let go on what stands still."""
        let_all_go_on(lifecycle)
        self._ending.unread += len(lifecycle)


def _replaced_program(record: bytes) -> int:
    return int.from_bytes(record[_OLD_PROGRAM : _OLD_PROGRAM + 8], "little")
