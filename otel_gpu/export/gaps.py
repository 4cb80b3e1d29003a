"""
Stalls that wait to hear whether they lie in a gap.

A stall inside a CUDA call names the call. A stall between two calls cannot name its
gap: whether that becomes a span is decided when the gap ends, and so its record comes
right behind those of its stalls. A stall outside calls is held here until its thread's
next record decides, if it is a thread that makes CUDA calls.
"""

# Some facts about the wait
# -------------------------
#
# The stalls and their gap are sent in one go, but between records of other CPUs, and a
# thread can lose its CPU between sending the one and the other. So what ends the wait
# is, whichever comes first: the thread's next record that is no stall; more stalls than
# a gap can have; the end of the process; or the time of the stream running on for a
# second. No clock is asked, so a replay decides as the capture did. Nothing is lost:
# a stall that waited in vain is a trace of its own.

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    END_OF,
    Activity,
    CallActivity,
    ExitActivity,
    ForkActivity,
    GapActivity,
    OpenCallActivity,
    StallActivity,
    key_of,
)

_PATIENCE_NS = 1_000_000_000
_MAX_THREADS = 4096

_Thread = tuple[int, int, int]

_OF_A_THREAD = (CallActivity, ForkActivity, GapActivity, OpenCallActivity)


class PlacedStall(NamedTuple):
    """A stall of which it is known what it lies in; None: nothing that is a span."""

    stall: StallActivity
    gap: GapActivity | None


@dataclass(slots=True, eq=False)
class _Held:
    """The stalls of one thread, and the first time in the stream after the last of them."""

    stalls: list[StallActivity] = field(default_factory=list)
    since_unix_ns: int = 0


class GapStalls:
    """Holds stalls outside calls until it is known whether they lie in a gap."""

    def __init__(self) -> None:
        # Whose last stall is oldest comes first.
        self._threads: dict[_Thread, _Held] = {}
        self._undated: list[_Held] = []

    @property
    def threads(self) -> Collection[_Thread]:
        """The threads of which any is held: a view, which goes on being right."""
        return self._threads.keys()

    def hold(self, stall: StallActivity) -> Iterator[PlacedStall]:
        """Take in a stall outside calls, and yield those that need not wait any more."""
        thread = _thread_of(stall)
        held = self._threads.pop(thread, None)
        if held is None:
            held = _Held()
            if len(self._threads) >= _MAX_THREADS:
                yield from self._release(next(iter(self._threads)), None)
        self._threads[thread] = held
        held.stalls.append(stall)
        held.since_unix_ns = 0
        self._undated.append(held)
        if len(held.stalls) > wire.MAX_INTERVALS:
            yield PlacedStall(held.stalls.pop(0), None)

    def see(self, activity: Activity) -> Iterator[PlacedStall]:
        """Look at any other activity, and yield the stalls of which it decides."""
        if isinstance(activity, _OF_A_THREAD):
            gap = activity if isinstance(activity, GapActivity) else None
            yield from self._release(_thread_of(activity), gap)
        elif isinstance(activity, ExitActivity):
            image = key_of(activity.process)
            for thread in [thread for thread in self._threads if thread[:2] == image]:
                yield from self._release(thread, None)
        # Others are handed over at the moment that they carry: one of a long gap is seconds old.
        yield from self._release_old(END_OF[type(activity)](activity))

    def pick(self, span_ids: frozenset[bytes]) -> Iterator[PlacedStall]:
        """Yield what is held of each thread of which a span with one of these ids is wanted now."""
        for thread, held in list(self._threads.items()):
            ids = (i for stall in held.stalls for i in (stall.span_id, stall.run_queue_span_id))
            if not span_ids.isdisjoint(ids):
                yield from self._release(thread, None)

    def release(self) -> Iterator[PlacedStall]:
        """Yield all that is held: nothing follows."""
        for thread in list(self._threads):
            yield from self._release(thread, None)

    def _release_old(self, unix_ns: int) -> Iterator[PlacedStall]:
        for held in self._undated:
            held.since_unix_ns = unix_ns
        self._undated.clear()
        # The host's clock can be set back, too.
        while (thread := next(iter(self._threads), None)) and (
            abs(unix_ns - self._threads[thread].since_unix_ns) > _PATIENCE_NS
        ):
            yield from self._release(thread, None)

    def _release(self, thread: _Thread, gap: GapActivity | None) -> Iterator[PlacedStall]:
        held = self._threads.pop(thread, None)
        for stall in held.stalls if held is not None else ():
            inside = gap is not None and (
                gap.event.start_ktime_ns <= stall.event.start_ktime_ns
                and stall.event.end_ktime_ns <= gap.event.end_ktime_ns
            )
            yield PlacedStall(stall, gap if inside else None)


def _thread_of(activity: Any) -> _Thread:  # noqa: ANN401 -- one of a thread
    return activity.event.pid, activity.event.image_ktime_ns, activity.event.tid
