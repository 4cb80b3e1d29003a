"""What the kernel side keeps of periods: who has one, and the calls in which it is looked for."""

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
# Of all of them at once: they are looked through each second, and few of them are taken.
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
    """Of ``struct iteration_record`` what is not who."""

    start_ktime_ns: int
    end_ktime_ns: int


def limit_period_maps(bpf: BpfObject, *, are_wanted: bool) -> None:
    """Have periods take no memory if no steps are looked for; before ``load``."""
    if not are_wanted:
        bpf.set_max_entries("step_detectors", 1)
        bpf.set_max_entries("detector_calls", 1)


class PeriodMemory(ABC):
    """StepDetectors in memory that both sides write into, by index."""

    @abstractmethod
    def _read(self, index: int, offset: int, size_bytes: int) -> bytes:
        """Return what is at an offset of ``struct step_detector``."""

    @abstractmethod
    def _write(self, index: int, offset: int, data: bytes) -> None: ...

    @abstractmethod
    def _kept(self, index: int) -> bytes:
        """Return ``struct detector_call`` of each call that is kept."""

    @abstractmethod
    def taken(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield those that threads have, as (index, ``struct step_detector``)."""

    @abstractmethod
    def share_areas(self, wanting: Sequence[int]) -> None:
        """Give areas to those that want one, and others to who comes next."""

    def holds(self, _index: int) -> bool:
        """Whether there still is something to read and write at an index that was taken."""
        return True

    def iterations(self, _index: int, *, is_last: bool = False) -> Sequence[IterationTimes]:  # noqa: ARG002
        """Return the iterations that no record was sent of, since they were last asked for."""
        return ()

    def detector(self, index: int) -> dict[str, Any]:
        """Return ``struct step_detector``, as it is now."""
        return wire.STEP_DETECTOR.named(self._read(index, 0, wire.STEP_DETECTOR.size))

    def calls(self, index: int) -> CallSequence:
        """Return the calls that are kept."""
        words = array("Q", self._kept(index))
        roles: dict[int, CallRole] = {}
        symbols = array("H")
        for what in words[1::2]:
            symbol = what >> 32 & 0xFFFF
            symbols.append(symbol)
            if symbol not in roles:
                roles[symbol] = _role(what >> 48 & 0xFF, what >> 56)
        gaps_ns = array("I", (what & 0xFFFFFFFF for what in words[1::2]))
        return CallSequence(symbols, words[::2], gaps_ns, roles)

    def follow(self, index: int, period: Period) -> None:
        """Have the iterations of a period reported; the one that goes on is also one of it."""
        self._write(index, _MASKS[0], _LONG.pack(0))
        patterns = (
            pattern
            for ones in (period.starts, period.ends)
            for pattern in (*ones, *[0] * (wire.DETECTOR_PATTERNS - len(ones)))
        )
        self._write(index, _STARTS, _PATTERNS.pack(*patterns))
        self._set(index, "start_calls", period.start_calls)
        self._set(index, "folds", int(period.folds))
        # The first one last: it says that all others are there.
        for mask, calls in zip(_MASKS[::-1], (period.end_calls, period.start_calls), strict=True):
            self._write(index, mask, _LONG.pack((1 << _SYMBOL_BITS * calls) - 1))

    def stop(self, index: int) -> None:
        """Have no iterations reported, nor later the one that goes on."""
        self._write(index, _MASKS[0], _LONG.pack(0))
        self._write(index, _IS_OVER, b"\0")
        self._write(index, _START_KTIME_NS, _LONG.pack(0))

    def free(self, index: int) -> None:
        """Let another thread have a period whose thread has ended, with its area."""
        area, tid = self._get(index, "area"), self._get(index, "tid")
        self._write(index, 0, wire.STEP_DETECTOR.build(area=area, tid=tid))
        self._set(index, "tid", 0)

    def take_area(self, index: int) -> None:
        """Keep no calls any more."""
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
    The kernel side's periods; mapped, as both sides write into them.

    A thread takes the first one that is free, and its calls are kept if that has an area.
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
        """Unmap them."""
        self._detectors.close()

    def taken(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield those that threads have, as (index, ``struct step_detector``)."""
        # Who takes one says at last which process it is of.
        for index, (tid, pid) in enumerate(zip(self._all("tid"), self._all("pid"), strict=True)):
            if tid and pid:
                yield index, self.detector(index)

    def share_areas(self, wanting: Sequence[int]) -> None:
        """Give areas to those that want one, and others to who comes next."""
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
        """Return a number of each of them."""
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
        # All of them are 4 MB of our memory for as long as they are mapped, and are read now and then.
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
