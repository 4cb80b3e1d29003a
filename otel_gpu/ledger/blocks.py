"""What holds the memory of devices, by the stack that allocated it, as a framework's allocator says."""

from collections.abc import Iterator
from typing import Final

from otel_gpu.decode.blocks import Holder, MemoryTotals
from otel_gpu.enrich.activities import BlocksActivity, CallStack, ImageKey, ProcessImage, key_of
from otel_gpu.ledger.memory import BEFORE_ATTACH
from otel_gpu.ledger.memory_stacks import ALLOCATED, IN_USE, PEAK, MemoryStack, unknown_stack
from otel_gpu.ledger.window import Window

MAX_HOLDERS: Final = 65_536
"""Of all processes together; what is beyond them is of no known place."""

_Figures = tuple[int, int]


class _Device:
    """One device, as one process sees it."""

    def __init__(self, process: ProcessImage, number: int) -> None:
        self.process, self.number = process, number
        self.totals: MemoryTotals | None = None
        self.holders: dict[int, Holder] = {}
        self.stacks: dict[int, CallStack] = {}
        self.peak: tuple[MemoryTotals, dict[int, Holder]] | None = None
        # What had been handed out when the window began.
        self.began: tuple[int, dict[int, Holder]] = (0, {})

    def stacks_by(self, by: str) -> Iterator[MemoryStack]:
        """Yield what each stack holds, or allocated, and what is of no known one."""
        totals, holders = self.totals, self.holders
        if by == PEAK and self.peak is not None:
            totals, holders = self.peak
        before, whole, known = 0, 0, 0
        if totals is not None:
            before = max(0, totals.before_bytes - totals.before_freed_bytes)
            whole = totals.allocated_bytes - before
            if by == ALLOCATED:
                before, whole = 0, totals.handed_out_bytes - self.began[0]
        for key, holder in holders.items():
            size_bytes, blocks = self._figures(key, holder, by)
            if stack := self.stacks.get(key):
                known += size_bytes
                yield MemoryStack(self.process, self.number, stack, size_bytes, blocks)
        if before:
            stack = unknown_stack(BEFORE_ATTACH)
            yield MemoryStack(self.process, self.number, stack, before, 0)
        if whole > known:
            yield MemoryStack(self.process, self.number, None, whole - known, 0)

    def _figures(self, key: int, holder: Holder, by: str) -> _Figures:
        if by != ALLOCATED:
            return max(0, holder.live_bytes), max(0, holder.live_blocks)
        began = self.began[1].get(key)
        if began is None:
            return holder.allocated_bytes, holder.allocated_blocks
        return (
            max(0, holder.allocated_bytes - began.allocated_bytes),
            max(0, holder.allocated_blocks - began.allocated_blocks),
        )


class Blocks:
    """Keeps who holds what in a window."""

    def __init__(self, window: Window = Window()) -> None:  # noqa: B008 -- immutable
        self._window = window
        self._devices: dict[tuple[ImageKey, int], _Device] = {}
        self._count = 0

    def observe(self, activity: BlocksActivity) -> None:
        """Take one reading."""
        start, end = self._window.start_unix_ns or 0, self._window.end_unix_ns
        if end is not None and activity.unix_ns > end:
            return
        key = (key_of(activity.process), activity.number)
        device = self._devices.setdefault(key, _Device(activity.process, activity.number))
        device.process = activity.process
        for stack_key, holder, stack in activity.holders:
            if stack_key not in device.holders:
                if self._count >= MAX_HOLDERS:
                    continue
                self._count += 1
            device.holders[stack_key] = holder
            if stack is not None:
                device.stacks[stack_key] = stack
        device.totals = activity.totals or device.totals
        totals = device.totals
        if activity.unix_ns < start:
            device.began = (totals.handed_out_bytes if totals else 0, dict(device.holders))
        if totals and (not device.peak or totals.allocated_bytes >= device.peak[0].allocated_bytes):
            device.peak = (totals, dict(device.holders))

    def memory_stacks(self, by: str = IN_USE) -> Iterator[MemoryStack]:
        """Yield what each stack holds ``in-use``, at its ``peak``, or ``allocated``."""
        for _, device in sorted(self._devices.items()):
            yield from device.stacks_by(by)
