"""
Where the time of a device went: computing, exposed communication, exposed copies, idle.

Time of a device is a union: what two streams do at once counts once. Work is exposed while nothing
that ranks before it is active: first computing, then communication, then copies. So the four parts
sum to a window, to the nanosecond. Fills (memset) count as computing.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from otel_gpu.state.traces.interval_sets import Spans, union
from otel_gpu.state.traces.kernel_kinds import KernelKind, copy_way, is_migration
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.state.traces.stream_order import StreamOrder, find_order
from otel_gpu.wire.device_activity import DeviceActivities, DeviceTrace

WITHIN_DEVICE: Final = "DtoD"
TO_DEVICE: Final = "HtoD"

# The least share of a window that earlier work needs to matter.
_NEGLIGIBLE = 0.01


class Phases(NamedTuple):
    """
    Time of one device in a window.

    ``compute + exposed_communication + exposed_copy + idle`` is the window. Of exposed copies,
    ``exposed_load_ns`` came from the host.
    """

    window_ns: int
    compute_ns: int
    communication_ns: int
    copy_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    exposed_load_ns: int
    idle_ns: int

    @property
    def overlap(self) -> float | None:
        """The share of communication during which the device computed; None: no communication."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_communication_ns / self.communication_ns


class DeviceTimeline(NamedTuple):
    """
    What one device did in its window: its steps, or from its first to its last activity.

    Attributes:
        rows: Its activities in order of their starts.
        left_out: Activities before the window: they were launched before the recording. 0 if they
            are in
          less than a hundredth of the window.
        migrations: Copies that move pages of managed memory, which no call launched.
        left_out_end_ns: When the last of these ended; 0: there are none.
        outside: Activities before the first step and after the last one, which are left out as
            well.
        order: Contradictions in the order of its streams. Activities with impossible durations are
            left
          out if these matter.
        kernels: Kernels that compute; with ``fills``, which are not kernels, ``compute``.
        loads: Copies from the host.
    """

    device: int
    rows: "array[int]"
    left_out: int
    order: StreamOrder
    start_ns: int
    end_ns: int
    kernels: Spans
    fills: Spans
    compute: Spans
    communication: Spans
    copies: Spans
    loads: Spans
    busy: Spans
    left_out_end_ns: int = 0
    migrations: int = 0
    outside: int = 0

    def phases(self, start_ns: int, end_ns: int) -> Phases:
        """Return where the time of a window went."""
        compute, communication, copies, loads, busy = (
            spans.within(start_ns, end_ns)
            for spans in (self.compute, self.communication, self.copies, self.loads, self.busy)
        )
        window_ns = end_ns - start_ns
        exposed_copies = copies.minus(compute).minus(communication)
        return Phases(
            window_ns=window_ns,
            compute_ns=compute.length_ns,
            communication_ns=communication.length_ns,
            copy_ns=copies.length_ns,
            exposed_communication_ns=communication.minus(compute).length_ns,
            exposed_copy_ns=exposed_copies.length_ns,
            exposed_load_ns=loads.minus(compute).minus(communication).length_ns,
            idle_ns=window_ns - busy.length_ns,
        )

    def gaps(self) -> Spans:
        """Return when the device was idle."""
        return self.busy.gaps(self.start_ns, self.end_ns)


