"""
CUDA calls that had begun before their process was watched: nobody saw their entry.

A thread that is in a function of a CUDA library, and in no call there whose entry was seen, is in
such a call. It is known by its place on the stack, and goes on for as long as that is so: whatever
is called there anew is seen at its entry. Its return is nothing that is reported; it is just not
found any more.
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
from otel_gpu.stacks.user_stacks import UserStacks
from otel_gpu.wire.agent_records import open_call_record

_INTERVAL_NS = 1_000_000_000
# What is younger is most likely a call like any other.
_LEAST_AGE_NS = 1_000_000_000
# Of a thread that runs, whose stack may be another one at its next tick.
_TRIES = 5
_MAX_THREADS = 4096
# So that little else is kept waiting: a stack takes a fraction of a millisecond to walk.
_DUMPED_AT_A_TIME = 256
_JUDGED_AT_A_TIME = 128
_COUNTS = (
    "threads_dumped",
    "dump_unreadable",
    "dump_incomplete",
    "dump_not_followed",
    "dump_refused",
)

_logger = logging.getLogger(__name__)

_Whom = tuple[int, int]


class _Due(NamedTuple):
    # How often a thread was looked at in vain, and when it is looked at again.
    tries: int
    ktime_ns: int


class EarlyCalls:
    """
    Finds calls that had begun before their process was watched, and looks again while they last.

    ``counts`` says what became of the dumps: ``threads_dumped``, of these ``dump_unreadable``
    (nothing of their user space could be read), ``dump_incomplete`` (a part of the stack is missing)
    and ``dump_not_followed`` (it is not known what they have called since); and ``dump_refused``: whom
    the kernel refused a look at.
    """

    def __init__(
        self, thread_dumps: Callable[[], ThreadDumps | None], user_stacks: UserStacks
    ) -> None:
        self._thread_dumps = thread_dumps
        self._user_stacks = user_stacks
        self._watched: dict[int, int] = {}
        self._due: dict[_Whom, _Due] = {}
        # Who was looked at, what was seen, and what of that nothing was made of yet.
        self._asked: dict[_Whom, _Due] = {}
        self._taken: deque[ThreadDump] = deque()
        # When each began, at the latest, by thread.
        self._starts: dict[_Whom, dict[OpenFrame, int]] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)

    def expect(self, pid: int, program_ktime_ns: int) -> None:
        """A process is watched that has lived before: dump all of its threads."""
        self._watched[pid] = program_ktime_ns
        self._due[pid, WHOLE_PROCESS] = _Due(0, 0)

    @property
    def is_pending(self) -> bool:
        """Whether threads are looked at, again and again while they are in a call."""
        return bool(self._taken or self._due)

    def run(self, watched: Mapping[int, int]) -> Iterator[bytes]:
        """
        Take dumps, or yield what the last ones found, of watched programs: ``program_ktime_ns`` by pid.

        One process at a time, and not too many threads. What is new to the agent of a thread that was
        looked at comes by a ring, which is to be read before this is called again.
        """
        now_ktime_ns = kernel_clock.ktime_ns()
        self._forget_others(watched)
        if self._taken:
            for _ in range(min(len(self._taken), _JUDGED_AT_A_TIME)):
                yield from self._judge(self._taken.popleft(), now_ktime_ns)
        elif self._due:
            self._asked = dict(self._choose(now_ktime_ns))
            self._due = {key: due for key, due in self._due.items() if key not in self._asked}
            whom = {key: self._watched[key[0]] for key in self._asked}
            thread_dumps = self._open_thread_dumps(len(whom)) if whom else None
            self._taken.extend(thread_dumps.take(whom) if thread_dumps else ())
            seen = {(dump.pid, dump.tid) for dump in self._taken}
            for key in self._asked.keys() - seen:
                self._starts.pop(key, None)

    def _open_thread_dumps(self, threads: int) -> ThreadDumps | None:
        try:
            return self._thread_dumps()
        except BpfError as error:
            if not self.counts["dump_refused"]:
                text = "calls that had begun before their process was watched are not found: %s"
                _logger.warning(text, error)
            self.counts["dump_refused"] += threads
            return None

    def _choose(self, now_ktime_ns: int) -> Iterator[tuple[_Whom, _Due]]:
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
        self.counts["threads_dumped"] += 1
        self.counts["dump_unreadable"] += not dump.sample
        self.counts["dump_not_followed"] += not dump.is_followed
        if not dump.is_followed or not dump.sample:
            return
        found = self._user_stacks.open_calls(dump.sample)
        self.counts["dump_incomplete"] += not found.complete
        # Those that were seen to begin are further in, and not ours.
        frames = [frame for frame in found.calls if frame.stack_pointer not in dump.open_calls]
        tries = self._asked[key].tries if key in self._asked else 0
        if len(self._due) >= _MAX_THREADS:
            return
        if frames:
            self._due[key] = _Due(0, now_ktime_ns + _INTERVAL_NS)
            yield from self._report(dump, frames, before)
        elif dump.is_late and not found.complete and tries < _TRIES:
            self._due[key] = _Due(tries + 1, now_ktime_ns + _INTERVAL_NS)
            # Nothing is known of it now.
            self._starts[key] = before

    def _report(
        self, dump: ThreadDump, frames: Sequence[OpenFrame], before: Mapping[OpenFrame, int]
    ) -> Iterator[bytes]:
        # At the latest: when we came, or when it began to wait inside of it, long before that.
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
