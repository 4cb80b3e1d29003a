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
_LOOKED_AT_A_TIME = 256
_JUDGED_AT_A_TIME = 128
_COUNTS = ("looked_at", "look_unreadable", "look_incomplete", "look_not_followed", "look_refused")

_logger = logging.getLogger(__name__)

_Whom = tuple[int, int]


class _Due(NamedTuple):
    # How often a thread was looked at in vain, and when it is looked at again.
    tries: int
    ktime_ns: int


class EarlyCalls:
    """
    Finds calls that had begun before their process was watched, and looks again while they last.

    ``counts`` says what became of the looks: threads ``looked_at``, of these ``look_unreadable``
    (nothing of their user space could be read), ``look_incomplete`` (a part of the stack is missing)
    and ``look_not_followed`` (it is not known what they have called since); and ``look_refused``: whom
    the kernel refused a look at.
    """

    def __init__(self, looks: Callable[[], ThreadDumps | None], user_stacks: UserStacks) -> None:
        self._looks = looks
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
        """A process is watched that has lived before: look at all of its threads."""
        self._watched[pid] = program_ktime_ns
        self._due[pid, WHOLE_PROCESS] = _Due(0, 0)

    @property
    def is_pending(self) -> bool:
        """Whether threads are looked at, again and again while they are in a call."""
        return bool(self._taken or self._due)

    def run(self, watched: Mapping[int, int]) -> Iterator[bytes]:
        """
        Look, or yield what the last look found, of what is watched: ``program_ktime_ns`` by pid.

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
            looks = self._open_looks(len(whom)) if whom else None
            self._taken.extend(looks.take(whom) if looks else ())
            seen = {(look.pid, look.tid) for look in self._taken}
            for key in self._asked.keys() - seen:
                self._starts.pop(key, None)

    def _open_looks(self, threads: int) -> ThreadDumps | None:
        try:
            return self._looks()
        except BpfError as error:
            if not self.counts["look_refused"]:
                text = "calls that had begun before their process was watched are not found: %s"
                _logger.warning(text, error)
            self.counts["look_refused"] += threads
            return None

    def _choose(self, now_ktime_ns: int) -> Iterator[tuple[_Whom, _Due]]:
        due = [item for item in self._due.items() if item[1].ktime_ns <= now_ktime_ns]
        whole = [item for item in due if item[0][1] == WHOLE_PROCESS]
        yield from whole[:1] or due[:_LOOKED_AT_A_TIME]

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

    def _judge(self, look: ThreadDump, now_ktime_ns: int) -> Iterator[bytes]:
        key = (look.pid, look.tid)
        before = self._starts.pop(key, {})
        if self._watched.get(look.pid) != look.program_ktime_ns:
            return
        self.counts["looked_at"] += 1
        self.counts["look_unreadable"] += not look.sample
        self.counts["look_not_followed"] += not look.is_followed
        if not look.is_followed or not look.sample:
            return
        found = self._user_stacks.open_calls(look.sample)
        self.counts["look_incomplete"] += not found.complete
        # Those that were seen to begin are further in, and not ours.
        frames = [frame for frame in found.calls if frame.stack_pointer not in look.open_calls]
        tries = self._asked[key].tries if key in self._asked else 0
        if len(self._due) >= _MAX_THREADS:
            return
        if frames:
            self._due[key] = _Due(0, now_ktime_ns + _INTERVAL_NS)
            yield from self._report(look, frames, before)
        elif look.is_late and not found.complete and tries < _TRIES:
            self._due[key] = _Due(tries + 1, now_ktime_ns + _INTERVAL_NS)
            # Nothing is known of it now.
            self._starts[key] = before

    def _report(
        self, look: ThreadDump, frames: Sequence[OpenFrame], before: Mapping[OpenFrame, int]
    ) -> Iterator[bytes]:
        # At the latest: when we came, or when it began to wait inside of it, long before that.
        latest = look.program_ktime_ns - len(frames)
        is_waiting = look.state == wire.STATE_BLOCKED and 0 < look.since_ktime_ns < latest
        stack = 0
        starts = self._starts[look.pid, look.tid] = {}
        for depth, frame in enumerate(frames):
            start = (look.since_ktime_ns if is_waiting else latest) + depth
            start = starts[frame] = before.get(frame, start)
            age_ns = look.ktime_ns - start
            if age_ns < _LEAST_AGE_NS or not (is_waiting or frame in before):
                continue
            if not stack:
                resolved = self._user_stacks.resolve_thread(look.sample)
                stack = resolved.stack
                yield from resolved.records
            blocked_ns = look.ktime_ns - look.since_ktime_ns if look.since_ktime_ns else 0
            yield open_call_record(
                look.ktime_ns,
                pid=look.pid,
                tid=look.tid,
                program_ktime_ns=look.program_ktime_ns,
                start_ktime_ns=start,
                root_start_ktime_ns=starts[frames[0]],
                blocked_ns=min(blocked_ns, age_ns) if look.state == wire.STATE_BLOCKED else 0,
                user_stack=stack,
                device=-1,
                api=frame.api,
                depth=depth,
                comm=look.comm,
            )
