"""
Steps that programs do not tell, found in what their threads call again and again.

The kernel side keeps the first calls of a thread, or its preload library does. When a period is found in them, that is told by
which calls steps begin and end, and reports each iteration from then on; the iterations before are in
the calls that were kept. Whose calls have no period is looked at again later: programs load and
compile for a while before they make steps.
"""

import enum
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.capture.steps.period import CallSequence, Period, iterations_of
from otel_gpu.capture.steps.period_maps import PeriodMemory
from otel_gpu.capture.steps.period_search import Reason, find_period
from otel_gpu.limits.work_budget import Share, WorkBudget
from otel_gpu.procfs.proc_files import read_file
from otel_gpu.procfs.users import user_of
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.agent_records import step_record

_LEAST_CALLS: Final = 32
_AGAIN_S, _AGAIN_AT_MOST_S = 30.0, 960.0
_LOST_AFTER: Final = 20
_SAME_PERIOD: Final = 0.05
# What the kernel side reports for long; a loop that is faster makes no steps.
_LEAST_PERIOD_NS: Final = 1_000_000
_SURE_CALLS: Final = 8192
# What searches may take in seconds, of a process, of a user and of all: one of as many calls as are kept,
# which have no period, takes up to 4 s.
_SEARCHES: Final = Share(8.0, 0.05), Share(12.0, 0.08), Share(15.0, 0.1)
# Once the capture is to end, only of few calls.
_LAST_CALLS: Final = 8192
_NEVER_KTIME_NS: Final = 1 << 64


class DetectionState(enum.StrEnum):
    """What is known of the steps of a thread, beside the reasons why none were found."""

    FOUND = "found"
    LOST = "lost"
    SAME = "same_as_another_thread"
    TOLD = "told"
    TOO_SHORT = "too_short"


class _Step(NamedTuple):
    start_ktime_ns: int
    end_ktime_ns: int
    comm: bytes


class _Thread:
    """A thread that has a period in some memory, whether it is known or not."""

    def __init__(self, who: tuple[int, int, int], maps: PeriodMemory) -> None:
        self.pid, self.tid, self.program_ktime_ns = who
        self.maps = maps
        self.comm = b""
        self.state: DetectionState | Reason = Reason.FEW_CALLS
        self.period: Period | None = None
        self.is_rate_limited = False
        self.period_ns = 0.0
        self.tried = 0  # calls
        self.again_s = math.inf  # when a thread that rests is looked at again
        self.rest_s = _AGAIN_S
        self.is_resting = False
        # Reported before it is known which ones were before them; None: that is over.
        self.early: list[_Step] | None = []
        self.number = 0
        self.until_ktime_ns = 0  # steps have been yielded
        self.seen = (0, 0)  # steps, and calls when there were so many

    @property
    def who(self) -> tuple[int, int, int]:
        return self.pid, self.tid, self.program_ktime_ns

    @property
    def program(self) -> ProcessKey:
        return self.pid, self.program_ktime_ns


