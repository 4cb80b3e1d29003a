"""
The memory that a program's door shares, read: counts per series, threads, and losses.

``native/door.h`` has the layout. Whoever can write to the memory is a stranger: offsets and counts
are of the layout's version and never taken from what is read, a reading costs at most so much, and
what makes no sense is left out and counted.
"""

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.errors import OtelGpuError
from otel_gpu.probe_table import API_BY_NUMBER
from otel_gpu.procfs.mapped_files import open_regular

MAX_DOOR_SERIES = 1024
"""Of one process; those that come later are left out."""

ReadBytes = Callable[[int, int], bytes]
"""Returns the bytes from an offset on, as many as are asked for, or fewer where there are no more."""

_KEY = wire.DOOR_KEY
_EXTREMES = struct.Struct("<QQ")
_EXTREMES_OFFSET = wire.AGGREGATE.offset_of("min_complement")
_NO_EXTREMES = bytes(_EXTREMES.size)
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_METRICS = (wire.METRIC_CALL_DURATION, wire.METRIC_LAUNCH_GAP, wire.METRIC_COPY_SIZE)
_COPY_KINDS = (*range(wire.COPY_DEFAULT + 1), wire.COPY_NONE)
_SLOT_HEAD = wire.DOOR_SLOT.before("places")
_SERIES_OFFSET = wire.DOOR_SLOT.size - wire.DOOR_SLOT_SERIES * wire.DOOR_SERIES.size
_PLACES_OFFSET = _SLOT_HEAD.size


class DoorError(OtelGpuError):
    """The memory is not that of a door that this version can read."""


class DoorThread(NamedTuple):
    """
    A thread that has a slot now.

    ``tid`` is as its process's own pid namespace has it; ``slot_offset`` is where in the memory its
    slot is; ``generation`` is that of the agent that it was introduced to. ``open_api`` is its outermost
    open call, which began at ``open_ktime_ns``; 0: it is in none, as for ``innermost_api``.
    """

    tid: int
    slot_offset: int
    generation: int
    device: int
    depth: int
    last_return_ktime_ns: int
    begun_ktime_ns: int
    last_api: int
    open_api: int
    innermost_api: int
    open_ktime_ns: int


class DoorReading(NamedTuple):
    """
    What a door's memory held.

    ``series`` maps a packed ``wire.DOOR_KEY`` to a packed ``wire.AGGREGATE``: sums since the memory
    began, over all threads. ``places`` maps an API's number to the cumulative nanoseconds inside its
    outermost calls, and in the gaps after them. ``lost`` has the door's own losses, by ``enum
    door_loss``; ``slots_begun`` is how many
    slots were ever used; ``left_out`` is how many series made no sense or were too many.
    """

    start_ktime_ns: int
    clock: int
    slots_begun: int
    series: dict[bytes, bytes]
    places: dict[int, tuple[int, int]]
    threads: list[DoorThread]
    lost: tuple[int, ...]
    left_out: int


def open_memory(pid: int, address: int) -> int:
    """
    Open the memory at an address of a process, to read and write; the caller closes the descriptor.

    Raises:
        DoorError: It is nobody's memory of a door.
        OSError: There is none.
    """
    link = f"/proc/{pid}/map_files/{address:x}-{address + wire.DOOR_BYTES:x}"
    fd = open_regular(os.open(link, os.O_PATH | os.O_CLOEXEC))
    try:
        _check_memory(fd)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _check_memory(fd: int) -> None:
    # Only memory that a process made can be sealed: what we write to it is nobody's file.
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise DoorError("its size is not sealed")
    if os.fstat(fd).st_size != wire.DOOR_BYTES:
        raise DoorError("it does not have the size of a door's memory")


