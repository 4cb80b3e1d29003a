"""
Reads the shared memory of a preloaded program: series, threads and losses.

``preload/layout.h`` has the layout. The content is untrusted input: offsets and sizes come from the
layout's version, never from the memory, a reading has a bounded cost, and invalid content is left out and
counted.
"""

import fcntl
import os
from collections.abc import Callable
from typing import NamedTuple

from otel_gpu import wire
from otel_gpu.errors import OtelGpuError
from otel_gpu.procfs.process_root import open_regular
from otel_gpu.procfs.reader import open_mapping
from otel_gpu.wire.probe_table import API_BY_NUMBER

MAX_PRELOAD_SERIES = 1024
"""Per process; later series are left out."""

ReadBytes = Callable[[int, int], bytes]
"""Returns bytes from (offset, size); fewer at the end of the memory."""

_KEY = wire.PRELOAD_KEY
# The first fields of an aggregate: sum and both extremes.
_HEAD = wire.AGGREGATE.before("size_bytes")
_REST_BYTES = wire.AGGREGATE.size - _HEAD.size
_REST_OFFSET = _KEY.size + _HEAD.size
_U64 = 1 << 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_METRICS = (wire.METRIC_CALL_DURATION, wire.METRIC_LAUNCH_GAP, wire.METRIC_COPY_SIZE)
_COPY_KINDS = (*range(wire.COPY_DEFAULT + 1), wire.COPY_NONE)
_SLOT_HEAD = wire.PRELOAD_SLOT.before("places")
_SERIES_OFFSET = wire.PRELOAD_SLOT.size - wire.PRELOAD_SLOT_SERIES * wire.PRELOAD_SERIES.size
_PLACES_OFFSET = _SLOT_HEAD.size
_SERIES_BEGUN_OFFSET = wire.PRELOAD_SLOT.offset_of("series_begun")
_PLACES_BYTES = wire.MAX_APIS * wire.PRELOAD_PLACE.size


class PreloadError(OtelGpuError):
    """Shared memory that this version cannot read."""


class PreloadThread(NamedTuple):
    """
    A living thread of a preloaded program.

    ``tid`` is in the process's pid namespace. ``generation`` is that of the agent to which the thread last
    announced itself. ``open_api`` is its outermost open call, which began at ``open_ktime_ns``; 0: none,
    also for ``innermost_api``.
    """

    tid: int
    generation: int
    device: int
    depth: int
    last_return_ktime_ns: int
    begun_ktime_ns: int
    last_api: int
    open_api: int
    innermost_api: int
    open_ktime_ns: int


class PreloadReading(NamedTuple):
    """
    The content of a preloaded program's memory.

    ``series``: packed ``wire.AGGREGATE`` by packed ``wire.PRELOAD_KEY``, cumulative, of all threads; empty
    if it was not read. ``places``: cumulative ns inside outermost calls and in the gaps after them, by
    number of the API. ``lost``: the library's losses, by ``enum preload_loss``. ``slots_begun``: how many
    slots were ever used. ``left_out``: series that were invalid or too many; ``nonsense``: only invalid ones.
    """

    start_ktime_ns: int
    clock: int
    slots_begun: int
    series: dict[bytes, bytes]
    places: dict[int, tuple[int, int]]
    threads: list[PreloadThread]
    lost: tuple[int, ...]
    left_out: int
    nonsense: int = 0


def open_memory(pid: int, address: int) -> int:
    """
    Open the shared memory at an address of a process for reading and writing.

    The caller closes the descriptor.

    Raises:
        PreloadError: It is not the memory of a preload library.
        OSError: Nothing is mapped there, or it cannot be opened.
    """
    fd = open_regular(open_mapping(pid, address, address + wire.PRELOAD_BYTES), pid)
    try:
        _check_memory(fd)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(fd)


def _check_memory(fd: int) -> None:
    # Only memfds can be sealed, so our writes cannot change a file.
    if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise PreloadError("its size is not sealed")
    if (size_bytes := os.fstat(fd).st_size) != wire.PRELOAD_BYTES:
        raise PreloadError(f"expected {wire.PRELOAD_BYTES:,} bytes of memory, got {size_bytes:,}")


