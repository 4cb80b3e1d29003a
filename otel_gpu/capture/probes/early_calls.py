"""
Finds CUDA calls that began before their process was watched, so that no probe saw their entry.

A thread whose stack contains a function of a CUDA library, but which is in no call whose entry was seen, is
in such a call. The call is identified by its frame's position on the stack and continues while that is
found again: later calls are seen at their entry. Its return is not reported; it is just not found any
more.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.capture.maps.thread_dump import WHOLE_PROCESS, ThreadDump, ThreadDumps
from otel_gpu.errors import BpfError
from otel_gpu.procfs import kernel_clock
from otel_gpu.stacks.resolver import OpenFrame
from otel_gpu.stacks.stack_counts import StackCount
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import open_call_record

_INTERVAL_NS = 1_000_000_000
# A younger call is most likely a normal one.
_LEAST_AGE_NS = 1_000_000_000
# For a running thread, whose stack may differ at its next tick.
_TRIES = 5
_MAX_THREADS = 4096
# Limits the delay of other work: walking a stack takes a fraction of a millisecond.
_DUMPED_AT_A_TIME = 256
_JUDGED_AT_A_TIME = 128
_COUNTS = (
    StackCount.THREADS_DUMPED,
    StackCount.DUMP_UNREADABLE,
    StackCount.DUMP_INCOMPLETE,
    StackCount.DUMP_NOT_FOLLOWED,
    StackCount.DUMP_REFUSED,
)

_logger = logging.getLogger(__name__)

# pid and tid, or WHOLE_PROCESS.
_ThreadKey = tuple[int, int]


class _Due(NamedTuple):
    # How many dumps were in vain, and when the next one is due.
    tries: int
    ktime_ns: int


class EarlyCalls:
    """
    Finds calls that began before their process was watched, by repeated thread dumps.

    ``counts`` has the numbers of dumped threads, and of the failures among them.
    """

    def __init__(
        self, thread_dumps: Callable[[], ThreadDumps | None], user_stacks: UserStacks
    ) -> None:
        self._thread_dumps = thread_dumps
        self._user_stacks = user_stacks
        self._watched: dict[int, int] = {}
        self._due: dict[_ThreadKey, _Due] = {}
        # Threads that were dumped last, and the dumps that were not examined yet.
        self._asked: dict[_ThreadKey, _Due] = {}
        self._taken: deque[ThreadDump] = deque()
        # The latest possible start of each call, by thread.
        self._starts: dict[_ThreadKey, dict[OpenFrame, int]] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)

    def expect(self, pid: int, program_ktime_ns: int) -> None:
        """Dump all threads of a process that started before it was watched."""
        self._watched[pid] = program_ktime_ns
        self._due[pid, WHOLE_PROCESS] = _Due(0, 0)

    @property
    def is_pending(self) -> bool:
        """Whether there are threads to dump, or dumps to examine."""
        return bool(self._taken or self._due)

    def run(self, watched: Mapping[int, int]) -> Iterator[bytes]:
        """
        Take dumps, or yield open calls from the latest dumps.

        Args:
            watched: ``program_ktime_ns`` by pid of every process that is watched.

        One process at a time, and a limited number of threads. New code objects of dumped threads come by
        a ring, which must be read before the next call.
        """
        now_ktime_ns = kernel_clock.ktime_ns()
        self._forget_others(watched)
        if self._taken:
            for _ in range(min(len(self._taken), _JUDGED_AT_A_TIME)):
                yield from self._judge(self._taken.popleft(), now_ktime_ns)
        elif self._due:
            self._asked = dict(self._choose(now_ktime_ns))
            self._due = {key: due for key, due in self._due.items() if key not in self._asked}
            wanted = {key: self._watched[key[0]] for key in self._asked}
            thread_dumps = self._open_thread_dumps(len(wanted)) if wanted else None
            self._taken.extend(thread_dumps.take(wanted) if thread_dumps else ())
            seen = {(dump.pid, dump.tid) for dump in self._taken}
            for key in self._asked.keys() - seen:
                self._starts.pop(key, None)

    def _open_thread_dumps(self, threads: int) -> ThreadDumps | None:
        try:
            return self._thread_dumps()
        except BpfError as error:
            if not self.counts[StackCount.DUMP_REFUSED]:
                text = "calls that had begun before their process was watched are not found: %s"
                _logger.warning(text, error)
            self.counts[StackCount.DUMP_REFUSED] += threads
            return None

    def _choose(self, now_ktime_ns: int) -> Iterator[tuple[_ThreadKey, _Due]]:
        due = [item for item in self._due.items() if item[1].ktime_ns <= now_ktime_ns]
        whole = [item for item in due if item[0][1] == WHOLE_PROCESS]
        yield from whole[:1] or due[:_DUMPED_AT_A_TIME]

    def _forget_others(self, watched: Mapping[int, int]) -> None:
        gone = {
            pid
            for pid, program_ktime_ns in self._watched.items()
            if watched.get(pid) != program_ktime_ns
        }
        if gone:
            for kept in (self._due, self._starts):
                for key in [key for key in kept if key[0] in gone]:
                    del kept[key]
            for pid in gone:
                del self._watched[pid]

    def _judge(self, dump: ThreadDump, now_ktime_ns: int) -> Iterator[bytes]:
        key = (dump.pid, dump.tid)
        before = self._starts.pop(key, {})
        if self._watched.get(dump.pid) != dump.program_ktime_ns:
            return
        self.counts[StackCount.THREADS_DUMPED] += 1
        self.counts[StackCount.DUMP_UNREADABLE] += not dump.sample
        self.counts[StackCount.DUMP_NOT_FOLLOWED] += not dump.is_followed
        if not dump.is_followed or not dump.sample:
            return
        found = self._user_stacks.open_calls(dump.sample)
        self.counts[StackCount.DUMP_INCOMPLETE] += not found.complete
        # Frames of calls whose entry was seen are excluded.
        frames = [frame for frame in found.calls if frame.stack_pointer not in dump.open_calls]
        tries = self._asked[key].tries if key in self._asked else 0
        if len(self._due) >= _MAX_THREADS:
            return
        if frames:
            self._due[key] = _Due(0, now_ktime_ns + _INTERVAL_NS)
            yield from self._report(dump, frames, before)
        elif dump.is_late and not found.complete and tries < _TRIES:
            self._due[key] = _Due(tries + 1, now_ktime_ns + _INTERVAL_NS)
            # This dump was incomplete, so keep what was known.
            self._starts[key] = before

    def _report(
        self, dump: ThreadDump, frames: Sequence[OpenFrame], before: Mapping[OpenFrame, int]
    ) -> Iterator[bytes]:
        # The latest possible start: the start of the watch, or of the wait inside the call.
        latest = dump.program_ktime_ns - len(frames)
        is_waiting = dump.state == wire.STATE_BLOCKED and 0 < dump.since_ktime_ns < latest
        stack = 0
        starts = self._starts[dump.pid, dump.tid] = {}
        for depth, frame in enumerate(frames):
            start = (dump.since_ktime_ns if is_waiting else latest) + depth
            start = starts[frame] = before.get(frame, start)
            age_ns = dump.ktime_ns - start
            if age_ns < _LEAST_AGE_NS or not (is_waiting or frame in before):
                continue
            if not stack:
                resolved = self._user_stacks.resolve_thread(dump.sample)
                stack = resolved.stack
                yield from resolved.records
            blocked_ns = dump.ktime_ns - dump.since_ktime_ns if dump.since_ktime_ns else 0
            yield open_call_record(
                dump.ktime_ns,
                pid=dump.pid,
                tid=dump.tid,
                program_ktime_ns=dump.program_ktime_ns,
                start_ktime_ns=start,
                root_start_ktime_ns=starts[frames[0]],
                blocked_ns=min(blocked_ns, age_ns) if dump.state == wire.STATE_BLOCKED else 0,
                user_stack=stack,
                device=-1,
                api=frame.api,
                depth=depth,
                comm=dump.comm,
            )
