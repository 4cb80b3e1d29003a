"""What the kernel side keeps of rhythms: who has one, and the calls in which it is looked for."""

import mmap
import struct
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.capture.objects import BpfMap, BpfObject
from otel_gpu.capture.rhythm import Calls, Rhythm, Role
from otel_gpu.probe_table import API_BY_NUMBER

_NUMBER, _LONG = struct.Struct("<I"), struct.Struct("<Q")
_NUMBERS: Final = ("tid", "pid", "kept", "area", "folds", "start_calls")
_AT: Final = {name: wire.RHYTHM.offset_of(name) for name in _NUMBERS}
_MASKS: Final = tuple(map(wire.RHYTHM.offset_of, ("start_mask", "end_mask")))
_STARTS: Final = wire.RHYTHM.offset_of("starts_0")
_PATTERNS: Final = struct.Struct(f"<{2 * wire.RHYTHM_PATTERNS}Q")
_SYMBOL_BITS = 16
_ROLES: Final[Mapping[int, Role]] = {
    wire.FAMILY_LAUNCH: Role.LAUNCH,
    wire.FAMILY_GRAPH_LAUNCH: Role.LAUNCH,
    wire.FAMILY_SYNCHRONIZE: Role.WAIT,
}
_COPIES: Final[Mapping[int, Role]] = {
    wire.COPY_DEVICE_TO_HOST: Role.TO_HOST,
    wire.COPY_HOST_TO_DEVICE: Role.TO_DEVICE,
}


def limit_rhythms(bpf: BpfObject, *, are_wanted: bool) -> None:
    """Have rhythms take no memory if no steps are looked for; before ``load``."""
    if not are_wanted:
        bpf.set_max_entries("rhythms", 1)
        bpf.set_max_entries("rhythm_calls", 1)


class RhythmMaps:
    """
    The kernel side's rhythms, by index; mapped, as both sides write into them.

    A thread takes the first one that is free, and its calls are kept if that has an area.
    """

    def __init__(self, bpf: BpfObject) -> None:
        rhythms, calls = bpf.map("rhythms"), bpf.map("rhythm_calls")
        self._rhythms, self._calls = _mapped(rhythms), _mapped(calls)
        self._indices = range(rhythms.max_entries)
        self._areas = set(range(1, calls.max_entries // wire.RHYTHM_CALLS + 1))
        self.share_areas(())

    def close(self) -> None:
        """Unmap them."""
        self._rhythms.close()
        self._calls.close()

    def taken(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield those that threads have, as (index, ``struct rhythm``)."""
        for index in self._indices:
            # Who takes one says at last which process it is of.
            if self._get(index, "tid") and self._get(index, "pid"):
                yield index, self.rhythm(index)

    def rhythm(self, index: int) -> dict[str, Any]:
        """Return ``struct rhythm``, as it is now."""
        at = index * wire.RHYTHM.size
        return wire.RHYTHM.named(self._rhythms[at : at + wire.RHYTHM.size])

    def calls(self, index: int) -> Calls:
        """Return the calls that are kept."""
        area, kept = self._get(index, "area"), self._get(index, "kept")
        size = wire.RHYTHM_CALL.size
        at = (area - 1) * wire.RHYTHM_CALLS * size
        words = array("Q", self._calls[at : at + kept * size] if area else b"")
        roles: dict[int, Role] = {}
        symbols: list[int] = []
        for what in words[1::2]:
            symbol = what >> 32 & 0xFFFF
            symbols.append(symbol)
            if symbol not in roles:
                roles[symbol] = _role(what >> 48 & 0xFF, what >> 56)
        gaps_ns = [what & 0xFFFFFFFF for what in words[1::2]]
        return Calls(symbols, words[::2], gaps_ns, roles)

    def follow(self, index: int, rhythm: Rhythm) -> None:
        """Have the rounds of a rhythm reported."""
        at = index * wire.RHYTHM.size
        self.stop(index)
        patterns = (
            pattern
            for ones in (rhythm.starts, rhythm.ends)
            for pattern in (*ones, *[0] * (wire.RHYTHM_PATTERNS - len(ones)))
        )
        _PATTERNS.pack_into(self._rhythms, at + _STARTS, *patterns)
        self._set(index, "start_calls", rhythm.start_calls)
        self._set(index, "folds", int(rhythm.folds))
        # The first one last: it says that all others are there.
        for mask, calls in zip(_MASKS[::-1], (rhythm.end_calls, rhythm.start_calls), strict=True):
            _LONG.pack_into(self._rhythms, at + mask, (1 << _SYMBOL_BITS * calls) - 1)

    def stop(self, index: int) -> None:
        """Have no rounds reported."""
        _LONG.pack_into(self._rhythms, index * wire.RHYTHM.size + _MASKS[0], 0)

    def free(self, index: int) -> None:
        """Let another thread have a rhythm whose thread has ended, with its area."""
        area, at = self._get(index, "area"), index * wire.RHYTHM.size
        cleared = wire.RHYTHM.build(area=area, tid=self._get(index, "tid"))
        self._rhythms[at : at + wire.RHYTHM.size] = cleared
        self._set(index, "tid", 0)

    def take_area(self, index: int) -> None:
        """Keep no calls any more."""
        self._set(index, "area", 0)

    def share_areas(self, wanting: tuple[int, ...] | list[int]) -> None:
        """Give areas to those that want one, and others to who comes next."""
        areas = {index: self._get(index, "area") for index in self._indices}
        free = sorted(self._areas - set(areas.values()), reverse=True)
        spare = [index for index in self._indices if not self._get(index, "tid")]
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

    def _give(self, index: int, area: int) -> None:
        self._set(index, "kept", 0)
        self._set(index, "area", area)

    def _get(self, index: int, name: str) -> int:
        number: int
        (number,) = _NUMBER.unpack_from(self._rhythms, index * wire.RHYTHM.size + _AT[name])
        return number

    def _set(self, index: int, name: str, number: int) -> None:
        _NUMBER.pack_into(self._rhythms, index * wire.RHYTHM.size + _AT[name], number)


def _mapped(bpf_map: BpfMap) -> mmap.mmap:
    size_bytes = bpf_map.max_entries * bpf_map.value_bytes
    return mmap.mmap(bpf_map.fd, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)


def _role(api: int, copy_kind: int) -> Role:
    row = API_BY_NUMBER.get(api)
    if row is None or row.stream_work == wire.WORK_AWAITED:
        return Role.OTHER
    if row.family == wire.FAMILY_COPY:
        return _COPIES.get(copy_kind, Role.OTHER)
    return _ROLES.get(row.family, Role.OTHER)
