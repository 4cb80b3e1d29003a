"""
Progress of ranks in their collectives, as metrics and log records; see ``wire.communicators``.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    Activity,
    CommunicatorActivity,
    CountersActivity,
    ExitActivity,
)
from otel_gpu.enrich.cuda_errors import error_name
from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.export.spans.finished import Attributes as LogAttributes
from otel_gpu.export.spans.finished import SpanEvent
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.communicators import (
    DATATYPES,
    NO_REDUCTION,
    OPERATIONS,
    REDUCTIONS,
    Communicator,
    QueuedCollective,
    name_of,
)

MAX_COMMUNICATORS: Final = 256
"""Exported communicators of one process."""

_MAX_WAITING = 4096
_ENDED = wire.COMMUNICATOR_ABORTED | wire.COMMUNICATOR_DESTROYED
# The semantic conventions' value for an unknown type.
_OTHER = "_OTHER"


class PendingCollective(NamedTuple):
    """The collective that a rank waits for; ``call`` is None if its details were evicted."""

    number: int
    called_unix_ns: int
    call: QueuedCollective | None


def is_ended(communicator: Communicator) -> bool:
    """Return whether the program aborted or destroyed the communicator."""
    return bool(communicator.flags & _ENDED)


def pending_of(activity: CommunicatorActivity) -> PendingCollective | None:
    """
    Return the collective that is pending for longest, of the remembered calls; None: nothing is.

    A program that never queried completion may have finished its first collectives long ago, so
    only its last one is taken as the one that it may be waiting for.
    """
    communicator = activity.communicator
    if not communicator.pending or is_ended(communicator):
        return None
    calls = list(zip(communicator.recent, activity.recent_unix_ns, strict=True))
    number = communicator.completed + 1 if activity.completed_unix_ns else communicator.called
    later = [(call, unix_ns) for call, unix_ns in calls if call.number >= number]
    if not later:
        return None
    call, unix_ns = later[0]
    return PendingCollective(number, unix_ns, call if call.number == number else None)


def measure_collectives(
    communicators: Mapping[tuple[int, int], CommunicatorActivity],
    now_unix_ns: int,
    *,
    is_alive: bool,
) -> Iterator[Measurement]:
    """
    Yield the counters of each communicator of a process; while it lives, also what is pending.
    """
    for handle, activity in communicators.items():
        communicator = activity.communicator
        place = _place(communicator)
        yield from _counters(communicator, place, handle)
        if not is_alive or is_ended(communicator):
            continue
        yield from _progress(activity, place, handle)
        pending = pending_of(activity)
        age_ns = max(0, now_unix_ns - pending.called_unix_ns) if pending else 0
        for instrument, value in (
            (semconv.METRIC_GPU_NCCL_PENDING, communicator.pending),
            (semconv.METRIC_GPU_NCCL_PENDING_AGE, age_ns),
        ):
            yield Measurement(instrument, attributes=place, source=handle, value=value)


def _place(communicator: Communicator) -> Attributes:
    place: Attributes = ()
    if communicator.id:
        place += ((semconv.GPU_NCCL_COMM, f"{communicator.id:016x}"),)
    if communicator.rank >= 0:
        place += ((semconv.GPU_NCCL_RANK, communicator.rank),)
    return place


def _counters(
    communicator: Communicator, place: Attributes, handle: tuple[int, int]
) -> Iterator[Measurement]:
    for operation, (calls, size_bytes) in communicator.operations.items():
        attributes = (*place, (semconv.GPU_NCCL_OPERATION, OPERATIONS.get(operation, _OTHER)))
        for instrument, value in (
            (semconv.METRIC_GPU_NCCL_COLLECTIVES, calls),
            (semconv.METRIC_GPU_NCCL_BYTES, size_bytes),
        ):
            yield Measurement(instrument, attributes, source=(handle, operation), value=value)
    if communicator.completions:
        for instrument, value in (
            (semconv.METRIC_GPU_NCCL_WAIT_TIME, communicator.waited_ns),
            (semconv.METRIC_GPU_NCCL_COMPLETIONS, communicator.completions),
        ):
            yield Measurement(instrument, attributes=place, source=handle, value=value)
    errors = {_OTHER: communicator.failed}
    if communicator.async_error:
        errors[error_name(wire.LAYER_NCCL, communicator.async_error)] = 1
    for name, count in errors.items():
        if count:
            attributes = (*place, (semconv.ERROR_TYPE, name))
            yield Measurement(
                semconv.METRIC_GPU_NCCL_ERRORS, attributes, source=(handle, name), value=count
            )


def _progress(
    activity: CommunicatorActivity, place: Attributes, handle: tuple[int, int]
) -> Iterator[Measurement]:
    communicator = activity.communicator
    if communicator.flags & wire.COMMUNICATOR_LATE:
        # It joined late: its numbers differ from the other ranks' numbers.
        return
    numbers = {"called": communicator.called}
    if activity.completed_unix_ns:
        numbers["completed"] = communicator.completed
    for state, number in numbers.items():
        attributes = (*place, (semconv.GPU_NCCL_STATE, state))
        yield Measurement(
            semconv.METRIC_GPU_NCCL_SEQUENCE, attributes, source=(handle, state), value=number
        )
    if communicator.recent and communicator.recent[-1].number == communicator.called:
        asked = ",".join(map(str, communicator.recent[-1].signature))
        instrument = semconv.METRIC_GPU_NCCL_SIGNATURE
        yield Measurement(
            instrument, attributes=place, source=handle, value=zlib.crc32(asked.encode())
        )


class PendingCollectives:
    """
    Reports each collective once that a rank waits for, if the rank has made no further call for
    some time.

    A rank that continues to call is not stuck: its program only seldom queries completion. Readings
    come only after changes, so counters, which always come, give the time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_ns = round(limit_s * 1e9)
        self._waiting: Recent[tuple[ProcessKey, tuple[int, int]], CommunicatorActivity] = Recent(
            _MAX_WAITING, evict=lambda key, _: self._reported.pop(key, None)
        )
        # The latest number that was reported.
        self._reported: dict[tuple[ProcessKey, tuple[int, int]], int] = {}
        self._observers: dict[type, Callable[[Any], None]] = {
            CommunicatorActivity: self._read,
            CountersActivity: lambda _: None,
            ExitActivity: self._end,
        }
        self.observes = self._observers.keys()

    def observe(self, activity: Activity) -> list[tuple[Program, SpanEvent]]:
        """Process an activity of a type in ``observes``; return the log records that are due."""
        self._observers[type(activity)](activity)
        if not isinstance(activity, CommunicatorActivity | CountersActivity):
            return []
        return [*self._overdue(activity.unix_ns)] if self._waiting else []

    def _read(self, activity: CommunicatorActivity) -> None:
        key = (key_of(activity.process), activity.handle)
        if activity.communicator.pending and not is_ended(activity.communicator):
            self._waiting[key] = activity
        else:
            self._waiting.pop(key, None)
            self._reported.pop(key, None)

    def _end(self, activity: ExitActivity) -> None:
        program = key_of(activity.process)
        for key in [key for key in self._waiting if key[0] == program]:
            del self._waiting[key]
            self._reported.pop(key, None)

    def _overdue(self, unix_ns: int) -> Iterator[tuple[Program, SpanEvent]]:
        for key, activity in self._waiting.items():
            pending = pending_of(activity)
            if pending is None or unix_ns - activity.recent_unix_ns[-1] < self._limit_ns:
                continue
            if self._reported.get(key) != pending.number:
                self._reported[key] = pending.number
                attributes = _describe(activity.communicator, pending, unix_ns)
                yield activity.process, SpanEvent(semconv.LOG_PENDING, unix_ns, attributes)


