"""
A timeline of bounded size.

A limited number of items is kept for devices, and the same for threads. Beyond it, items shorter
than a quantum are merged with neighbours in their lane, and the quantum doubles until the rest
fits: long items stay as they are, short ones keep their time, count and total length.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_gpu.report.timeline.device_tracks import OTHERS
from otel_gpu.report.timeline.tracks import (
    Arrow,
    ArrowEnd,
    Instant,
    Level,
    Slice,
    SliceCategory,
    Track,
)

MAX_ITEMS: Final = 60_000
"""Of devices, and again of threads."""
MAX_ROWS: Final = 64
"""Of devices, and again of threads; the busiest are kept."""
MAX_LANES: Final = 120
MAX_DEPTH: Final = 24
MAX_MARKS: Final = 200

WAITS: Final = "waits"
"""The role of a row with a thread's waits, inside and between its calls."""

_FIRST_QUANTUM_NS = 1 << 10
_LAST_QUANTUM_NS = 1 << 62
# The share of items that remains after merging, so that not every new item triggers it.
_KEPT = 0.75


class Item(NamedTuple):
    """
    Something that took time, or ``times`` things that were too short to stay separate.

    For several, ``name`` and ``category`` are those of the longest, and ``busy_ns`` is their total
    length, between the start of the first and the end of the last.
    """

    start_unix_ns: int
    end_unix_ns: int
    name: str
    category: str
    times: int
    busy_ns: int
    longest_ns: int


class TimelineRow(NamedTuple):
    """A thread or a stream; nested slices are in the following lanes."""

    track: Track
    lanes: tuple[tuple[Item, ...], ...]


class TrackGroup(NamedTuple):
    """The rows of a device or of a process."""

    name: str
    is_device: bool
    rows: tuple[TimelineRow, ...]


class Mark(NamedTuple):
    """A point in time with a text."""

    unix_ns: int
    name: str


class Timeline(NamedTuple):
    """
    A timeline.

    Attributes:
        groups: Devices, then processes; in each, the busiest first.
        device_quantum_ns: Shorter items of devices can be several things; 0: none is.
        thread_quantum_ns: The same for threads.
        left_out: Things in rows or lanes beyond the limits.
    """

    groups: tuple[TrackGroup, ...] = ()
    marks: tuple[Mark, ...] = ()
    device_quantum_ns: int = 0
    thread_quantum_ns: int = 0
    left_out: int = 0

    def items(self) -> Iterator[Item]:
        """Yield all items."""
        for group in self.groups:
            for row in group.rows:
                for lane in row.lanes:
                    yield from lane


