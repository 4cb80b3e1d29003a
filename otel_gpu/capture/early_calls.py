"""
CUDA calls that had begun before their process was watched: nobody saw their entry.

A thread that is in a function of a CUDA library, and in no call there whose entry was seen, is in
such a call. It is known by its place on the stack, and goes on for as long as that is so: whatever
is called there anew is seen at its entry. Its return is nothing that is reported; it is just not
found any more.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.capture.looks import WHOLE_PROCESS, Look, Looks
from otel_gpu.records import open_call_record
from otel_gpu.stacks.resolver import OpenFrame
from otel_gpu.stacks.user_stacks import UserStacks

_INTERVAL_NS = 1_000_000_000
# What is younger is most likely a call like any other.
_LEAST_AGE_NS = 1_000_000_000
# Of a thread that runs, whose stack may be another one at its next tick.
_TRIES = 5
_MAX_THREADS = 4096
_COUNTS = ("looked_at", "look_unreadable", "look_incomplete", "look_not_followed")


class _Place(NamedTuple):
    pid: int
    tid: int
    frame: OpenFrame


class EarlyCalls:
    """
    Finds calls that had begun before their process was watched, and looks again while they last.

    ``counts`` says what became of the looks: threads ``looked_at``, of these ``look_unreadable``
    (nothing of their user space could be read), ``look_incomplete`` (a part of the stack is missing)
    and ``look_not_followed`` (it is not known what they have called since).
    """

    def __init__(self, looks: Callable[[], Looks | None], user_stacks: UserStacks) -> None:
        self._looks = looks
        self._user_stacks = user_stacks
        self._images: dict[int, int] = {}
        # Whom to look at next, and whom the last look was at: how often a thread was tried in vain.
        self._due: dict[tuple[int, int], int] = {}
        self._asked: dict[tuple[int, int], int] = {}
        self._taken: list[Look] | None = None
        self._due_ktime_ns = 0
        # When each began, at the latest.
        self._starts: dict[_Place, int] = {}
        self.counts = dict.fromkeys(_COUNTS, 0)

    def expect(self, pid: int, image_ktime_ns: int) -> None:
        """A process is watched that has lived before: look at all of its threads."""
        self._images[pid] = image_ktime_ns
        self._due[pid, WHOLE_PROCESS] = 0
        self._due_ktime_ns = 0

    def run(self, watched: Mapping[int, int]) -> Iterator[bytes]:
        """
        Look, or yield what the last look found, of what is watched: ``image_ktime_ns`` by pid.

        What is new to the agent of a thread that was looked at comes by a ring, which is to be read
        before this is called again.
        """
        now_ktime_ns = time.monotonic_ns()
        self._images = {
            pid: image for pid, image in self._images.items() if watched.get(pid) == image
        }
        if self._taken is not None:
            taken, self._taken = self._taken, None
            yield from self._judge(taken)
        elif self._due and now_ktime_ns >= self._due_ktime_ns:
            looks = self._looks()
            self._due_ktime_ns = now_ktime_ns + _INTERVAL_NS
            self._asked, self._due = self._due, {}
            whom = {key: self._images[key[0]] for key in self._asked if key[0] in self._images}
            self._taken = looks.take(whom) if looks and whom else []

    def _judge(self, looks: Sequence[Look]) -> Iterator[bytes]:
        before, self._starts = self._starts, {}
        for look in looks:
            if self._images.get(look.pid) != look.image_ktime_ns:
                continue
            self.counts["looked_at"] += 1
            self.counts["look_unreadable"] += not look.sample
            self.counts["look_not_followed"] += not look.is_followed
            if not look.is_followed or not look.sample:
                continue
            found = self._user_stacks.open_calls(look.sample)
            self.counts["look_incomplete"] += not found.complete
            # Those that were seen to begin are further in, and not ours.
            frames = [frame for frame in found.calls if frame.stack_pointer not in look.open_calls]
            key = (look.pid, look.tid)
            tries = self._asked.get(key, 0)
            if frames:
                self._keep(key, 0)
                yield from self._report(look, frames, before)
            elif look.is_late and not found.complete and tries < _TRIES:
                self._keep(key, tries + 1)
                # Nothing is known of it now.
                self._starts |= {at: s for at, s in before.items() if (at.pid, at.tid) == key}
        kept = {pid for pid, _ in self._due}
        self._images = {pid: image for pid, image in self._images.items() if pid in kept}

    def _keep(self, key: tuple[int, int], tries: int) -> None:
        if len(self._due) < _MAX_THREADS:
            self._due[key] = tries

    def _report(
        self, look: Look, frames: Sequence[OpenFrame], before: Mapping[_Place, int]
    ) -> Iterator[bytes]:
        # At the latest: when we came, or when it began to wait inside of it, long before that.
        latest = look.image_ktime_ns - len(frames)
        is_waiting = look.state == wire.STATE_BLOCKED and 0 < look.since_ktime_ns < latest
        stack = 0
        for depth, frame in enumerate(frames):
            place = _Place(look.pid, look.tid, frame)
            start = (look.since_ktime_ns if is_waiting else latest) + depth
            start = self._starts[place] = before.get(place, start)
            root = self._starts[_Place(look.pid, look.tid, frames[0])]
            age_ns = look.ktime_ns - start
            if age_ns < _LEAST_AGE_NS or not (is_waiting or place in before):
                continue
            if not stack:
                resolved = self._user_stacks.resolve_look(look.sample)
                stack = resolved.stack
                yield from resolved.records
            blocked_ns = look.ktime_ns - look.since_ktime_ns if look.since_ktime_ns else 0
            yield open_call_record(
                look.ktime_ns,
                pid=look.pid,
                tid=look.tid,
                image_ktime_ns=look.image_ktime_ns,
                start_ktime_ns=start,
                root_start_ktime_ns=root,
                blocked_ns=min(blocked_ns, age_ns) if look.state == wire.STATE_BLOCKED else 0,
                user_stack=stack,
                device=-1,
                api=frame.api,
                depth=depth,
                comm=look.comm,
            )
