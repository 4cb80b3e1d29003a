"""
Allocator churn: calls that take memory from a device and give it back, again and again.

An allocator is there so that a program need not ask the device, for which each such call may wait. What
is lost is the time of those calls, which is counted in full; whose they are is known of those that were
chosen, by their stacks.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.identity.identities import CallStack, ProcessKey, Program, key_of
from otel_gpu.explain.accounting.chronic import Chronic
from otel_gpu.explain.accounting.time_tree import grow
from otel_gpu.explain.chains import Cause, CauseKind, Evidence
from otel_gpu.explain.memory.out_of_memory import is_of_allocator, place_of_stack
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import HIGH
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.capture_state import Figures
from otel_gpu.wire.frames import PYTHON, Frame

KINDS: Final = frozenset(
    {CauseKind.EMPTY_CACHE, CauseKind.ALLOCATION_RETRY, CauseKind.ALLOCATOR_BYPASS}
)
"""What time in calls that allocate and free may be lost to."""

_FAMILIES = frozenset({wire.FAMILY_ALLOCATE, wire.FAMILY_FREE})
# By native code, and where that has no name by PyTorch's own Python.
_EMPTY_CACHE = re.compile(r"(?:.*::|c10_)(?:empty_cache|emptyCache)\b.*")
_EMPTY_CACHE_FILE = re.compile(r"(?:.*/)?torch/cuda/memory\.py")
_MAX_LINES = 64
_NS_PER_S = 1_000_000_000


class Churn(NamedTuple):
    """
    Calls that were made for one reason, from one line; what was chosen of them.

    ``frees`` are those of the calls that gave memory back.
    """

    kind: CauseKind
    place: Frame
    calls: int
    frees: int
    time_ns: int
    max_ns: int
    size_bytes: int


@dataclass(slots=True)
class _Sums:
    stack: CallStack
    calls: int = 0
    frees: int = 0
    time_ns: int = 0
    max_ns: int = 0
    size_bytes: int = 0

    def add(self, activity: CallActivity) -> None:
        event = activity.event
        time_ns = event.end_ktime_ns - event.start_ktime_ns
        weight = max(1, event.weight)
        is_free = activity.api.family == wire.FAMILY_FREE
        self.calls += weight
        self.frees += weight if is_free else 0
        self.time_ns += weight * time_ns
        self.max_ns = max(self.max_ns, time_ns)
        self.size_bytes += weight * (0 if is_free else event.size_bytes)


# None: an allocator took what it did not have; of that, nothing is lost by itself.
_Sorts = dict[tuple[CauseKind | None, Frame], _Sums]


class AllocatorChurn:
    """
    Watches calls that allocate and free; bounded.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fresh: Fifo[ProcessKey, _Sorts] = Fifo(settings.max_processes)
        self._all: Fifo[ProcessKey, _Sorts] = Fifo(settings.max_processes)

    def observe(self, activity: CallActivity, *, has_allocator: bool) -> None:
        """
        Take in a call.

        Args:
            activity: The call.
            has_allocator: Whether its process has an allocator, past which it may have been made.
        """
        event, stack = activity.event, activity.stack
        is_nested = event.parent_start_ktime_ns != 0
        if activity.api.family not in _FAMILIES or is_nested or stack is None or not has_allocator:
            return
        key = _kind_of(activity, stack), place_of_stack(stack)
        for sums in (self._fresh, self._all):
            sorts = sums.setdefault(key_of(activity.process), {})
            if key in sorts or len(sorts) < _MAX_LINES:
                sorts.setdefault(key, _Sums(stack)).add(activity)

    def churn_of(self, program: ProcessKey) -> tuple[Churn, ...]:
        """Return what was chosen of all calls of a program, by reason and line."""
        return tuple(
            Churn(kind, place, one.calls, one.frees, one.time_ns, one.max_ns, one.size_bytes)
            for (kind, place), one in self._all.get(program, {}).items()
            if kind is not None
        )

    def find(self, figures: Figures, start_unix_ns: int, end_unix_ns: int) -> Iterator[Chronic]:
        """Yield what a program lost in a stretch, of which these are the figures; each call once."""
        sorts = self._fresh.pop(key_of(figures.process), {})
        chosen_ns = sum(one.time_ns for one in sorts.values())
        if not chosen_ns or all(kind is None for kind, _ in sorts):
            return
        counted_ns = _counted_ns(figures)
        tree = grow(figures.times, None, None)
        feeders_ns = tree.time_ns if tree else max(1, end_unix_ns - start_unix_ns)
        settings = self._settings
        least_ns = max(
            1,
            round(settings.chronic_share * feeders_ns),
            settings.chronic_lost_ns * (end_unix_ns - start_unix_ns) // _NS_PER_S,
        )
        for kind, stack, time_ns in _sum_up(sorts):
            lost_ns = counted_ns * time_ns // chosen_ns
            if lost_ns >= least_ns:
                yield _chronic(
                    figures.process, (start_unix_ns, end_unix_ns), kind, stack, lost_ns, least_ns,
                    feeders_ns,
                )  # fmt: skip

    def forget(self, program: ProcessKey) -> None:
        """Let go of a program that ended, but for what it did in all."""
        self._fresh.pop(program, None)