def _describe(
    communicator: Communicator, pending: PendingCollective, unix_ns: int
) -> LogAttributes:
    pairs: list[tuple[str, str | int | float]] = [*_place(communicator)]
    if communicator.rank_count:
        pairs.append((semconv.GPU_NCCL_RANK_COUNT, communicator.rank_count))
    if not communicator.flags & wire.COMMUNICATOR_LATE:
        pairs.append((semconv.GPU_NCCL_NUMBER, pending.number))
    if pending.call is not None:
        signature = pending.call.signature
        operation = OPERATIONS.get(signature.operation, _OTHER)
        pairs.append((semconv.GPU_NCCL_OPERATION, operation))
        pairs.append((semconv.GPU_NCCL_ELEMENTS, signature.elements))
        pairs.append((semconv.GPU_NCCL_DATATYPE, name_of(DATATYPES, signature.datatype)))
        if signature.reduction != NO_REDUCTION:
            pairs.append((semconv.GPU_NCCL_REDUCTION, name_of(REDUCTIONS, signature.reduction)))
        if signature.root >= 0:
            pairs.append((semconv.GPU_NCCL_ROOT, signature.root))
    pairs.append((semconv.GPU_NCCL_CALLED, communicator.called))
    pairs.append((semconv.GPU_NCCL_COMPLETED, communicator.completed))
    pairs.append((semconv.GPU_NCCL_PENDING_TIME, (unix_ns - pending.called_unix_ns) / 1e9))
    return tuple(pairs)
