"""Work of a device by kernel, by kind of kernel, and by the operator that launched it."""

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Final, NamedTuple

from otel_gpu.state.traces.device_time import DeviceTimeline
from otel_gpu.state.traces.host_time import HostTime, Inside
from otel_gpu.state.traces.kernel_kinds import KernelKind, copy_way, is_migration, is_pageable
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.state.traces.tensor_cores import MULTIPLIES, uses_tensor_cores
from otel_gpu.wire.device_activity import DeviceTrace, HostWork, Work

SHORT_NS: Final = 10_000
"""Shorter kernels are short: launching them takes about as long."""

_NO_CASTS = frozenset({KernelKind.COPY, KernelKind.FILL})
_CAN_USE_TENSOR_CORES = re.compile(
    r"aten::(?:_?convolution\w*|cudnn_convolution\w*|conv\w*|addmm|mm|bmm|baddbmm|matmul|linear"
    r"|_scaled_mm|scaled_dot_product\w*|_flash_attention\w*|_efficient_attention\w*)"
)


class Kernel(NamedTuple):
    """All activities of one name; a ``tensor_cores`` of None: the name does not contain it."""

    name: str
    kind: KernelKind
    times: int
    total_ns: int
    longest_ns: int
    tensor_cores: bool | None


class OperatorTotals(NamedTuple):
    """All calls of one operator: time of the host and of the device, without calls inside them."""

    name: str
    shapes: str
    times: int
    host_ns: int
    device_ns: int
    activities: int


class Copies(NamedTuple):
    """All copies in one direction, as HtoD."""

    way: str
    is_pageable: bool
    times: int
    total_ns: int
    size_bytes: int


class DeviceWork(NamedTuple):
    """
    What one device did in its window.

    Attributes:
        kernel_ns: Time of all kernels that compute; two at once count twice.
        short: How many of them are short, and ``short_ns`` their time.
        eligible_ns: Time of kernels that multiply without tensor cores for operators that can use
            them.
        inside_ns: Time of activities launched in a region of the program.
        cast_ns: Time of kernels that change the type of numbers, launched by casts alone.
        occupancy: The share of warps on processors while kernels ran, as the profiler estimated;
            None: not
          recorded.
        processors_ns: Time of kernels times the share of processors with work, from the same
            source.
    """

    kernels: tuple[Kernel, ...]
    operations: tuple[OperatorTotals, ...]
    copies: tuple[Copies, ...]
    kernel_ns: int
    kernel_count: int
    short: int
    short_ns: int
    eligible_ns: int
    inside_ns: dict[Inside, int]
    cast_ns: int
    occupancy: float | None
    processors_ns: int | None

    def by_kind(self) -> dict[KernelKind, tuple[int, int]]:
        """Return the count and time of each kind, the most time first."""
        found: dict[KernelKind, tuple[int, int]] = {}
        for one in self.kernels:
            count, total_ns = found.get(one.kind, (0, 0))
            found[one.kind] = count + one.times, total_ns + one.total_ns
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    def tensor_ns(self, answer: bool | None, kind: KernelKind | None = None) -> int:
        """
        Return the time of kernels, all or of one kind, that use tensor cores, do not, or (None) are
        unknown.
        """
        return sum(
            one.total_ns
            for one in self.kernels
            if one.tensor_cores is answer and kind in (None, one.kind)
        )


def find_work(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    links: Sequence[int],
    kinds: Sequence[KernelKind],
    host_time: HostTime,
) -> DeviceWork:
    """
    Return what a device did.

    Args:
        trace: The trace of one process.
        timeline: The timeline of the device.
        links: By activity, the call that enqueued it.
        kinds: By name.
        host_time: What threads did; they were walked through before.
    """
    activities, names = trace.activities, trace.names
    durations_ns = activities.durations_ns
    owners = _owners(timeline, links, host_time)
    eligible = [_CAN_USE_TENSOR_CORES.fullmatch(name) is not None for name in names]
    tensor = {
        name: uses_tensor_cores(names[name], kinds[name])
        for name in set(map(activities.names.__getitem__, timeline.rows))
    }
    plain = {name for name, uses in tensor.items() if uses is False and kinds[name] in MULTIPLIES}
    inside_ns: Counter[int] = Counter()
    kernel_ns = kernels = short = short_ns = eligible_ns = cast_ns = 0
    used_ns = 0.0
    kernel, communication, cast = int(Work.KERNEL), KernelKind.COMMUNICATION, int(Inside.CAST)
    for row, owner in zip(timeline.rows, owners, strict=True):
        taken_ns, name = durations_ns[row], activities.names[row]
        if (blocks := activities.blocks[row]) > 0:
            used_ns += taken_ns if blocks >= 1 else blocks * taken_ns
        if links[row] != NO_ROW and (flags := host_time.inside[links[row]]):
            inside_ns[flags] += taken_ns
            if flags & cast and kinds[name] not in _NO_CASTS:
                cast_ns += taken_ns
        if activities.kinds[row] != kernel or kinds[name] is communication:
            continue
        kernel_ns, kernels = kernel_ns + taken_ns, kernels + 1
        if taken_ns < SHORT_NS:
            short, short_ns = short + 1, short_ns + taken_ns
        if name in plain and owner != NO_ROW and eligible[trace.host.names[owner]]:
            eligible_ns += taken_ns
    occupancy = _occupancy(trace, timeline)
    return DeviceWork(
        kernels=tuple(_kernels(trace, timeline, kinds=kinds, tensor=tensor)),
        operations=tuple(_operations(trace, timeline, owners=owners, host_time=host_time)),
        copies=tuple(_copies(trace, timeline)),
        kernel_ns=kernel_ns,
        kernel_count=kernels,
        short=short,
        short_ns=short_ns,
        eligible_ns=eligible_ns,
        inside_ns=_by_region(inside_ns),
        cast_ns=cast_ns,
        occupancy=occupancy,
        processors_ns=None if occupancy is None else round(used_ns),
    )


