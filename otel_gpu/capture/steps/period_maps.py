"""The step detectors of the kernel side's maps, and the calls that they keep."""

import mmap
import struct
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.steps.period import CallRole, CallSequence, Period
from otel_gpu.wire.probe_table import API_BY_NUMBER

_NUMBER, _LONG = struct.Struct("<I"), struct.Struct("<Q")
_NUMBERS: Final = ("tid", "pid", "kept", "area", "folds", "start_calls")
_AT: Final = {name: wire.STEP_DETECTOR.offset_of(name) for name in _NUMBERS}
# To read one field of all detectors at once, each second: few of them are in use.
_COLUMNS: Final = {
    name: struct.Struct(f"<{at}xI{wire.STEP_DETECTOR.size - at - _NUMBER.size}x")
    for name, at in _AT.items()
}
_MASKS: Final = tuple(map(wire.STEP_DETECTOR.offset_of, ("start_mask", "end_mask")))
_STARTS: Final = wire.STEP_DETECTOR.offset_of("starts_0")
_IS_OVER: Final = wire.STEP_DETECTOR.offset_of("is_over")
_START_KTIME_NS: Final = wire.STEP_DETECTOR.offset_of("start_ktime_ns")
_PATTERNS: Final = struct.Struct(f"<{2 * wire.DETECTOR_PATTERNS}Q")
_SYMBOL_BITS = 16
_AREA_BYTES: Final = wire.DETECTOR_CALLS * wire.DETECTOR_CALL.size
_ROLES: Final[Mapping[int, CallRole]] = {
    wire.FAMILY_LAUNCH: CallRole.LAUNCH,
    wire.FAMILY_GRAPH_LAUNCH: CallRole.LAUNCH,
    wire.FAMILY_SYNCHRONIZE: CallRole.WAIT,
}
_COPIES: Final[Mapping[int, CallRole]] = {
    wire.COPY_DEVICE_TO_HOST: CallRole.TO_HOST,
    wire.COPY_HOST_TO_DEVICE: CallRole.TO_DEVICE,
}


class IterationTimes(NamedTuple):
    """Start and end of an iteration."""

    start_ktime_ns: int
    end_ktime_ns: int


def limit_period_maps(bpf: BpfObject, *, are_wanted: bool) -> None:
    """Allocate no memory for detectors if steps are not wanted; before ``load``."""
    if not are_wanted:
        bpf.set_max_entries("step_detectors", 1)
        bpf.set_max_entries("detector_calls", 1)


