"""Collectives of the processes of one run, and which rank keeps the others waiting."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.kernel_kinds import KernelKind
from otel_gpu.wire.device_activity import DeviceTrace

MAX_COLLECTIVES: Final = 200_000
"""Of one process, the first ones."""

Key = tuple[str, str, int, int]
"""
Group, name, number in the group, or else the order, and the count.

Ranks that began to record at different times have different counts, and which collectives of them
are the same is not known.
"""


class Waits(NamedTuple):
    """
    What the collectives show about one rank.

    Clocks of hosts do not agree, so only durations are compared. In a collective all ranks wait for
    the last one, for which it is the shortest.

    Attributes:
        matched: Collectives that other ranks have too.
        waited_ns: How much longer they took than for the rank that came last.
        last: In how many of them this one came last.
    """

    rank: int
    matched: int
    waited_ns: int
    last: int


def collectives_of(
    trace: DeviceTrace, timeline: DeviceTimeline, kinds: Sequence[KernelKind]
) -> dict[Key, int]:
    """Return the collectives of a device, and how long each took, in nanoseconds."""
    activities, found = trace.activities, dict[Key, int]()
    ordered: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    count = 0
    for row in timeline.rows:
        name = activities.names[row]
        number = activities.collectives[row]
        if not number and kinds[name] is not KernelKind.COMMUNICATION:
            continue
        made = trace.collectives[number]
        of = made.group, made.name or trace.names[name]
        if made.sequence < 0:
            ordered[of].append(activities.durations_ns[row])
        else:
            found[*of, made.sequence, 0] = activities.durations_ns[row]
        count += 1
        if count >= MAX_COLLECTIVES:
            break
    for of, durations_ns in ordered.items():
        for order, duration_ns in enumerate(durations_ns):
            found[*of, order, len(durations_ns)] = duration_ns
    return found


def find_waits(ranks: Mapping[int, Mapping[Key, int]]) -> tuple[Waits, ...]:
    """Return the waits of each rank; a rank alone has none."""
    matched: Counter[int] = Counter()
    waited_ns: Counter[int] = Counter()
    last: Counter[int] = Counter()
    holders: dict[Key, list[int]] = {}
    for rank, found in ranks.items():
        for key in found:
            holders.setdefault(key, []).append(rank)
    for key, members in holders.items():
        if len(members) < 2:  # noqa: PLR2004 -- no other rank to compare with
            continue
        latest = min(members, key=lambda rank: ranks[rank][key])
        last[latest] += 1
        for rank in members:
            matched[rank] += 1
            waited_ns[rank] += ranks[rank][key] - ranks[latest][key]
    return tuple(
        Waits(rank, matched[rank], waited_ns=waited_ns[rank], last=last[rank])
        for rank in sorted(matched)
    )
