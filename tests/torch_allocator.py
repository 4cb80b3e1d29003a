"""
A model of PyTorch's caching allocator: it writes snapshots, and knows the truth about them.

    python -m tests.torch_allocator           # write anew the snapshots that examples/ has
    python -m tests.torch_allocator FOLDER    # write the snapshot of each scenario

Segments of 2 MiB for small requests, of 20 MiB for middling ones and of whole 2 MiB for large ones;
the smallest free block that is large enough, split where enough is left; free neighbours are
merged. What does not fit has the cached segments given back, is tried again, and fails.
"""

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.unit.importers.snapshots import (
    BACKWARD,
    MIB,
    block,
    event,
    freed,
    oom,
    segment,
    snapshot,
    stack,
    write,
)

GIB: Final = 1 << 30
TRAIN: Final = "/app/train.py"
WEIGHTS, ACTIVATIONS, LOSSES, CACHE, WORKSPACE, GRADIENTS = 12, 40, 55, 61, 74, 80
_STACKS = {line: stack(TRAIN, line) for line in (12, 40, 55, 61, 74)} | {GRADIENTS: BACKWARD}
_BASE = 0x7F00_0000_0000


class OutOfMemoryError(Exception):
    """The device had no more."""


class Allocator:
    """
    One device's allocator, with a recording that began when it was made.

    Attributes:
        live: Bytes asked for and not freed, by line.
        peak_bytes: The most that was in use, by what was asked for; ``at_peak`` by line.
    """

    def __init__(self, capacity_bytes: int, others_bytes: int = 0) -> None:
        self.capacity_bytes, self.others_bytes = capacity_bytes, others_bytes
        self.live: Counter[int] = Counter()
        self.at_peak: Counter[int] = Counter()
        self.peak_bytes = 0
        self.reserved_bytes = 0
        self._trace: list[dict[str, Any]] = []
        self._segments: dict[int, tuple[int, bool, list[list[Any]]]] = {}
        self._at_us = 0
        self._next = _BASE

    @property
    def free_bytes(self) -> int:
        """What the device has left."""
        return self.capacity_bytes - self.others_bytes - self.reserved_bytes

    def allocate(self, size: int, line: int) -> int:
        """Hand out a block; raises ``OutOfMemoryError`` where there is none."""
        rounded = max(512, -(-size // 512) * 512)
        is_small = rounded <= MIB
        found = self._best(rounded, is_small=is_small) or self._take(rounded, is_small=is_small)
        if found is None:
            self.empty_cache()
            found = self._take(rounded, is_small=is_small)
        if found is None:
            self._add(oom(rounded, self.free_bytes, self._tick(), _STACKS[line]))
            raise OutOfMemoryError
        blocks, number = found
        address, whole, *_ = blocks[number]
        if whole - rounded >= (512 if is_small else MIB + 1):
            blocks.insert(number + 1, [address + rounded, whole - rounded, 0, 0])
            blocks[number][1] = rounded
        blocks[number][2:] = [size, line]
        self._add(event("alloc", address, size, self._tick(), _STACKS[line]))
        self.live[line] += size
        # The last of several, as whoever walks back finds it.
        if self.live.total() >= self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live.total(), self.live.copy()
        return int(address)

    def free(self, address: int) -> None:
        """Take a block back, and merge it with free neighbours."""
        start = max(start for start in self._segments if start <= address)
        blocks = self._segments[start][2]
        number = next(n for n, one in enumerate(blocks) if one[0] == address)
        _, _, size, line = blocks[number]
        self.live[line] -= size
        for one in freed(address, size, self._tick()):
            self._add(one)
        blocks[number][2:] = [0, 0]
        for left in (number, number - 1):
            if 0 <= left < len(blocks) - 1 and not blocks[left][3] and not blocks[left + 1][3]:
                blocks[left][1] += blocks.pop(left + 1)[1]

    def empty_cache(self) -> None:
        """Give back each segment that is free as a whole."""
        for start, (size, _, blocks) in list(self._segments.items()):
            if not any(one[3] for one in blocks):
                del self._segments[start]
                self.reserved_bytes -= size
                self._add(event("segment_free", start, size, self._tick()))

    def snapshot(self, **more: object) -> dict[str, Any]:
        """Return what PyTorch would write now."""
        segments = [
            segment(
                start,
                [
                    block(address, size, frames=_STACKS[line], requested=asked)
                    if line
                    else block(address, size, "inactive", requested=0)
                    for address, size, asked, line in blocks
                ],
                kind="small" if is_small else "large",
            )
            for start, (_, is_small, blocks) in self._segments.items()
        ]
        return snapshot(segments, self._trace, **more)

    def holes(self) -> list[int]:
        """Return the sizes of what is free for large requests."""
        large = [blocks for _, is_small, blocks in self._segments.values() if not is_small]
        return [size for blocks in large for _, size, _, line in blocks if not line]

    def addresses(self) -> set[int]:
        """Return where the blocks in use are."""
        blocks = [one for _, _, blocks in self._segments.values() for one in blocks]
        return {address for address, _, _, line in blocks if line}

    def pause(self, milliseconds: int) -> None:
        """Let time pass."""
        self._at_us += milliseconds * 1_000

    def _best(self, size: int, *, is_small: bool) -> tuple[list[list[Any]], int] | None:
        fitting = [
            (one[1], one[0], blocks, number)
            for _, small, blocks in self._segments.values()
            if small == is_small
            for number, one in enumerate(blocks)
            if not one[3] and one[1] >= size
        ]
        return min(fitting)[2:] if fitting else None

    def _take(self, size: int, *, is_small: bool) -> tuple[list[list[Any]], int] | None:
        whole = (
            2 * MIB
            if is_small
            else 20 * MIB
            if size < 10 * MIB
            else -(-size // (2 * MIB)) * 2 * MIB
        )
        if whole > self.free_bytes:
            return None
        start, self._next = self._next, self._next + whole + GIB
        self.reserved_bytes += whole
        self._segments[start] = (whole, is_small, [[start, whole, 0, 0]])
        self._add(event("segment_alloc", start, whole, self._tick()))
        return self._segments[start][2], 0

    def _tick(self) -> int:
        self._at_us += 20
        return self._at_us

    def _add(self, made: dict[str, Any]) -> None:
        self._trace.append(made)


def fragmentation() -> Allocator:
    """Ever longer batches, each of which leaves a part in a cache: 256 MiB find no hole."""
    made = Allocator(16 * GIB, others_bytes=GIB // 2)
    for _ in range(24):
        made.allocate(256 * MIB, WEIGHTS)
    try:
        for step in range(400):
            made.pause(200)
            batch = [made.allocate((24 + 2 * step) * MIB, ACTIVATIONS) for _ in range(3)]
            for address in batch:
                made.free(address)
            for _ in batch:
                made.allocate((14 + step) * MIB, CACHE)
            made.free(made.allocate(256 * MIB, WORKSPACE))
    except OutOfMemoryError:
        pass
    return made


def leak() -> Allocator:
    """Each step keeps the graph of its loss, which somebody adds up."""
    made = Allocator(3 * GIB)
    made.allocate(512 * MIB, WEIGHTS)
    _steps(made, 200, kept=48 * MIB)
    return made


def exhaustion() -> Allocator:
    """A batch that is too large for the device."""
    made = Allocator(4 * GIB)
    made.allocate(2 * GIB, WEIGHTS)
    try:
        for _ in range(40):
            made.allocate(96 * MIB, ACTIVATIONS)
    except OutOfMemoryError:
        pass
    return made


def other_process() -> Allocator:
    """The same steps as before, while somebody else takes most of the device."""
    made = Allocator(8 * GIB)
    made.allocate(512 * MIB, WEIGHTS)
    _steps(made, 5)
    made.empty_cache()
    made.others_bytes = 7 * GIB + GIB // 10
    _steps(made, 1)
    return made


def empty_cache() -> Allocator:
    """Each step gives the cache back when it is done."""
    made = Allocator(8 * GIB)
    made.allocate(512 * MIB, WEIGHTS)
    for _ in range(30):
        _steps(made, 1)
        made.empty_cache()
    return made


def healthy() -> Allocator:
    """Steps like each other, on a device with room."""
    made = Allocator(16 * GIB)
    for _ in range(64):
        made.allocate(9 * MIB, WEIGHTS)
    _steps(made, 20)
    return made


def _steps(made: Allocator, count: int, kept: int = 0) -> None:
    try:
        for _ in range(count):
            made.pause(250)
            batch = [made.allocate(size * MIB, ACTIVATIONS) for size in (300, 200, 120, 80)]
            batch.append(made.allocate(4_000, LOSSES))
            if kept:
                made.allocate(kept, CACHE)
            batch.append(made.allocate(40 * MIB, GRADIENTS))
            for address in batch:
                made.free(address)
    except OutOfMemoryError:
        pass


SCENARIOS: Final[Mapping[str, Callable[[], Allocator]]] = {
    "fragmentation": fragmentation,
    "leak": leak,
    "exhaustion": exhaustion,
    "other-process": other_process,
    "empty-cache": empty_cache,
    "healthy": healthy,
}


EXAMPLES: Final = Path(__file__).resolve().parent.parent / "examples"
EXAMPLE_NAMES: Final = ("fragmentation", "leak")


if __name__ == "__main__":
    folder, names = (Path(sys.argv[1]), SCENARIOS) if sys.argv[1:] else (EXAMPLES, EXAMPLE_NAMES)
    for scenario in names:
        write(folder / f"{scenario}.pickle", SCENARIOS[scenario]().snapshot())