def read_door(read: ReadBytes) -> DoorReading:
    """Read everything; raises DoorError if this is no door's memory, or another version's."""
    header = _read_header(read)
    sums = _Sums()
    threads: list[DoorThread] = []
    places: dict[int, tuple[int, int]] = {}
    common = min(header["common_begun"], wire.DOOR_COMMON_SERIES)
    sums.add(read(wire.DOOR_COMMON_OFFSET, common * wire.DOOR_SERIES.size))
    for number in range(min(header["slots_begun"], wire.DOOR_SLOTS)):
        offset = wire.DOOR_SLOTS_OFFSET + number * wire.DOOR_SLOT.size
        head = read(offset, _SERIES_OFFSET)
        if len(head) < _SERIES_OFFSET:
            break
        slot = _SLOT_HEAD.named(head)
        begun = min(slot["series_begun"], wire.DOOR_SLOT_SERIES)
        sums.add(read(offset + _SERIES_OFFSET, begun * wire.DOOR_SERIES.size))
        for api, call_ns, gap_ns in _places(head):
            before = places.get(api, (0, 0))
            places[api] = (before[0] + call_ns, before[1] + gap_ns)
        if slot["tid"]:
            depth = min(slot["depth"], wire.MAX_DEPTH)
            opened = list(wire.DOOR_OPEN_CALL.all_named(slot["calls"]))[:depth]
            if depth == 1 and slot["last_return_ktime_ns"] > opened[0]["start_ktime_ns"]:
                opened, depth = [], 0  # it is over, and still being counted
            threads.append(
                DoorThread(
                    tid=slot["tid"],
                    slot_offset=offset,
                    generation=slot["generation"],
                    device=slot["device"],
                    depth=depth,
                    last_return_ktime_ns=slot["last_return_ktime_ns"],
                    last_api=_known(slot["last_api"]),
                    open_api=_known(opened[0]["api"]) if depth else 0,
                    innermost_api=_known(opened[-1]["api"]) if depth else 0,
                    open_ktime_ns=opened[0]["start_ktime_ns"] if depth else 0,
                    begun_ktime_ns=slot["begun_ktime_ns"],
                )
            )
    return DoorReading(
        start_ktime_ns=header["start_ktime_ns"],
        clock=header["clock"],
        slots_begun=min(header["slots_begun"], wire.DOOR_SLOTS),
        series=sums.packed(),
        places=places,
        threads=threads,
        lost=tuple(header[f"lost_{loss}"] for loss in range(wire.DOOR_LOSSES)),
        left_out=sums.left_out,
    )


def _read_header(read: ReadBytes) -> dict[str, int]:
    data = read(0, wire.DOOR_HEADER.size)
    if len(data) < wire.DOOR_HEADER.size:
        raise DoorError("the door's memory is too short")
    header = wire.DOOR_HEADER.named(data)
    if header["magic"] != wire.DOOR_MAGIC:
        raise DoorError("this is not the memory of a door")
    if header["version"] != wire.DOOR_VERSION:
        raise DoorError(
            f"the door has version {header['version']} of its layout, and this is {wire.DOOR_VERSION}",
            hint="Use the library that came with this version of otel-gpu.",
        )
    if header["size_bytes"] != wire.DOOR_BYTES:
        raise DoorError("the door's memory does not have the size of its version")
    return header


def _known(api: int) -> int:
    return api if api in API_BY_NUMBER else 0


def _places(head: bytes) -> Iterator[tuple[int, int, int]]:
    times = wire.DOOR_PLACE.iter_unpack(
        head[_PLACES_OFFSET : _PLACES_OFFSET + wire.MAX_APIS * wire.DOOR_PLACE.size]
    )
    for api, (call_ns, gap_ns) in enumerate(times):
        if (call_ns or gap_ns) and api in API_BY_NUMBER:
            yield api, call_ns, gap_ns


class _Sums:
    """Series of many threads, added up by key."""

    def __init__(self) -> None:
        # An aggregate is added as one number: a lane overflows only where somebody wants it to, and
        # then into the next one of the same series.
        self._numbers: dict[bytes, int] = {}
        self._extremes: dict[bytes, tuple[int, int]] = {}
        self.left_out = 0

    def add(self, series: bytes) -> None:
        """Add an array of ``struct door_series``."""
        size = wire.DOOR_SERIES.size
        for start in range(0, len(series) - size + 1, size):
            key = series[start : start + _KEY.size]
            metric = _KEY.unpack(key)[2]
            if not metric:  # a thread is about to begin it
                continue
            if not _is_known(key) or (
                key not in self._numbers and len(self._numbers) >= MAX_DOOR_SERIES
            ):
                self.left_out += 1
                continue
            aggregate = series[start + _KEY.size : start + _KEY.size + wire.AGGREGATE.size]
            least, most = _EXTREMES.unpack_from(aggregate, _EXTREMES_OFFSET)
            before = self._extremes.get(key, (0, 0))
            self._extremes[key] = (max(least, before[0]), max(most, before[1]))
            end = _EXTREMES_OFFSET + _EXTREMES.size
            summed = aggregate[:_EXTREMES_OFFSET] + _NO_EXTREMES + aggregate[end:]
            number = int.from_bytes(summed, "little")
            self._numbers[key] = self._numbers.get(key, 0) + number

    def packed(self) -> dict[bytes, bytes]:
        """Return the sums as ``wire.AGGREGATE`` packs them."""
        size = wire.AGGREGATE.size
        modulus = 1 << 8 * size
        packed = {}
        for key, number in self._numbers.items():
            data = bytearray((number % modulus).to_bytes(size, "little"))
            _EXTREMES.pack_into(data, _EXTREMES_OFFSET, *self._extremes[key])
            packed[key] = bytes(data)
        return packed


def _is_known(key: bytes) -> bool:
    _, _, metric, api, copy_kind, nested = _KEY.unpack(key)
    return (
        metric in _METRICS
        and (api in API_BY_NUMBER) == (metric == wire.METRIC_CALL_DURATION)
        and copy_kind in _COPY_KINDS
        and nested in (0, 1)
    )
