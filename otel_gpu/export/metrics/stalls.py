"""Stall times of launching threads by culprit, as a bounded number of monotonic counters."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.thread_times import ThreadTime, Wait
from otel_gpu.explain.accounting.verdicts import state_of
from otel_gpu.explain.kinds import TimeState
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement

MAX_NAMED = 16
"""Culprits of one process that have their own counter, in each of their states."""

_MAX_KINDS = 1_024
# Waiting for the device is not a stall, and the driver's waits inside calls are not a cause.
_NOT_STALLS = frozenset({None, TimeState.GPU_WAIT, TimeState.API})


class StallKind(NamedTuple):
    """The key of a counter; empty: not known."""

    state: str
    culprit: str
    culprit_state: str


class Stalls:
    """The counters of one program."""

    def __init__(self) -> None:
        self._sums_ns: dict[StallKind, int] = {}
        # The time that ``other`` has of kinds that were named later. It keeps that: a counter only
        # rises.
        self._in_other_ns: dict[StallKind, int] = {}
        self._left_out_ns: dict[str, int] = {}

    def take(self, times: Iterable[ThreadTime]) -> None:
        """Read all current thread times of the process."""
        sums: Counter[StallKind] = Counter()
        left_out: Counter[str] = Counter()
        for time in times:
            state = state_of(time.state, time.context, time.reason)
            if state in _NOT_STALLS or state is None or time.state == wire.STATE_ON_CPU:
                continue
            if time.ended_ns:
                sums[_kind_of(state, time.wait)] += time.ended_ns
        for kind, time_ns in sums.most_common():
            known_ns = self._sums_ns.get(kind)
            if known_ns is None and len(self._sums_ns) >= _MAX_KINDS:
                left_out[kind.state] += time_ns
                continue
            if kind not in self._in_other_ns and len(self._in_other_ns) < MAX_NAMED:
                self._in_other_ns[kind] = known_ns or 0
            # The reason of a block can become known later.
            self._sums_ns[kind] = max(time_ns, known_ns or 0)
        _raise_to(self._left_out_ns, left_out)

    def measurements(self) -> Iterator[Measurement]:
        """Yield ``gpu.cuda.thread.stall.time``."""
        others = Counter(self._left_out_ns)
        for kind, time_ns in self._sums_ns.items():
            in_other_ns = self._in_other_ns.get(kind, time_ns)
            others[kind.state] += in_other_ns
            if time_ns > in_other_ns:
                yield _measurement(kind, time_ns - in_other_ns)
        for state, time_ns in others.items():
            if time_ns:
                yield _measurement(StallKind(state, TimeState.OTHER, ""), time_ns)


def _raise_to(known: dict[str, int], now: Mapping[str, int]) -> None:
    for state, time_ns in now.items():
        known[state] = max(time_ns, known.get(state, 0))


def _kind_of(state: TimeState, wait: Wait) -> StallKind:
    culprit = wait.end or wait.who
    if culprit is None:
        return StallKind(state, "", "")
    culprit_state = None
    if wait.end_state == wire.STATE_ON_CPU:
        culprit_state = TimeState.HOST
    elif wait.end_state != wire.STATE_NONE:
        culprit_state = state_of(wait.end_state, wire.CONTEXT_GAP, wait.end_reason)
    return StallKind(state, culprit.comm, culprit_state or "")


def _measurement(kind: StallKind, time_ns: int) -> Measurement:
    names = (semconv.STATE, semconv.OTEL_GPU_CULPRIT_COMM, semconv.OTEL_GPU_CULPRIT_STATE)
    attributes: Attributes = tuple(
        (name, value) for name, value in zip(names, kind, strict=True) if value
    )
    return Measurement(
        semconv.METRIC_GPU_CUDA_THREAD_STALL_TIME, attributes, source=kind, value=time_ns
    )