def _kind_of(activity: CallActivity, stack: CallStack) -> CauseKind | None:
    frames = stack.frames
    is_free = activity.api.family == wire.FAMILY_FREE
    if is_free and any(map(_empties_cache, frames)):
        return CauseKind.EMPTY_CACHE
    if any(map(is_of_allocator, frames)):
        # It keeps what it has, but where the device had no more, and before it asks again.
        return CauseKind.ALLOCATION_RETRY if is_free or activity.event.status else None
    return CauseKind.ALLOCATOR_BYPASS


def _empties_cache(frame: Frame) -> bool:
    if frame.kind == PYTHON:
        # A program may call a function of its own like that.
        is_torch = _EMPTY_CACHE_FILE.fullmatch(frame.file) is not None
        return is_torch and frame.function == "empty_cache"
    return _EMPTY_CACHE.fullmatch(frame.function) is not None


def _sum_up(sorts: _Sorts) -> Iterator[tuple[CauseKind, CallStack, int]]:
    """Yield reasons with where most of it was, and how long the chosen calls took."""
    times: dict[CauseKind, int] = {}
    most: dict[CauseKind, _Sums] = {}
    anew_ns = 0
    for (kind, _), one in sorts.items():
        if kind is None:
            anew_ns += one.time_ns
            continue
        times[kind] = times.get(kind, 0) + one.time_ns
        if kind not in most or one.time_ns > most[kind].time_ns:
            most[kind] = one
    # What was given back is taken anew.
    for kind in (CauseKind.EMPTY_CACHE, CauseKind.ALLOCATION_RETRY):
        if kind in times:
            times[kind] += anew_ns
            break
    for kind, time_ns in times.items():
        yield kind, most[kind].stack, time_ns


def _counted_ns(figures: Figures) -> int:
    return sum(
        series.aggregate.sum
        for series in figures.calls
        if series.api and series.api.family in _FAMILIES and not series.key.nested
    )


def _chronic(
    process: Program,
    window: tuple[int, int],
    kind: CauseKind,
    stack: CallStack,
    lost_ns: int,
    least_ns: int,
    feeders_ns: int,
) -> Chronic:
    name = f"account-{process.pid}-{kind}-{window[0]}"
    evidence: Iterable[Evidence] = (Evidence(name, "account", *window, stack=stack),)
    cause = Cause(kind, lost_ns, lost_ns / feeders_ns, None, tuple(evidence))
    return Chronic(process, *window, cause, lost_ns, least_ns, feeders_ns, HIGH, frozenset())
