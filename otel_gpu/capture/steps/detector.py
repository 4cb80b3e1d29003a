"""
Detects steps of programs that do not report them, from the calls that a thread repeats.

The kernel side, or the preload library, keeps the first calls of a thread. When they have a period, we send it
the calls by which steps begin and end, and it reports each iteration from then on. Earlier iterations are
read from the kept calls. Threads without a period are searched again later, because programs load and
compile for a while before their first step.
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
# A loop with a shorter period does not count as steps.
_LEAST_PERIOD_NS: Final = 1_000_000
_SURE_CALLS: Final = 8192
# Seconds of searching, for a process, a user and all. Searching the most calls, without a period, takes
# up to 4 s.
_SEARCHES: Final = Share(8.0, 0.05), Share(12.0, 0.08), Share(15.0, 0.1)
# The most calls to search at the end of the capture.
_LAST_CALLS: Final = 8192
_NEVER_KTIME_NS: Final = 1 << 64


class DetectionState(enum.StrEnum):
    """The state of step detection for a thread, beside the reasons why no period was found."""

    FOUND = "found"
    LOST = "lost"
    SAME = "same_as_another_thread"
    REPORTED = "reported"
    TOO_SHORT = "too_short"


class _Step(NamedTuple):
    start_ktime_ns: int
    end_ktime_ns: int
    comm: bytes


class _Thread:
    # A thread with a detector.

    def __init__(self, who: tuple[int, int, int], maps: PeriodMemory) -> None:
        self.pid, self.tid, self.program_ktime_ns = who
        self.maps = maps
        self.comm = b""
        self.state: DetectionState | Reason = Reason.FEW_CALLS
        self.period: Period | None = None
        self.is_rate_limited = False
        self.period_ns = 0.0
        self.tried = 0  # calls in the latest search
        self.again_s = math.inf  # when a resting thread is searched again
        self.rest_s = _AGAIN_S
        self.is_resting = False
        # Steps that wait until the earlier ones were read from the kept calls; None: these were read.
        self.early: list[_Step] | None = []
        self.number = 0
        self.until_ktime_ns = 0  # end of the latest yielded step
        self.seen = (0, 0)  # number of steps, and the calls at that time

    @property
    def who(self) -> tuple[int, int, int]:
        return self.pid, self.tid, self.program_ktime_ns

    @property
    def program(self) -> ProcessKey:
        return self.pid, self.program_ktime_ns


class FoundSteps:
    """
    Detected steps of one capture.

    Args:
        memories: Detectors of the kernel side and of preloaded programs, with distinct indices.
        watched: Returns the ``program_ktime_ns`` of a watched pid, or 0.
        clock: A monotonic clock in seconds.
        lose: Called with pid and uid of a thread that is not searched, because its share is used up.
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
        # Programs that report their steps themselves.
        self._reporting: set[ProcessKey] = set()
        self._ended: Counter[str] = Counter()
        # Records of the last iterations can come after the end, with the next reading of the ring, which can
        # be after the next reading of the maps.
        self._just_ended: dict[tuple[int, int, int], _Thread] = {}
        self._ended_before: dict[tuple[int, int, int], _Thread] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Number of threads by state."""
        living = Counter(str(thread.state) for thread in self._threads.values())
        return dict(sorted((living + self._ended).items()))

    @property
    def has_found(self) -> bool:
        """Whether any thread has a period, whose iterations must be read."""
        return any(thread.period is not None for thread in self._threads.values())

    def note_reported(self, record: bytes) -> None:
        """Stop detection in a program that reports its own steps, by its RECORD_STEP."""
        fields = wire.RECORD_HEADER.named(record)
        self._reporting.add((fields["pid"], fields["program_ktime_ns"]))

    def take(self, record: bytes) -> Iterator[bytes]:
        """Yield the step of a RECORD_ITERATION."""
        fields = wire.ITERATION_RECORD.named(record)
        thread = self._threads.get(fields["detector"])
        who = fields["pid"], fields["tid"], fields["program_ktime_ns"]
        if thread is None or thread.who != who:
            thread = self._just_ended.get(who) or self._ended_before.get(who)
        if thread is None or thread.program in self._reporting:
            return
        step = _Step(fields["start_ktime_ns"], fields["ktime_ns"], fields["comm"])
        if thread.early is not None:
            thread.early.append(step)
        else:
            yield from _records(thread, [step])

    def read(self) -> Iterator[bytes]:
        """Search periods, and yield the steps before the search."""
        self._just_ended, self._ended_before = {}, self._just_ended
        is_busy = False
        for index, thread, detector in self._taken():
            is_over = bool(detector["has_ended"])
            is_over = is_over or self._watched(thread.pid) != thread.program_ktime_ns
            if is_over:
                yield from self._end(index, thread)
                continue
            yield from self._settle(index, thread)
            # One search per call, because it blocks everything else.
            if not is_busy and self._is_due(thread, detector):
                is_busy = self._search(index, thread, detector["kept"])
            self._adjust(index, thread, detector)
        self._reporting = {
            program for program in self._reporting if self._watched(program[0]) == program[1]
        }
        for maps in self._memories:
            maps.share_areas([at for at in self._threads if self._wants_area(at, maps)])

    def last(self, ended: Collection[ProcessKey]) -> Iterator[bytes]:
        """Yield the last steps of programs that have ended."""
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
        # Forget threads whose memory was closed. A program can release one before we see its end.
        dropped = [
            index
            for index, thread in self._threads.items()
            if thread.maps is maps and not maps.holds(index)
        ]
        for index in dropped:
            self._forget(index, self._threads[index])

    def read_iterations(self) -> Iterator[bytes]:
        """Yield the steps of iterations that come without records, from preloaded programs."""
        for index, thread in list(self._threads.items()):
            if thread.period is not None:
                yield from self._take_iterations(index, thread)

    def _take_iterations(
        self, index: int, thread: _Thread, *, is_last: bool = False
    ) -> Iterator[bytes]:
        iterations = thread.maps.iterations(index, is_last=is_last)
        if not iterations or thread.program in self._reporting:
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
        """Search only few calls from now on; safe in a signal handler."""
        self._is_ending = True

    def _search(self, index: int, thread: _Thread, kept: int) -> bool:
        # Search if the share allows it; returns whether it did.
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
        if thread.program in self._reporting:
            return
        found = find_period(calls)
        if isinstance(found, Reason):
            if thread.period is None:
                thread.state = found
            return
        lengths_ns = [step.end_ktime_ns - step.start_ktime_ns for step in _steps_of(found, calls)]
        thread.period_ns = median(lengths_ns)
        if thread.period_ns < _LEAST_PERIOD_NS:
            # For example a loop that initializes parameters; steps can follow.
            thread.state = DetectionState.TOO_SHORT
            if thread.tried >= _SURE_CALLS:
                self._rest_a_while(index, thread, thread.state)
            return
        if thread.period is None and self._has_same(thread):
            self._rest(index, thread, DetectionState.SAME)
            return
        before, thread.period, thread.state = thread.period, found, DetectionState.FOUND
        if before is None or before.edges != found.edges:
            # While the period is replaced, no iteration is reported; these are read from the calls.
            thread.early = thread.early or []
            thread.maps.follow(index, found)

    def _has_same(self, thread: _Thread) -> bool:
        # Whether another thread of the process has the same steps: a step can involve several threads.
        return any(
            other.period
            and other.program == thread.program
            and abs(other.period_ns - thread.period_ns) <= _SAME_PERIOD * thread.period_ns
            for other in self._threads.values()
        )

    def _settle(self, index: int, thread: _Thread, last_ktime_ns: int = 0) -> Iterator[bytes]:
        # Yield the steps from before the period was set.
        if thread.period is None or thread.early is None or thread.program in self._reporting:
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
        # Stop keeping calls that are not needed, and search again if no period was found or it was lost.
        made, kept = detector["made"], detector["kept"]
        if thread.program in self._reporting:
            if thread.state is not DetectionState.REPORTED:
                self._rest(index, thread, DetectionState.REPORTED)
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
        # Read again, because it can have ended since.
        detector = thread.maps.detector(index)
        if thread.period is None and not thread.is_resting and detector["kept"] >= _LEAST_CALLS:
            self._search(index, thread, detector["kept"])
        # If not all space is used, the last kept call is the thread's last.
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
    # Steps among calls. ``last_ktime_ns`` is the return of the thread's last call, if it is among them.
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