def _by_region(inside_ns: Mapping[int, int]) -> dict[Inside, int]:
    found: Counter[Inside] = Counter()
    for flags, time_ns in inside_ns.items():
        for flag in Inside(flags):
            found[flag] += time_ns
    return dict(found)


def _owners(timeline: DeviceTimeline, links: Sequence[int], host_time: HostTime) -> "array[int]":
    owners = host_time.owners
    return array(
        "i", (NO_ROW if links[row] == NO_ROW else owners[links[row]] for row in timeline.rows)
    )


def _kernels(
    trace: DeviceTrace,
    timeline: DeviceTimeline,
    kinds: Sequence[KernelKind],
    tensor: Mapping[int, bool | None],
) -> Iterator[Kernel]:
    activities = trace.activities
    sums: dict[int, list[int]] = {}
    for row in timeline.rows:
        taken_ns = activities.durations_ns[row]
        name = activities.names[row]
        one = sums.get(name)
        if one is None:
            one = sums[name] = [0, 0, 0]
        one[0] += 1
        one[1] += taken_ns
        if taken_ns > one[2]:  # noqa: PLR1730 -- max() takes as long as all else
            one[2] = taken_ns
    for name, (count, total_ns, longest_ns) in sorted(sums.items(), key=lambda item: -item[1][1]):
        yield Kernel(
            name=trace.names[name],
            kind=kinds[name],
            times=count,
            total_ns=total_ns,
            longest_ns=longest_ns,
            tensor_cores=tensor[name],
        )


def _operations(
    trace: DeviceTrace, timeline: DeviceTimeline, owners: Sequence[int], host_time: HostTime
) -> Iterator[OperatorTotals]:
    host, activities, operation = trace.host, trace.activities, int(HostWork.OPERATION)
    # By name and shapes: calls, time of the host, time of the device, activities.
    sums: dict[tuple[int, int], list[int]] = {}
    columns = zip(zip(host.names, host.shapes, strict=True), host_time.self_ns, strict=True)
    for key, time_ns in compress(columns, map(operation.__eq__, host.kinds)):
        one = sums.get(key)
        if one is None:
            one = sums[key] = [0, 0, 0, 0]
        one[0] += 1
        one[1] += time_ns
    for row, owner in zip(timeline.rows, owners, strict=True):
        if owner != NO_ROW:
            one = sums[host.names[owner], host.shapes[owner]]
            one[2] += activities.durations_ns[row]
            one[3] += 1
    for (name, shape), found in sorted(sums.items(), key=lambda item: (-item[1][2], -item[1][1])):
        yield OperatorTotals(trace.names[name], trace.shapes[shape], *found)


def _copies(trace: DeviceTrace, timeline: DeviceTimeline) -> Iterator[Copies]:
    activities = trace.activities
    sums: dict[tuple[str, bool], list[int]] = {}
    copy = int(Work.COPY)
    for row in timeline.rows:
        if activities.kinds[row] == copy:
            name = trace.names[activities.names[row]]
            way = copy_way(name) + (", migrated" if is_migration(name) else "")
            one = sums.setdefault((way, is_pageable(name)), [0, 0, 0])
            one[0] += 1
            one[1] += activities.durations_ns[row]
            one[2] += activities.sizes_bytes[row]
    for key, found in sorted(sums.items(), key=lambda item: -item[1][1]):
        yield Copies(*key, *found)


def _occupancy(trace: DeviceTrace, timeline: DeviceTimeline) -> float | None:
    activities = trace.activities
    occupied = whole = 0.0
    for row in timeline.rows:
        if (occupancy := activities.occupancies[row]) >= 0:
            occupied += occupancy * activities.durations_ns[row]
            whole += activities.durations_ns[row]
    return occupied / whole if whole else None
