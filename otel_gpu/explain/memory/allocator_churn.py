"""
Allocator churn: calls that repeatedly take memory from a device and release it.

An allocator exists so that a program need not ask the device, as each such call can wait for it.
The lost time is that of those calls, which is counted in full. Recorded calls have stacks, which
show the lines.
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
from otel_gpu.explain.chains import Cause, Evidence
from otel_gpu.explain.kinds import CauseKind, EvidenceKind, Severity
from otel_gpu.explain.memory.out_of_memory import is_of_allocator, place_of_stack
from otel_gpu.explain.settings import Settings
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.capture_state import Figures
from otel_gpu.wire.frames import Frame, FrameType

KINDS: Final = frozenset(
    {CauseKind.EMPTY_CACHE, CauseKind.ALLOCATION_RETRY, CauseKind.ALLOCATOR_BYPASS}
)
"""Reasons of lost time in calls that allocate and free."""

_FAMILIES = frozenset({wire.FAMILY_ALLOCATE, wire.FAMILY_FREE})
# In native code, or if that has no name in PyTorch's own Python.
_EMPTY_CACHE = re.compile(r"(?:.*::|c10_)(?:empty_cache|emptyCache)\b.*")
_EMPTY_CACHE_FILE = re.compile(r"(?:.*/)?torch/cuda/memory\.py")
_MAX_LINES = 64
_NS_PER_S = 1_000_000_000


class Churn(NamedTuple):
    """
    Recorded calls with one reason, from one line.

    ``frees`` are the calls that released memory.
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


# None: an allocator took memory that it did not have. Nothing is lost by that alone.
_Sorts = dict[tuple[CauseKind | None, Frame], _Sums]


class AllocatorChurn:
    """
    Sums the calls that allocate and free; bounded.

    Args:
        settings: The limits.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fresh: Fifo[ProcessKey, _Sorts] = Fifo(settings.max_processes)
        self._all: Fifo[ProcessKey, _Sorts] = Fifo(settings.max_processes)

    def observe(self, activity: CallActivity, *, has_allocator: bool) -> None:
        """
        Add a call.

        Args:
            activity: The call.
            has_allocator: Whether its process has an allocator that it can bypass.
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
        """Return the recorded calls of a program in all, by reason and line."""
        return tuple(
            Churn(
                kind=kind,
                place=place,
                calls=one.calls,
                frees=one.frees,
                time_ns=one.time_ns,
                max_ns=one.max_ns,
                size_bytes=one.size_bytes,
            )
            for (kind, place), one in self._all.get(program, {}).items()
            if kind is not None
        )

    def find(self, figures: Figures, start_unix_ns: int, end_unix_ns: int) -> Iterator[Chronic]:
        """Yield what a program lost in a window, by its figures; each call counts once."""
        sorts = self._fresh.pop(key_of(figures.process), {})
        chosen_ns = sum(one.time_ns for one in sorts.values())
        if not chosen_ns or all(kind is None for kind, _ in sorts):
            return
        counted_ns = _counted_ns(figures)
        tree = grow(figures.times, None, None)
        launching_ns = tree.time_ns if tree else max(1, end_unix_ns - start_unix_ns)
        settings = self._settings
        least_ns = max(
            1,
            round(settings.chronic_share * launching_ns),
            settings.chronic_lost_ns * (end_unix_ns - start_unix_ns) // _NS_PER_S,
        )
        for kind, stack, time_ns in _sum_up(sorts):
            lost_ns = counted_ns * time_ns // chosen_ns
            if lost_ns >= least_ns:
                yield _chronic(
                    process=figures.process, window=(start_unix_ns, end_unix_ns), kind=kind, stack=stack, lost_ns=lost_ns, least_ns=least_ns,
                    launching_ns=launching_ns,
                )  # fmt: skip

    def forget(self, program: ProcessKey) -> None:
        """Forget the current window of a program that ended; its totals stay."""
        self._fresh.pop(program, None)


def _kind_of(activity: CallActivity, stack: CallStack) -> CauseKind | None:
    frames = stack.frames
    is_free = activity.api.family == wire.FAMILY_FREE
    if is_free and any(map(_empties_cache, frames)):
        return CauseKind.EMPTY_CACHE
    if any(map(is_of_allocator, frames)):
        # It keeps its memory, unless the device had no more and it asks again.
        return CauseKind.ALLOCATION_RETRY if is_free or activity.event.status else None
    return CauseKind.ALLOCATOR_BYPASS


def _empties_cache(frame: Frame) -> bool:
    if frame.kind == FrameType.PYTHON:
        # A program can have a function of its own with that name.
        is_torch = _EMPTY_CACHE_FILE.fullmatch(frame.file) is not None
        return is_torch and frame.function == "empty_cache"
    return _EMPTY_CACHE.fullmatch(frame.function) is not None


def _sum_up(sorts: _Sorts) -> Iterator[tuple[CauseKind, CallStack, int]]:
    # Reasons, the stack of most of their time, and the time of their recorded calls.
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
    # Released memory is allocated again.
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
    launching_ns: int,
) -> Chronic:
    name = f"account-{process.pid}-{kind}-{window[0]}"
    evidence: Iterable[Evidence] = (Evidence(name, EvidenceKind.ACCOUNT, *window, stack=stack),)
    cause = Cause(
        kind=kind,
        time_ns=lost_ns,
        share=lost_ns / launching_ns,
        culprit=None,
        evidence=tuple(evidence),
    )
    return Chronic(
        process, *window, cause, lost_ns, least_ns, launching_ns, Severity.HIGH, frozenset()
    )