def read_memory(read: ReadBytes, *, with_series: bool = True) -> PreloadReading:
    """
    Read the memory; without series, which take most of the time, if they are not needed.

    Raises:
        PreloadError: It is not the memory of a preload library, or has another version of the layout.
    """
    header = read_header(read)
    sums = _Sums()
    threads: list[PreloadThread] = []
    # Sums of all slots as one large number with a 64-bit lane per value.
    places = 0
    if with_series:
        common = min(header["common_begun"], wire.PRELOAD_COMMON_SERIES)
        sums.add(read(wire.PRELOAD_COMMON_OFFSET, common * wire.PRELOAD_SERIES.size))
    for number in range(min(header["slots_begun"], wire.PRELOAD_SLOTS)):
        offset = wire.PRELOAD_SLOTS_OFFSET + number * wire.PRELOAD_SLOT.size
        head = read(offset, _PLACES_OFFSET + _PLACES_BYTES)
        if len(head) < _PLACES_OFFSET + _PLACES_BYTES:
            break
        slot = _SLOT_HEAD.named(head)
        if with_series:
            begun = min(slot["series_begun"], wire.PRELOAD_SLOT_SERIES)
            sums.add(read(offset + _SERIES_OFFSET, begun * wire.PRELOAD_SERIES.size))
        places += int.from_bytes(head[_PLACES_OFFSET:].rstrip(b"\0"), "little")
        if slot["tid"]:
            depth = min(slot["depth"], wire.MAX_DEPTH)
            opened = list(wire.PRELOAD_OPEN_CALL.all_named(slot["calls"]))[:depth]
            if depth == 1 and slot["last_return_ktime_ns"] > opened[0]["start_ktime_ns"]:
                opened, depth = [], 0  # the call has returned and is being counted
            threads.append(
                PreloadThread(
                    tid=slot["tid"],
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
    return PreloadReading(
        start_ktime_ns=header["start_ktime_ns"],
        clock=header["clock"],
        slots_begun=min(header["slots_begun"], wire.PRELOAD_SLOTS),
        series=sums.packed(),
        places=_places(places),
        threads=threads,
        lost=losses_of(header),
        left_out=sums.left_out,
        nonsense=sums.nonsense,
    )


def read_header(read: ReadBytes) -> dict[str, int]:
    """Read only the header; raises PreloadError like ``read_memory``."""
    data = read(0, wire.PRELOAD_HEADER.size)
    if len(data) < wire.PRELOAD_HEADER.size:
        raise PreloadError(
            f"expected a header of {wire.PRELOAD_HEADER.size} bytes, got {len(data)}"
        )
    header = wire.PRELOAD_HEADER.named(data)
    if header["magic"] != wire.PRELOAD_MAGIC:
        raise PreloadError("this is not the memory of a preload library")
    if header["version"] != wire.PRELOAD_VERSION:
        raise PreloadError(
            f"the preload library has version {header['version']} of its layout, and this is {wire.PRELOAD_VERSION}",
            hint="Use the library that came with this version of otel-gpu.",
        )
    if header["size_bytes"] != wire.PRELOAD_BYTES:
        raise PreloadError(
            f"expected {wire.PRELOAD_BYTES:,} bytes of memory, got {header['size_bytes']:,}"
        )
    return header


def count_rows(read: ReadBytes) -> int:
    """Return how many series ``read_memory`` would add up."""
    header = read_header(read)
    rows = min(header["common_begun"], wire.PRELOAD_COMMON_SERIES)
    for number in range(min(header["slots_begun"], wire.PRELOAD_SLOTS)):
        place = wire.PRELOAD_SLOTS_OFFSET + number * wire.PRELOAD_SLOT.size + _SERIES_BEGUN_OFFSET
        rows += min(int.from_bytes(read(place, 4), "little"), wire.PRELOAD_SLOT_SERIES)
    return rows


def losses_of(header: dict[str, int]) -> tuple[int, ...]:
    """Return the library's losses, by ``enum preload_loss``."""
    return tuple(header[f"lost_{loss}"] for loss in range(wire.PRELOAD_LOSSES))


def _known(api: int) -> int:
    return api if api in API_BY_NUMBER else 0


def _places(summed: int) -> dict[int, tuple[int, int]]:
    data = (summed % (1 << 8 * _PLACES_BYTES)).to_bytes(_PLACES_BYTES, "little")
    return {
        api: times
        for api, times in enumerate(wire.PRELOAD_PLACE.iter_unpack(data))
        if any(times) and api in API_BY_NUMBER
    }


class _Sums:
    # Sums of series by key, over threads.

    def __init__(self) -> None:
        # The fields behind the extremes are added as one large number. A lane can overflow only with
        # forged values, and then only into the next lane of the same series.
        self._numbers: dict[bytes, int] = {}
        self._heads: dict[bytes, tuple[int, int, int]] = {}
        self.left_out = 0
        self.nonsense = 0

    def add(self, series: bytes) -> None:
        size = wire.PRELOAD_SERIES.size
        numbers, heads = self._numbers, self._heads
        for start in range(0, len(series) - size + 1, size):
            key = series[start : start + _KEY.size]
            before = numbers.get(key)
            if before is None:
                if not _KEY.unpack(key)[2]:  # a thread is about to write it
                    continue
                is_known = _is_known(key)
                if not is_known or len(numbers) >= MAX_PRELOAD_SERIES:
                    self.left_out += 1
                    self.nonsense += not is_known
                    continue
                before, heads[key] = 0, (0, 0, 0)
            total, least, most = heads[key]
            value, own_least, own_most = _HEAD.unpack_from(series, start + _KEY.size)
            heads[key] = total + value, max(least, own_least), max(most, own_most)
            rest = series[start + _REST_OFFSET : start + _REST_OFFSET + _REST_BYTES].rstrip(b"\0")
            numbers[key] = before + int.from_bytes(rest, "little")

    def packed(self) -> dict[bytes, bytes]:
        # As packed ``wire.AGGREGATE``.
        modulus = 1 << 8 * _REST_BYTES
        return {
            key: _HEAD.pack(self._heads[key][0] % _U64, *self._heads[key][1:])
            + (number % modulus).to_bytes(_REST_BYTES, "little")
            for key, number in self._numbers.items()
        }


def _is_known(key: bytes) -> bool:
    _, _, metric, api, copy_kind, nested = _KEY.unpack(key)
    return (
        metric in _METRICS
        and (api in API_BY_NUMBER) == (metric == wire.METRIC_CALL_DURATION)
        and copy_kind in _COPY_KINDS
        and nested in (0, 1)
    )
