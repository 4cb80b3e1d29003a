"""
Blocks: what a framework's allocator holds of each device, over time and by line.

The allocator's own totals are exact. Lines are known for the blocks that were followed; the rest
is reported without a place.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.activities import BlocksActivity, OutOfMemoryActivity
from otel_gpu.enrich.identity.identities import (
    CallStack,
    DeviceIdentity,
    ProcessKey,
    Program,
    key_of,
)
from otel_gpu.limits.recent import Recent
from otel_gpu.state.memory.code_locations import find_allocating_place
from otel_gpu.state.memory.growth import Growths, Trend, full_in_s
from otel_gpu.state.memory.snapshot import BEFORE_ATTACH, NOT_SAMPLED, LineHolding
from otel_gpu.state.window import Window
from otel_gpu.wire.blocks import Holder as Held
from otel_gpu.wire.blocks import MemoryTotals
from otel_gpu.wire.frames import Frame, FrameType, PythonStatus, UnwindMethod

MAX_READINGS: Final = 600
"""Readings kept of one device. Beyond that, pairs are reduced to the larger one."""
MAX_DEVICES: Final = 1_024
"""Devices of programs, the latest ones."""

MAX_STACKS: Final = 65_536
"""Stacks of all processes; further ones have no known place."""

_BEFORE_STACK: Final = CallStack(
    0,
    (Frame(FrameType.UNKNOWN, BEFORE_ATTACH.function),),
    complete=True,
    native=UnwindMethod.NONE,
    python=PythonStatus.NONE,
    place=None,
)


class By(StrEnum):
    """The measure of stacks: what they hold now, held at the peak, or allocated."""

    IN_USE = "in-use"
    ALLOCATED = "allocated"
    PEAK = "peak"


class MemoryStack(NamedTuple):
    """What blocks of one stack hold of a device; a ``stack`` of None: not known."""

    process: Program | None
    device: int
    stack: CallStack | None
    size_bytes: int
    blocks: int


class UsageReading(NamedTuple):
    """Memory in use and reserved at one time."""

    unix_ns: int
    live_bytes: int
    reserved_bytes: int


class _Entry(NamedTuple):
    held: Held
    stack: CallStack | None
    place: Frame | None


_Entries = Mapping[int, _Entry]


class DeviceBlocks:
    """
    What one allocator holds of one device.

    Attributes:
        process: Its process.
        number: The device, as the process numbers it.
        device: The device; None: not observed.
        totals: The allocator's latest totals; None: none yet.
        readings: Memory in use and reserved over time.
        peak: The reading with the most in use.
        capacity_bytes: The size of the device's memory; 0: not known.
        outside_bytes: What others held of it when that was last known.
    """

    def __init__(self, process: Program, number: int) -> None:
        self.process, self.number = process, number
        self.device: DeviceIdentity | None = None
        self.totals: MemoryTotals | None = None
        self.readings: list[UsageReading] = []
        self.peak: UsageReading | None = None
        self.capacity_bytes = self.outside_bytes = 0
        self._entries: dict[int, _Entry] = {}
        self._at_peak: _Entries = {}
        self._peak_before = 0
        # In the window, by the id of the stack.
        self._allocated: dict[int, tuple[_Entry, int, int]] = {}
        self._handed_out_at_begin = 0
        self._growths = Growths()
        # The reading that can still continue: one reading can be several activities.
        self._unfinished: int | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, activity: BlocksActivity, most: int) -> None:
        """Add a reading or a part of one, with at most ``most`` new stacks."""
        if self._unfinished not in (None, activity.unix_ns):
            self.finish_reading()
        self._unfinished = activity.unix_ns
        self.device = activity.device or self.device
        for key, held, stack in activity.holders:
            known = self._entries.get(key)
            if known is not None and stack in (None, known.stack):
                entry = known._replace(held=held)
            elif known is not None or most > 0:
                most -= known is None
                entry = _Entry(held, stack, find_allocating_place(stack.frames) if stack else None)
            else:
                continue
            self._count_allocated(entry, known)
            self._entries[key] = entry
            if key >> wire.STACK_OF_ONE_BIT and not held.live_blocks:
                # It was of one block: the key does not come again.
                del self._entries[key]
        if activity.totals is not None:
            self.totals = activity.totals
            reading = UsageReading(
                activity.unix_ns, activity.totals.allocated_bytes, activity.totals.reserved_bytes
            )
            if self.readings and self.readings[-1].unix_ns == activity.unix_ns:
                self.readings.pop()
            self.readings.append(reading)
            if len(self.readings) > MAX_READINGS:
                self.readings = list(halve(self.readings))

    def _count_allocated(self, entry: _Entry, known: _Entry | None) -> None:
        if entry.stack is None:
            return
        size_bytes, blocks = entry.held.allocated_bytes, entry.held.allocated_blocks
        # Where blocks are followed in windows, each window begins with nothing.
        if known is not None and known.held.allocated_bytes <= size_bytes:
            size_bytes -= known.held.allocated_bytes
            blocks -= known.held.allocated_blocks
        before = self._allocated.get(entry.stack.id)
        if before is not None:
            _, older_bytes, older_blocks = before
            size_bytes, blocks = size_bytes + older_bytes, blocks + older_blocks
        elif len(self._allocated) >= MAX_STACKS:
            return
        self._allocated[entry.stack.id] = entry, size_bytes, blocks

    def finish_reading(self) -> None:
        """End the last reading."""
        if self._unfinished is None:
            return
        self._unfinished = None
        if self.totals is None or not self.readings:
            return
        last = self.readings[-1]
        if self.peak is None or last.live_bytes > self.peak.live_bytes:
            self.peak, self._at_peak = last, dict(self._entries)
            self._peak_before = self.before_bytes
        held = ((holder.place, holder.size_bytes) for holder in self.holders(By.IN_USE, named=True))
        self._growths.add(last.unix_ns, self.totals.frees, held)

    def begin(self) -> None:
        """Begin the window."""
        self._allocated = {}
        self._handed_out_at_begin = self.totals.handed_out_bytes if self.totals else 0
        self.readings, self.peak, self._at_peak = self.readings[-1:], None, {}

    @property
    def before_bytes(self) -> int:
        """What was in use before the first report, and still is."""
        totals = self.totals
        return max(0, totals.before_bytes - totals.before_freed_bytes) if totals else 0

    @property
    def unknown_bytes(self) -> int:
        """What is in use without a known place of allocation."""
        if self.totals is None:
            return 0
        known = sum(size_bytes for _, size_bytes, _ in self._known(By.IN_USE))
        return max(0, self.totals.allocated_bytes - self.before_bytes - known)

    @property
    def coverage(self) -> float | None:
        """The share of reports whose total matched the blocks; None: no reports."""
        totals = self.totals
        reports = totals.allocations + totals.frees if totals else 0
        return 1 - min(totals.unequal, reports) / reports if totals and reports else None

    @property
    def free_bytes(self) -> int | None:
        """What is left of the device for blocks; None: its size is not known."""
        if not self.capacity_bytes or self.totals is None:
            return None
        return self.capacity_bytes - self.outside_bytes - self.totals.allocated_bytes

    @property
    def trends(self) -> tuple[Trend, ...]:
        """The lines that hold more and more, the fastest first."""
        return self._growths.trends()

    @property
    def full_in_s(self) -> float | None:
        """When the device is full at these rates, in seconds; None: not known, or too far away."""
        return full_in_s(self.trends, self.free_bytes)

    def stacks(self, by: By) -> Iterator[MemoryStack]:
        """Yield what each stack holds, then the rest without a stack."""
        known_bytes = 0
        # Where no key shows that two are the same, the merged stack does.
        sums: dict[int, MemoryStack] = {}
        for entry, size_bytes, blocks in self._known(by):
            known_bytes += size_bytes
            assert entry.stack is not None  # noqa: S101 -- the known ones have one
            found = sums.get(entry.stack.id)
            if found is not None:
                size_bytes, blocks = size_bytes + found.size_bytes, blocks + found.blocks  # noqa: PLW2901
            sums[entry.stack.id] = MemoryStack(
                process=self.process,
                device=self.number,
                stack=entry.stack,
                size_bytes=size_bytes,
                blocks=blocks,
            )
        yield from sums.values()
        whole_bytes, before_bytes = self._whole(by)
        if before_bytes:
            yield MemoryStack(
                process=self.process,
                device=self.number,
                stack=_BEFORE_STACK,
                size_bytes=before_bytes,
                blocks=0,
            )
        if (left_bytes := whole_bytes - before_bytes - known_bytes) > 0:
            yield MemoryStack(
                process=self.process,
                device=self.number,
                stack=None,
                size_bytes=left_bytes,
                blocks=0,
            )

    def holders(self, by: By, *, named: bool = False) -> tuple[LineHolding, ...]:
        """Return what each line holds, the most first; ``named``: only known lines."""
        sums: dict[Frame, list[int]] = {}
        for entry, size_bytes, blocks in self._known(by):
            assert entry.place is not None  # noqa: S101 -- so are the known ones
            held = sums.setdefault(entry.place, [0, 0])
            held[0] += size_bytes
            held[1] += blocks
        found = [LineHolding(place, *held) for place, held in sums.items()]
        if not named:
            whole_bytes, before_bytes = self._whole(by)
            left_bytes = whole_bytes - before_bytes - sum(one.size_bytes for one in found)
            for place, size_bytes in ((BEFORE_ATTACH, before_bytes), (NOT_SAMPLED, left_bytes)):
                found += [LineHolding(place, size_bytes, 0)] if size_bytes > 0 else []
        return tuple(sorted(found, key=lambda one: (-one.size_bytes, one.place)))

    def _known(self, by: By) -> Iterator[tuple[_Entry, int, int]]:
        if by is By.ALLOCATED:
            yield from (sums for sums in self._allocated.values() if sums[1] > 0)
            return
        entries = self._at_peak if by is By.PEAK else self._entries
        for entry in entries.values():
            if entry.stack is not None and entry.held.live_bytes > 0:
                yield entry, entry.held.live_bytes, max(0, entry.held.live_blocks)

    def _whole(self, by: By) -> tuple[int, int]:
        # The bytes in all, and those older than the first report.
        if self.totals is None:
            return 0, 0
        if by is By.PEAK:
            return (self.peak.live_bytes, self._peak_before) if self.peak else (0, 0)
        if by is By.ALLOCATED:
            return self.totals.handed_out_bytes - self._handed_out_at_begin, 0
        return self.totals.allocated_bytes, self.before_bytes


def halve(readings: list[UsageReading]) -> Iterator[UsageReading]:
    """
    Yield half of the readings, of each pair the one with more in use, and the last one unchanged.
    """
    *older, last = readings
    for number in range(0, len(older), 2):
        yield max(older[number : number + 2], key=lambda one: one.live_bytes)
    yield last


class AllocatorState:
    """
    What allocators hold of devices, in a window; bounded.

    Args:
        window: The window.
    """

    def __init__(self, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self._window = window
        self._has_begun = window.start_unix_ns is None
        self._read_unix_ns: int | None = None
        self._stacks = 0
        self._programs: Counter[ProcessKey] = Counter()
        self._devices: Recent[tuple[ProcessKey, int], DeviceBlocks] = Recent(
            MAX_DEVICES, evict=self._evict
        )

    def observe(self, activity: object) -> None:
        """Add an activity; kinds without blocks are ignored."""
        match activity:
            case BlocksActivity():
                self._observe_blocks(activity)
            case OutOfMemoryActivity():
                self._observe_failure(activity)

    def devices(self) -> list[DeviceBlocks]:
        """Return what is held of each device, by program and number."""
        for one in self._devices.values():
            one.finish_reading()
        return [one for _, one in sorted(self._devices.items(), key=lambda item: item[0])]

    def find(self, process: Program, number: int) -> DeviceBlocks | None:
        """Return what a program holds of a device; None: not known."""
        return self._devices.get((key_of(process), number))

    def knows(self, process: Program) -> bool:
        """Return whether a program is known to have an allocator."""
        return key_of(process) in self._programs

    def memory_stacks(self, by: By | str) -> Iterator[MemoryStack]:
        """Yield what the stacks of all processes hold."""
        for one in self.devices():
            yield from one.stacks(By(by))

    def _observe_blocks(self, activity: BlocksActivity) -> None:
        unix_ns, end = activity.unix_ns, self._window.end_unix_ns
        if not self._has_begun and unix_ns > (self._window.start_unix_ns or 0):
            self._has_begun = True
            for one in self.devices():
                one.begin()
        # The first reading at the end of the window is its last one.
        last = self._read_unix_ns
        if last is not None and end is not None and last >= end and unix_ns > last:
            return
        self._read_unix_ns = max(unix_ns, last or 0)
        one = self._find(activity.process, activity.number)
        before = len(one)
        one.take(activity, MAX_STACKS - self._stacks)
        self._stacks += len(one) - before

    def _observe_failure(self, activity: OutOfMemoryActivity) -> None:
        event = activity.event
        # A failed call shows nothing about an allocator.
        if not event.device_total_bytes or event.source != wire.OUT_OF_MEMORY_FRAMEWORK:
            return
        one = self._find(activity.process, event.device)
        one.capacity_bytes = event.device_total_bytes
        held = event.reserved_bytes + event.device_free_bytes
        one.outside_bytes = max(0, event.device_total_bytes - held)

    def _find(self, process: Program, number: int) -> DeviceBlocks:
        name = key_of(process), number
        one = self._devices.use(name)
        if one is None:
            self._programs[name[0]] += 1
            one = self._devices[name] = DeviceBlocks(process, number)
        return one

    def _evict(self, name: tuple[ProcessKey, int], oldest: DeviceBlocks) -> None:
        self._stacks -= len(oldest)
        self._programs[name[0]] -= 1
        self._programs += Counter()