class PeriodMemory(ABC):
    """Step detectors by index, in memory that both sides write."""

    @abstractmethod
    def _read(self, index: int, offset: int, size_bytes: int) -> bytes:
        # Bytes at an offset of ``struct step_detector``.
        ...

    @abstractmethod
    def _write(self, index: int, offset: int, data: bytes) -> None: ...

    @abstractmethod
    def _kept(self, index: int) -> bytes:
        # The kept calls as an array of ``struct detector_call``.
        ...

    @abstractmethod
    def taken(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the detectors that threads use, as (index, ``struct step_detector``)."""

    @abstractmethod
    def share_areas(self, wanting: Sequence[int]) -> None:
        """Assign areas for calls to these detectors, and spare ones to free detectors."""

    def holds(self, _index: int) -> bool:
        """Whether the memory of a detector is still open."""
        return True

    def iterations(self, _index: int, *, is_last: bool = False) -> Sequence[IterationTimes]:  # noqa: ARG002
        """Return the iterations without records since the previous call."""
        return ()

    def detector(self, index: int) -> dict[str, Any]:
        """Return the present ``struct step_detector``."""
        return wire.STEP_DETECTOR.named(self._read(index, 0, wire.STEP_DETECTOR.size))

    def calls(self, index: int) -> CallSequence:
        """Return the kept calls."""
        words = array("Q", self._kept(index))
        roles: dict[int, CallRole] = {}
        symbols = array("H")
        for what in words[1::2]:
            symbol = what >> 32 & 0xFFFF
            symbols.append(symbol)
            if symbol not in roles:
                roles[symbol] = _role(what >> 48 & 0xFF, what >> 56)
        gaps_ns = array("I", (what & 0xFFFFFFFF for what in words[1::2]))
        return CallSequence(symbols, starts_ns=words[::2], gaps_ns=gaps_ns, roles=roles)

    def follow(self, index: int, period: Period) -> None:
        """Set the period whose iterations to report, including the current one."""
        self._write(index, _MASKS[0], _LONG.pack(0))
        patterns = (
            pattern
            for ones in (period.starts, period.ends)
            for pattern in (*ones, *[0] * (wire.DETECTOR_PATTERNS - len(ones)))
        )
        self._write(index, _STARTS, _PATTERNS.pack(*patterns))
        self._set(index, "start_calls", period.start_calls)
        self._set(index, "folds", int(period.folds))
        # The start mask last: it activates the others.
        for mask, calls in zip(_MASKS[::-1], (period.end_calls, period.start_calls), strict=True):
            self._write(index, mask, _LONG.pack((1 << _SYMBOL_BITS * calls) - 1))

    def stop(self, index: int) -> None:
        """Stop reporting iterations, including the current one."""
        self._write(index, _MASKS[0], _LONG.pack(0))
        self._write(index, _IS_OVER, b"\0")
        self._write(index, _START_KTIME_NS, _LONG.pack(0))

    def free(self, index: int) -> None:
        """Release the detector of a thread that has ended, with its area."""
        area, tid = self._get(index, "area"), self._get(index, "tid")
        self._write(index, 0, wire.STEP_DETECTOR.build(area=area, tid=tid))
        self._set(index, "tid", 0)

    def take_area(self, index: int) -> None:
        """Stop keeping calls."""
        self._set(index, "area", 0)

    def _give(self, index: int, area: int) -> None:
        self._set(index, "kept", 0)
        self._set(index, "area", area)

    def _get(self, index: int, name: str) -> int:
        number: int
        (number,) = _NUMBER.unpack(self._read(index, _AT[name], _NUMBER.size))
        return number

    def _set(self, index: int, name: str, number: int) -> None:
        self._write(index, _AT[name], _NUMBER.pack(number))


class PeriodMaps(PeriodMemory):
    """
    The kernel side's detectors, mapped because both sides write them.

    A thread takes the first free detector, and its calls are kept if that has an area.
    """

    def __init__(self, bpf: BpfObject) -> None:
        detectors, calls = bpf.map("step_detectors"), bpf.map("detector_calls")
        self._size_bytes = detectors.max_entries * detectors.value_bytes
        pages = -(-self._size_bytes // mmap.PAGESIZE)
        self._detectors = mmap.mmap(detectors.fd, pages * mmap.PAGESIZE)
        self._calls_fd = calls.fd
        self._areas = set(range(1, calls.max_entries // wire.DETECTOR_CALLS + 1))
        self.share_areas(())

    def close(self) -> None:
        """Unmap the detectors."""
        self._detectors.close()

    def taken(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yield the detectors that threads use, as (index, ``struct step_detector``)."""
        # A thread that takes one writes the pid last.
        for index, (tid, pid) in enumerate(zip(self._all("tid"), self._all("pid"), strict=True)):
            if tid and pid:
                yield index, self.detector(index)

    def share_areas(self, wanting: Sequence[int]) -> None:
        """Assign areas for calls to these detectors, and spare ones to free detectors."""
        areas = self._all("area")
        free = sorted(self._areas - set(areas), reverse=True)
        if not (free or wanting):
            return
        spare = [index for index, tid in enumerate(self._all("tid")) if not tid]
        for index in wanting:
            if areas[index]:
                continue
            if not free:
                lent = next((at for at in reversed(spare) if self._get(at, "area")), None)
                if lent is None:
                    return
                free.append(self._get(lent, "area"))
                self.take_area(lent)
            self._give(index, free.pop())
        for index in spare:
            if free and not self._get(index, "area"):
                self._give(index, free.pop())

    def _all(self, name: str) -> list[int]:
        # One field of all detectors.
        with memoryview(self._detectors) as whole, whole[: self._size_bytes] as detectors:
            return [number for (number,) in _COLUMNS[name].iter_unpack(detectors)]

    def _read(self, index: int, offset: int, size_bytes: int) -> bytes:
        at = index * wire.STEP_DETECTOR.size + offset
        return self._detectors[at : at + size_bytes]

    def _write(self, index: int, offset: int, data: bytes) -> None:
        at = index * wire.STEP_DETECTOR.size + offset
        self._detectors[at : at + len(data)] = data

    def _kept(self, index: int) -> bytes:
        area, kept = self._get(index, "area"), self._get(index, "kept")
        if not area:
            return b""
        # All areas would be 4 MB of our memory while they are mapped, and are read rarely.
        at = (area - 1) * _AREA_BYTES
        with mmap.mmap(
            self._calls_fd, _AREA_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=at
        ) as calls:
            return calls[: kept * wire.DETECTOR_CALL.size]


def _role(api: int, copy_kind: int) -> CallRole:
    row = API_BY_NUMBER.get(api)
    if row is None or row.stream_work == wire.WORK_AWAITED:
        return CallRole.OTHER
    if row.family == wire.FAMILY_COPY:
        return _COPIES.get(copy_kind, CallRole.OTHER)
    return _ROLES.get(row.family, CallRole.OTHER)
