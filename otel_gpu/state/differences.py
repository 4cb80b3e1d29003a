"""Differences between two readings of a counter, and sums of two counters."""

# A counter that runs backwards subtracts nothing: a recording is damaged, or the time of a thread
# moved to another reason, which became known later.

from collections.abc import Iterable, Mapping, Sequence
from operator import add

from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.thread_times import NO_WAIT, ThreadTime, TimeKind
from otel_gpu.wire.readings import Aggregate


def grown(now: int, before: int) -> int:
    """Return what was added to a counter between two readings, at least 0."""
    return max(0, now - before)


def series_since(now: Series, before: Series | None, middles_ns: Sequence[float]) -> Series | None:
    """
    Return a series as if it had begun at a reading; None: nothing was added to it.

    The maximum since then is exact if it is the maximum of all; else it is the last bucket with any
    values. The minimum stays that of all.
    """
    if before is None:
        return now
    if before.aggregate is now.aggregate:
        return None
    return now._replace(aggregate=aggregate_since(now.aggregate, before.aggregate, middles_ns))


def aggregate_since(
    now: Aggregate, before: Aggregate, middles_ns: Sequence[float] = ()
) -> Aggregate:
    """Return what was counted since a reading, as ``series_since`` does."""
    buckets = tuple(map(grown, now.buckets, before.buckets))
    most = now.max
    if most == before.max and middles_ns:
        last = max((index for index, count in enumerate(buckets) if count), default=-1)
        most = round(min(middles_ns[last], most))
    return Aggregate(
        grown(now.sum, before.sum),
        now.min,
        most,
        grown(now.size_bytes, before.size_bytes),
        buckets,
    )


def aggregate_with(one: Aggregate, other: Aggregate) -> Aggregate:
    """Return the sum of two series."""
    return Aggregate(
        one.sum + other.sum,
        min(one.min, other.min),
        max(one.max, other.max),
        one.size_bytes + other.size_bytes,
        tuple(map(add, one.buckets, other.buckets)),
    )


def time_since(now: ThreadTime, before: ThreadTime | None) -> ThreadTime:
    """Return the time since a reading."""
    if before is None:
        return now
    return now._replace(
        time_ns=grown(now.time_ns, before.time_ns),
        count=grown(now.count, before.count),
        ended_ns=grown(now.ended_ns, before.ended_ns),
    )


def time_with(one: ThreadTime, other: ThreadTime) -> ThreadTime:
    """Return the sum of two times."""
    return one._replace(
        time_ns=one.time_ns + other.time_ns,
        count=one.count + other.count,
        ended_ns=one.ended_ns + other.ended_ns,
    )


def moved_by_name(
    before: Mapping[TimeKind, ThreadTime], now: Mapping[TimeKind, ThreadTime]
) -> Mapping[TimeKind, ThreadTime]:
    """
    Return a reading with the kinds of a later one, which names ended threads by their names.

    Otherwise their earlier time would count as added since.
    """
    moved: dict[TimeKind, ThreadTime] | None = None
    for kind, time in before.items():
        if kind in now and now[kind].time_ns:
            continue
        by_name = (*kind[:3], kind[3].by_name())
        if by_name == kind or by_name not in now:
            continue
        moved = dict(before) if moved is None else moved
        known, renamed = moved.get(by_name), time._replace(wait=by_name[3])
        moved[by_name] = renamed if known is None else time_with(renamed, known)
    return before if moved is None else moved


def without_waits(times: Iterable[ThreadTime]) -> list[ThreadTime]:
    """Return times summed by process, state, context and reason, without waits."""
    sums: dict[tuple[Program, int, int, str], ThreadTime] = {}
    for time in times:
        kind = (time.process, time.state, time.context, time.reason)
        known = sums.get(kind)
        sums[kind] = time._replace(wait=NO_WAIT) if known is None else time_with(known, time)
    return list(sums.values())
