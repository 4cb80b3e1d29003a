"""Memory snapshots by stack: held in the end or at the peak, or allocated."""

from collections import Counter
from collections.abc import Iterable, Iterator

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.state.memory.blocks import By, MemoryStack
from otel_gpu.state.memory.code_locations import find_allocating_place
from otel_gpu.state.memory.history import (
    OLDER,
    allocated_by_stack,
    live_before,
    sizes_by_stack,
    walk_back,
)
from otel_gpu.state.memory.snapshot import BEFORE, NOWHERE
from otel_gpu.wire.frames import Frame, FrameType, MergedStack, PythonStatus, UnwindMethod
from otel_gpu.wire.memory_snapshot import NO_STACK, MemorySnapshot


def snapshot_stacks(snapshot: MemorySnapshot, by: str) -> Iterator[MemoryStack]:
    """
    Yield what each stack of a snapshot holds, or allocated during the recording.

    Args:
        snapshot: The snapshot.
        by: ``By.IN_USE`` in the end, by block sizes; ``By.PEAK``: at the peak, by requested sizes;
          ``By.ALLOCATED``: also what is free again.
    """
    totals: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    for number, size_bytes in _sizes(snapshot, by):
        totals[number] += size_bytes
        counts[number] += 1
    for number, size_bytes in totals.items():
        stack = stack_numbered(snapshot, number)
        yield MemoryStack(
            process=None,
            device=snapshot.device,
            stack=stack,
            size_bytes=size_bytes,
            blocks=counts[number],
        )


def unknown_stack(place: Frame) -> CallStack:
    """Return the stack that stands for unknown code in a graph; its id is 0."""
    frames = (Frame(FrameType.UNKNOWN, place.function),)
    return CallStack(
        0, frames, complete=True, native=UnwindMethod.NONE, python=PythonStatus.NONE, place=None
    )


def _sizes(snapshot: MemorySnapshot, by: str) -> Iterable[tuple[int, int]]:
    if by == By.ALLOCATED:
        return allocated_by_stack(snapshot.operations)
    at, requested = len(snapshot.operations), by == By.PEAK
    if requested:
        at = walk_back(snapshot).peak_at
    return sizes_by_stack(live_before(snapshot, at, requested=requested))


def stack_numbered(snapshot: MemorySnapshot, number: int) -> CallStack:
    """Return a stack of a snapshot; an unknown one has the id 0, and a frame with the reason."""
    if number == OLDER:
        return unknown_stack(BEFORE)
    known = number != NO_STACK and number < len(snapshot.stacks)
    frames = snapshot.stacks[number] if known else ()
    if not frames:
        return unknown_stack(NOWHERE)
    kinds = {frame.kind for frame in frames}
    native = UnwindMethod.EH_FRAME if FrameType.NATIVE in kinds else UnwindMethod.NONE
    python = PythonStatus.COMPLETE if FrameType.PYTHON in kinds else PythonStatus.NONE
    merged = MergedStack(frames, complete=True, native=native, python=python)
    place = find_allocating_place(frames)
    return CallStack(merged.identity, *merged, None if place == NOWHERE else place)