class FoundSteps:
    """
    Steps of one capture that nobody told.

    Args:
        memories: Those of the kernel side and of preloaded programs; their indices differ.
        watched: Returns the ``program_ktime_ns`` of a pid, as the kernel side has it.
        clock: A monotonic clock in seconds.
        lose: Is called with pid and uid for a thread whose steps are not looked for, as its process or
            user has had its share.
    """

    def __init__(
        self,
        memories: Sequence[PeriodMemory],
        watched: Callable[[int], int],
        clock: Callable[[], float] = time.monotonic,
        lose: Callable[[int, int], None] = lambda _pid, _uid: None,
    ) -> None:
        self._memories, self._watched, self._clock = memories, watched, clock
        self._lose = lose
        self._budget = WorkBudget(*_SEARCHES, clock=clock)
        self._is_ending = False
        self._threads: dict[int, _Thread] = {}
        self._telling: set[ProcessKey] = set()
        self._ended: Counter[str] = Counter()
        # Their last iterations can come after their end, with the next reading of the ring: that may be
        # after the next one of the maps.
        self._just_ended: dict[tuple[int, int, int], _Thread] = {}
        self._ended_before: dict[tuple[int, int, int], _Thread] = {}

    @property
    def counts(self) -> dict[str, int]:
        """How many threads have steps that were found, and why the others have none."""
        living = Counter(str(thread.state) for thread in self._threads.values())
        return dict(sorted((living + self._ended).items()))

    @property
    def has_found(self) -> bool:
        """Whether iterations come that no record is sent of."""
        return any(thread.period is not None for thread in self._threads.values())

    def note_reported(self, record: bytes) -> None:
        """Find no more steps in a program that tells its own: this is a RECORD_STEP of it."""
        fields = wire.RECORD_HEADER.named(record)
        self._telling.add((fields["pid"], fields["program_ktime_ns"]))

    def take(self, record: bytes) -> Iterator[bytes]:
        """Yield the step of a RECORD_ITERATION."""
        fields = wire.ITERATION_RECORD.named(record)
        thread = self._threads.get(fields["detector"])
        who = fields["pid"], fields["tid"], fields["program_ktime_ns"]
        if thread is None or thread.who != who:
            thread = self._just_ended.get(who) or self._ended_before.get(who)
        if thread is None or thread.program in self._telling:
            return
        step = _Step(fields["start_ktime_ns"], fields["ktime_ns"], fields["comm"])
        if thread.early is not None:
            thread.early.append(step)
        else:
            yield from _records(thread, [step])

    def read(self) -> Iterator[bytes]:
        """Look for periods, and yield the steps that were made before they were known."""
        self._just_ended, self._ended_before = {}, self._just_ended
        is_busy = False
        for index, thread, detector in self._taken():
            is_over = bool(detector["has_ended"])
            is_over = is_over or self._watched(thread.pid) != thread.program_ktime_ns
            if is_over:
                yield from self._end(index, thread)
                continue
            yield from self._settle(index, thread)
            # One at a time: meanwhile nothing else is done.
            if not is_busy and self._is_due(thread, detector):
                is_busy = self._search(index, thread, detector["kept"])
            self._adjust(index, thread, detector)
        self._telling = {
            program for program in self._telling if self._watched(program[0]) == program[1]
        }
        for maps in self._memories:
            maps.share_areas([at for at in self._threads if self._wants_area(at, maps)])

    def last(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the last steps of programs, as (pid, program_ktime_ns), that have ended."""
        for index, thread, _ in self._taken():
            if thread.program in ended:
                yield from self._end(index, thread)

    def _taken(self) -> Iterator[tuple[int, _Thread, Mapping[str, Any]]]:
        for maps in self._memories:
            for index, detector in list(maps.taken()):
                who = detector["pid"], detector["tid"], detector["program_ktime_ns"]
                thread = self._threads.get(index)
                if thread is None or thread.who != who:
                    thread = self._threads[index] = _Thread(who, maps)
                yield index, thread, detector
            self._forget_dropped(maps)

    def _forget_dropped(self, maps: PeriodMemory) -> None:
        """Forget threads whose memory was let go: a program can give back what we have not seen end."""
        dropped = [
            index
            for index, thread in self._threads.items()
            if thread.maps is maps and not maps.holds(index)
        ]
        for index in dropped:
            self._forget(index, self._threads[index])

    def read_iterations(self) -> Iterator[bytes]:
        """Yield the steps of iterations that no record was sent of."""
        for index, thread in list(self._threads.items()):
            if thread.period is not None:
                yield from self._take_iterations(index, thread)

    def _take_iterations(
        self, index: int, thread: _Thread, *, is_last: bool = False
    ) -> Iterator[bytes]:
        iterations = thread.maps.iterations(index, is_last=is_last)
        if not iterations or thread.program in self._telling:
            return
        thread.comm = _comm_of(thread) or thread.comm
        steps = [_Step(*one, thread.comm) for one in iterations]
        if thread.early is not None:
            thread.early += steps
        else:
            yield from _records(thread, steps)

    def _wants_area(self, index: int, maps: PeriodMemory) -> bool:
        thread = self._threads[index]
        is_new = thread.period is None and not thread.tried
        return thread.maps is maps and is_new and not thread.is_resting

    def _is_due(self, thread: _Thread, detector: Mapping[str, Any]) -> bool:
        kept = detector["kept"]
        if thread.is_resting or not detector["area"] or kept < _LEAST_CALLS or kept == thread.tried:
            return False
        return bool(kept >= 2 * thread.tried or kept == wire.DETECTOR_CALLS)

    def end_soon(self) -> None:
        """Look for periods only in few calls from now on; safe in a signal handler."""
        self._is_ending = True

    def _search(self, index: int, thread: _Thread, kept: int) -> bool:
        """Look for the period of a thread, if that is in its share; say whether it was."""
        uid = user_of(thread.pid).uid
        if not self._budget.allows(thread.program, uid):
            if not thread.is_rate_limited:
                thread.is_rate_limited = True
                self._lose(thread.pid, uid)
            return False
        if self._is_ending and kept > _LAST_CALLS:
            return False
        with self._budget.paying(thread.program, uid):
            self._search_period(index, thread)
        return True

    def _search_period(self, index: int, thread: _Thread) -> None:
        calls = thread.maps.calls(index)
        thread.tried = len(calls.symbols)
        if thread.program in self._telling:
            return
        found = find_period(calls)
        if isinstance(found, Reason):
            if thread.period is None:
                thread.state = found
            return
        lengths_ns = [step.end_ktime_ns - step.start_ktime_ns for step in _steps_of(found, calls)]
        thread.period_ns = median(lengths_ns)
        if thread.period_ns < _LEAST_PERIOD_NS:
            # So are parameters that are made one by one; steps may come after them.
            thread.state = DetectionState.TOO_SHORT
            if thread.tried >= _SURE_CALLS:
                self._rest_a_while(index, thread, thread.state)
            return
        if thread.period is None and self._has_same(thread):
            self._rest(index, thread, DetectionState.SAME)
            return
        before, thread.period, thread.state = thread.period, found, DetectionState.FOUND
        if before is None or before.edges != found.edges:
            # Of what comes while another period is told no iteration is reported: it is in the calls.
            thread.early = thread.early or []
            thread.maps.follow(index, found)

    def _has_same(self, thread: _Thread) -> bool:
        """Whether another thread of the process makes these steps: they can take several."""
        return any(
            other.period
            and other.program == thread.program
            and abs(other.period_ns - thread.period_ns) <= _SAME_PERIOD * thread.period_ns
            for other in self._threads.values()
        )

    def _settle(self, index: int, thread: _Thread, last_ktime_ns: int = 0) -> Iterator[bytes]:
        """Yield the steps that were made before the kernel side knew the period."""
        if thread.period is None or thread.early is None or thread.program in self._telling:
            return
        early, thread.early = thread.early, None
        comm = thread.comm or _comm_of(thread)
        reported_ktime_ns = early[0].start_ktime_ns if early else _NEVER_KTIME_NS
        steps = _steps_of(thread.period, thread.maps.calls(index), last_ktime_ns)
        before = (
            step._replace(comm=comm) for step in steps if step.start_ktime_ns < reported_ktime_ns
        )
        yield from _records(thread, before)
        yield from _records(thread, early)

    def _adjust(self, index: int, thread: _Thread, detector: Mapping[str, Any]) -> None:
        """Keep no calls that nobody looks at, and look again for what was not found or is gone."""
        made, kept = detector["made"], detector["kept"]
        if thread.program in self._telling:
            if thread.state is not DetectionState.TOLD:
                self._rest(index, thread, DetectionState.TOLD)
        elif thread.is_resting:
            if self._clock() >= thread.again_s:
                thread.is_resting, thread.tried, thread.early = False, 0, []
        elif thread.period is None:
            if kept == wire.DETECTOR_CALLS == thread.tried:
                self._rest_a_while(index, thread, thread.state)
        elif thread.early is not None or thread.number != thread.seen[0]:
            thread.seen = thread.number, made
        elif made - thread.seen[1] > _LOST_AFTER * thread.period.longest_calls + _LEAST_CALLS:
            self._rest_a_while(index, thread, DetectionState.LOST)
        elif kept == wire.DETECTOR_CALLS == thread.tried and detector["area"]:
            thread.maps.take_area(index)

    def _rest_a_while(self, index: int, thread: _Thread, state: DetectionState | Reason) -> None:
        self._rest(index, thread, state)
        thread.again_s = self._clock() + thread.rest_s
        thread.rest_s = min(2 * thread.rest_s, _AGAIN_AT_MOST_S)

    def _rest(self, index: int, thread: _Thread, state: DetectionState | Reason) -> None:
        thread.maps.stop(index)
        thread.maps.take_area(index)
        thread.state, thread.period, thread.is_resting = state, None, True
        thread.again_s = math.inf

    def _end(self, index: int, thread: _Thread) -> Iterator[bytes]:
        # It may have ended since it was read.
        detector = thread.maps.detector(index)
        if thread.period is None and not thread.is_resting and detector["kept"] >= _LEAST_CALLS:
            self._search(index, thread, detector["kept"])
        # Of those that are kept the last one is the last of all, if there was room for it.
        has_last = detector["kept"] < wire.DETECTOR_CALLS
        yield from self._take_iterations(index, thread, is_last=True)
        yield from self._settle(index, thread, detector["last_return_ktime_ns"] if has_last else 0)
        self._forget(index, thread)
        thread.maps.free(index)

    def _forget(self, index: int, thread: _Thread) -> None:
        self._ended[str(thread.state)] += 1
        self._just_ended[thread.who] = thread
        self._threads.pop(index, None)


def _steps_of(period: Period, calls: CallSequence, last_ktime_ns: int = 0) -> Iterator[_Step]:
    """Yield the steps among calls; of the last one of all, it has to be said when it returned."""
    starts_ns, gaps_ns = calls.starts_ns, calls.gaps_ns
    for turn in iterations_of(period, calls.symbols):
        after = turn.last + 1
        end_ktime_ns = last_ktime_ns
        if after < len(starts_ns):
            end_ktime_ns = starts_ns[after] - gaps_ns[after]
        if end_ktime_ns:
            start_ktime_ns = starts_ns[turn.first] - gaps_ns[turn.first]
            yield _Step(start_ktime_ns, end_ktime_ns, b"")


def _comm_of(thread: _Thread) -> bytes:
    path = f"/proc/{thread.pid}/task/{thread.tid}/comm"
    return read_file(path, wire.COMM_BYTES).rstrip(b"\n")


def _records(thread: _Thread, steps: Iterable[_Step]) -> Iterator[bytes]:
    period = thread.period
    for step in steps:
        is_next = thread.until_ktime_ns <= step.start_ktime_ns < step.end_ktime_ns
        if period is None or not is_next:
            continue
        thread.until_ktime_ns = step.end_ktime_ns
        thread.number += 1
        yield step_record(
            step.end_ktime_ns,
            comm=step.comm,
            program_ktime_ns=thread.program_ktime_ns,
            pid=thread.pid,
            tid=thread.tid,
            start_ktime_ns=step.start_ktime_ns,
            number=thread.number,
            confidence_percent=period.confidence_percent,
            step_kind=wire.STEP_UNKNOWN,
        )