def timelines(
    trace: DeviceTrace, links: Sequence[int], kinds: Sequence[KernelKind]
) -> Iterator[DeviceTimeline]:
    """
    Yield what each device did, by its number.

    Args:
        trace: The trace of one process.
        links: By activity, the call that enqueued it.
        kinds: The kind of work of each name.
    """
    activities = trace.activities
    starts_ns, durations_ns = activities.starts_ns, activities.durations_ns
    classes = [_class_of(name, kind) for name, kind in zip(trace.names, kinds, strict=True)]
    moves = [is_migration(name) for name in trace.names]
    for device in sorted(set(activities.devices)):
        rows = _ordered(activities, device)
        # No call launched these, and they have no stream.
        moved = [row for row in rows if moves[activities.names[row]]] if any(moves) else []
        launched = [row for row in rows if not moves[activities.names[row]]] if moved else rows
        first = _first_recorded(activities, launched, links)
        left_out, kept = launched[:first], array("i", launched[first:])
        order = find_order(trace, kept, links)
        if order.has_wrong_durations:
            kept = array("i", (row for row in kept if row not in order.overlong))
        if moved:
            kept = array("i", sorted((*kept, *moved), key=starts_ns.__getitem__))
        of = _by_class(activities, kept, classes)
        busy = _spans(activities, kept)
        yield DeviceTimeline(
            device=device,
            rows=kept,
            left_out=first,
            order=order,
            # Also of work that took no time: a gap can begin or end with it.
            start_ns=starts_ns[kept[0]],
            end_ns=max(starts_ns[kept[-1]], busy.ends_ns[-1] if busy else 0),
            kernels=of[_Class.KERNEL],
            fills=of[_Class.FILL],
            compute=of[_Class.KERNEL].join(of[_Class.FILL]),
            communication=of[_Class.COMMUNICATION],
            copies=of[_Class.COPY].join(of[_Class.MOVE], of[_Class.LOAD]),
            loads=of[_Class.LOAD],
            busy=busy,
            left_out_end_ns=max(
                (starts_ns[row] + durations_ns[row] for row in left_out), default=0
            ),
            migrations=len(moved),
        )


class _Class(IntEnum):
    KERNEL = 0
    FILL = 1
    COMMUNICATION = 2
    COPY = 3
    MOVE = 4
    LOAD = 5


_OF_WAY = {WITHIN_DEVICE: _Class.MOVE}


def _class_of(name: str, kind: KernelKind) -> _Class:
    if kind is KernelKind.COMMUNICATION:
        return _Class.COMMUNICATION
    if kind is KernelKind.COPY:
        way = copy_way(name)
        # Pages that move on demand are not what a data loader brings.
        is_load = way == TO_DEVICE and not is_migration(name)
        return _Class.LOAD if is_load else _OF_WAY.get(way, _Class.COPY)
    return _Class.FILL if kind is KernelKind.FILL and "memset" in name.lower() else _Class.KERNEL


def _by_class(
    activities: DeviceActivities, rows: Iterable[int], classes: Sequence[_Class]
) -> dict[_Class, Spans]:
    names, collectives = activities.names, activities.collectives
    # By number: attribute access on an enum takes longer than the rest of the loop.
    found, communication = [array("i") for _ in _Class], int(_Class.COMMUNICATION)
    add = [members.append for members in found]
    numbers = [int(one) for one in classes]
    for row in rows:
        # A recorded collective decides, whatever its kernel is called.
        add[communication if collectives[row] else numbers[names[row]]](row)
    return {one: _spans(activities, found[one]) for one in _Class}


def _spans(activities: DeviceActivities, rows: Iterable[int]) -> Spans:
    starts_ns, durations_ns = activities.starts_ns, activities.durations_ns
    return union((starts_ns[row], starts_ns[row] + durations_ns[row]) for row in rows)


def _ordered(activities: DeviceActivities, device: int) -> list[int]:
    rows = [row for row, number in enumerate(activities.devices) if number == device]
    return sorted(rows, key=activities.starts_ns.__getitem__)


def _first_recorded(activities: DeviceActivities, rows: Sequence[int], links: Sequence[int]) -> int:
    # Where activities with recorded calls begin; 0: at once, or nowhere.
    first = next((at for at, row in enumerate(rows) if links[row] != NO_ROW), 0)
    if not first:
        return 0
    starts_ns = activities.starts_ns
    before_ns = starts_ns[rows[first]] - starts_ns[rows[0]]
    whole_ns = starts_ns[rows[-1]] - starts_ns[rows[0]]
    return first if before_ns > whole_ns * _NEGLIGIBLE else 0