class TimelineDrawing:
    """A ``tracks.Drawing`` of bounded size; ``max_items`` of devices, and as many of threads."""

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self._devices, self._threads = _Pool(max_items), _Pool(max_items)
        self._marks: list[Mark] = []

    def ended(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that ended before."""
        track = drawn.track
        if drawn.category == SliceCategory.WAIT and not track.role:
            track = track._replace(role=WAITS)
        self._pool(track).add(track, drawn, is_begin=False)
        return ArrowEnd(track.process, track.thread)

    def began(self, drawn: Slice) -> ArrowEnd | None:
        """Draw a slice, after those of its track that began before."""
        track = drawn.track
        self._pool(track).add(track, drawn, is_begin=True)
        return ArrowEnd(track.process, track.thread)

    def instant(self, drawn: Instant) -> None:
        """Mark an incident; other instants are not drawn."""
        if drawn.category == SliceCategory.INCIDENT and len(self._marks) < MAX_MARKS:
            self._marks.append(Mark(drawn.unix_ns, drawn.name))

    def level(self, drawn: Level) -> None:
        """Draw nothing: counters have charts of their own."""

    def arrow(self, drawn: Arrow) -> None:
        """Draw nothing."""

    def finish(self) -> Timeline:
        """Return the timeline; call it once, at the end."""
        devices, threads = self._devices, self._threads
        return Timeline(
            groups=(*devices.groups(), *threads.groups()),
            marks=tuple(sorted(self._marks)),
            device_quantum_ns=devices.quantum_ns,
            thread_quantum_ns=threads.quantum_ns,
            left_out=devices.left_out + threads.left_out,
        )

    def _pool(self, track: Track) -> "_Pool":
        return self._devices if track.is_device else self._threads


class _Pool:
    # Rows that share a limit of items.

    def __init__(self, max_items: int) -> None:
        self.quantum_ns = 0
        self.left_out = 0
        self._items = 0
        self._max_items = max_items
        self._rows: dict[Track, _Row] = {}

    def add(self, track: Track, drawn: Slice, *, is_begin: bool) -> None:
        row = self._rows.get(track)
        if row is None:
            if len(self._rows) >= 2 * MAX_ROWS:
                self._keep(MAX_ROWS)
            row = self._rows[track] = _Row(is_begin=is_begin)
        self._items += row.add(drawn, self.quantum_ns)
        if self._items > self._max_items:
            self._coarsen()

    def groups(self) -> Iterator[TrackGroup]:
        self._keep(MAX_ROWS)
        rows = {track: row.finish() for track, row in self._rows.items()}
        lanes = 0
        grouped: dict[str | int, dict[Track, tuple[tuple[Item, ...], ...]]] = {}
        # They are in order of busy time.
        for track, drawn in rows.items():
            lanes += len(drawn)
            if lanes > MAX_LANES:
                self.left_out += self._rows[track].taken
                continue
            self.left_out += self._rows[track].too_deep
            key = track.process_name if track.is_device else track.process
            grouped.setdefault(key, {})[track] = drawn
        for found in grouped.values():
            ordered = sorted(found, key=lambda track: (track.thread, track.role))
            (process, name, *_), is_device = next(iter(found)), ordered[0].is_device
            known = is_device or process >= OTHERS or f"({process})" in name
            rows_of = tuple(TimelineRow(track, found[track]) for track in ordered)
            yield TrackGroup(name if known else f"{name} ({process})", is_device, rows_of)

    def _keep(self, most: int) -> None:
        # Keeps the busiest rows, in that order.
        ranked = sorted(self._rows.items(), key=lambda one: -one[1].busy_ns)
        self.left_out += sum(row.taken for _, row in ranked[most:])
        self._items -= sum(row.items for _, row in ranked[most:])
        self._rows = dict(ranked[:most])

    def _coarsen(self) -> None:
        while self._items > _KEPT * self._max_items and self.quantum_ns <= _LAST_QUANTUM_NS:
            self.quantum_ns = max(2 * self.quantum_ns, _FIRST_QUANTUM_NS)
            for row in self._rows.values():
                row.coarsen(self.quantum_ns)
            self._items = sum(row.items for row in self._rows.values())


class _Row:
    # The kept items of a track.
    # In order of starts, nesting is known at once; else only at the end, for long items.

    __slots__ = ("_ends_ns", "_is_begin", "_lanes", "busy_ns", "taken", "too_deep")

    def __init__(self, *, is_begin: bool) -> None:
        self.busy_ns = 0
        self.taken = 0
        self.too_deep = 0
        self._is_begin = is_begin
        self._ends_ns: list[int] = []
        self._lanes: list[_Lane] = []

    @property
    def items(self) -> int:
        return sum(map(len, self._lanes))

    def add(self, drawn: Slice, quantum_ns: int) -> int:
        # The growth in items.
        start_ns = drawn.start_unix_ns
        end_ns = max(start_ns, drawn.end_unix_ns)
        depth = _depth(self._ends_ns, start_ns, end_ns) if self._is_begin else 0
        self.taken += 1
        if depth >= MAX_DEPTH:
            self.too_deep += 1
            return 0
        if not depth:
            self.busy_ns += end_ns - start_ns
        if depth >= len(self._lanes):
            self._lanes.append(_Lane())
        lane = self._lanes[depth]
        before = len(lane)
        length_ns = end_ns - start_ns
        item = Item(
            start_unix_ns=start_ns,
            end_unix_ns=end_ns,
            name=drawn.name,
            category=drawn.category,
            times=1,
            busy_ns=length_ns,
            longest_ns=length_ns,
        )
        lane.add(item, quantum_ns)
        return len(lane) - before

    def coarsen(self, quantum_ns: int) -> None:
        self._lanes = [lane.coarser(quantum_ns) for lane in self._lanes]

    def finish(self) -> tuple[tuple[Item, ...], ...]:
        if self._is_begin:
            return tuple(tuple(sorted(lane)) for lane in self._lanes)
        lanes: list[list[Item]] = [[]]
        ends_ns: list[int] = []
        for item in sorted(self._lanes[0], key=lambda one: (one[0], -one[1])):
            depth = 0 if item.times > 1 else _depth(ends_ns, item[0], item[1])
            if depth >= MAX_DEPTH:
                self.too_deep += 1
            else:
                lanes += [[]] * (depth >= len(lanes))
                lanes[depth].append(item)
        return tuple(map(tuple, lanes))


class _Lane:
    # Items that are not nested: long ones, and short ones by the quantum of their start.

    __slots__ = ("_long", "_short")

    def __init__(self) -> None:
        self._long: list[Item] = []
        self._short: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._long) + len(self._short)

    def __iter__(self) -> Iterator[Item]:
        yield from self._long
        yield from self._short.values()

    def add(self, item: Item, quantum_ns: int) -> None:
        if item.end_unix_ns - item.start_unix_ns >= quantum_ns:
            self._long.append(item)
            return
        bucket = item.start_unix_ns // quantum_ns
        known = self._short.get(bucket)
        self._short[bucket] = item if known is None else _together(known, item)

    def coarser(self, quantum_ns: int) -> "_Lane":
        lane = _Lane()
        for item in self:
            lane.add(item, quantum_ns)
        return lane


def _together(one: Item, other: Item) -> Item:
    longer = max(one, other, key=lambda item: item.longest_ns)
    return Item(
        start_unix_ns=min(one.start_unix_ns, other.start_unix_ns),
        end_unix_ns=max(one.end_unix_ns, other.end_unix_ns),
        name=longer.name,
        category=longer.category,
        times=one.times + other.times,
        busy_ns=one.busy_ns + other.busy_ns,
        longest_ns=longer.longest_ns,
    )


def _depth(ends_ns: list[int], start_ns: int, end_ns: int) -> int:
    # The nesting depth of a slice among those that begin before it; updates their ends.
    while ends_ns and ends_ns[-1] <= start_ns:
        ends_ns.pop()
    ends_ns.append(end_ns)
    return len(ends_ns) - 1
