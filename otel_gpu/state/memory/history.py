"""
The history of a device's memory, from its end backwards.

The end is known exactly; what existed before the recording is not. A walk from zero misses all of
that, and then ignores its frees. Going back, each allocation removes its block and each free
restores one, with address and size.
"""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from otel_gpu.state.memory.snapshot import BEFORE, LineHolding, rank
from otel_gpu.wire.frames import Frame
from otel_gpu.wire.memory_snapshot import NO_STACK, Action, BlockState, MemorySnapshot, Operations

MAX_READINGS: Final = 600
"""The most operations of one device at which memory is listed."""
OLDER: Final = -1
"""Stands for the stack of memory older than all operations: it has none."""

_ALLOCATE, _FREE = int(Action.ALLOCATE), int(Action.FREE)
_GROW = (int(Action.SEGMENT_ALLOCATE), int(Action.SEGMENT_MAP))
_SHRINK = (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP))
# Callers of these run a backward pass, or step.
_BACKWARD: Final = re.compile(r"torch::autograd::(?:python::Python)?Engine::")
_BACKWARD_FILES: Final = re.compile(
    r"(?:.*/)?torch/(?:autograd/__init__|autograd/graph|optim/\w+)\.py"
)
_REPEATED = 3


class Live(NamedTuple):
    """A block that is in use; ``since`` is the operation that allocated it, -1: before them all."""

    size_bytes: int
    stack: int = NO_STACK
    since: int = -1


class BlockWalk(NamedTuple):
    """
    The result of a walk back.

    Attributes:
        totals_bytes: Memory in use before each operation, and in the end.
        reserved_bytes: Memory reserved then.
        peak_bytes: The most in use.
        peak_at: The operation before which that was.
        peak_reserved_bytes: The most reserved.
        unmatched: Allocations of blocks that still existed, and similar contradictions: missing
            records.
        is_by_request: Whether frees count at their request, as no others are recorded.
    """

    totals_bytes: "array[int]"
    reserved_bytes: "array[int]"
    peak_bytes: int
    peak_at: int
    peak_reserved_bytes: int
    unmatched: int
    is_by_request: bool


def frees(operations: Operations) -> tuple[int, bool]:
    """Return which action ends the use of a block, and whether that is only the request."""
    if _FREE in operations.actions or Action.FREE_REQUESTED not in operations.actions:
        return _FREE, False
    return int(Action.FREE_REQUESTED), True


def live_at_end(snapshot: MemorySnapshot, *, requested: bool = False) -> dict[int, Live]:
    """
    Return the blocks in use in the end, by address.

    Args:
        snapshot: The snapshot.
        requested: Use requested sizes where they are known, and not block sizes.
    """
    live: dict[int, Live] = {}
    unknown = 0
    for segment in snapshot.segments:
        for block in segment.blocks:
            if block.state is BlockState.FREE:
                continue
            size_bytes = block.size_bytes
            if requested and block.requested_bytes is not None:
                size_bytes = block.requested_bytes
            address = block.address
            if address < 0 or address in live:
                unknown -= 1
                address = unknown
            live[address] = Live(size_bytes, block.stack)
    return live


def walk_back(snapshot: MemorySnapshot) -> BlockWalk:
    """Return the memory in use over time."""
    operations = snapshot.operations
    free, is_by_request = frees(operations)
    sizes = live_at_end(snapshot)
    live = set(sizes)
    total = peak = sum(one.size_bytes for one in sizes.values())
    reserved = peak_reserved = sum(segment.size_bytes for segment in snapshot.segments)
    count = len(operations)
    totals = array("q", bytes(8 * (count + 1)))
    reservations = array("q", bytes(8 * (count + 1)))
    totals[count], reservations[count] = total, reserved
    peak_at, unmatched = count, 0
    actions, addresses = operations.actions, operations.addresses
    sizes_bytes = operations.sizes_bytes
    for at in range(count - 1, -1, -1):
        action = actions[at]
        if action == _ALLOCATE:
            address = addresses[at]
            if address in live:
                live.remove(address)
                total -= sizes_bytes[at]
            else:
                unmatched += 1
        elif action == free:
            address = addresses[at]
            if address in live:
                unmatched += 1
            else:
                live.add(address)
                total += sizes_bytes[at]
                if total > peak:
                    peak, peak_at = total, at
        elif action in _GROW:
            reserved -= sizes_bytes[at]
        elif action in _SHRINK:
            reserved += sizes_bytes[at]
            peak_reserved = max(peak_reserved, reserved)
        totals[at], reservations[at] = total, reserved
    return BlockWalk(
        totals_bytes=totals,
        reserved_bytes=reservations,
        peak_bytes=peak,
        peak_at=peak_at,
        peak_reserved_bytes=peak_reserved,
        unmatched=unmatched,
        is_by_request=is_by_request,
    )


def reading_times(history: BlockWalk) -> list[int]:
    """
    Return the operations before which to list memory, at most ``MAX_READINGS``: the peak of each
    window.
    """
    totals = history.totals_bytes
    count = len(totals) - 1
    step = max(1, -(-count // MAX_READINGS))
    windows = (range(at, min(at + step, count)) for at in range(0, count, step))
    return [max(window, key=totals.__getitem__) for window in windows]


def live_before(snapshot: MemorySnapshot, at: int, *, requested: bool = False) -> dict[int, Live]:
    """
    Return the blocks in use before an operation, by address, with the stacks of their allocation.
    """
    operations = snapshot.operations
    free, _ = frees(operations)
    live = live_at_end(snapshot, requested=requested)
    actions, addresses = operations.actions, operations.addresses
    for index in range(len(operations) - 1, at - 1, -1):
        action = actions[index]
        if action == _ALLOCATE:
            live.pop(addresses[index], None)
        elif action == free:
            live.setdefault(addresses[index], Live(operations.sizes_bytes[index]))
    # Frees have the stack of the free. The stack of the allocation is in earlier operations.
    missing = set(live)
    for index in range(at - 1, -1, -1):
        if not missing:
            break
        if actions[index] == _ALLOCATE and addresses[index] in missing:
            address = addresses[index]
            missing.remove(address)
            known = live[address]
            stack = known.stack or operations.stacks[index]
            live[address] = known._replace(stack=stack, since=index)
    return live


def holders_of(live: dict[int, Live], place_of: Callable[[int], Frame]) -> tuple[LineHolding, ...]:
    """Return the lines that hold blocks, the most first."""
    return rank(sizes_by_stack(live), lambda stack: BEFORE if stack == OLDER else place_of(stack))


def sizes_by_stack(live: dict[int, Live]) -> Iterator[tuple[int, int]]:
    """Yield the stack of each block, which can be ``OLDER``, and its size."""
    for one in live.values():
        yield OLDER if one.since < 0 and one.stack == NO_STACK else one.stack, one.size_bytes


def churn_of(operations: Operations, place_of: Callable[[int], Frame]) -> tuple[LineHolding, ...]:
    """Return how much each line allocated, also what is free again, the most first."""
    return rank(allocated_by_stack(operations), place_of)


def allocated_by_stack(operations: Operations) -> Iterator[tuple[int, int]]:
    """Yield the stack and size of each allocated block."""
    columns = zip(operations.actions, operations.stacks, operations.sizes_bytes, strict=True)
    return ((stack, size_bytes) for action, stack, size_bytes in columns if action == _ALLOCATE)


def phase_ends(snapshot: MemorySnapshot, before: int) -> list[int]:
    """
    Return the operations at which repeated phases ended, up to one; empty: none are known.

    Named phases of the program count if one occurs three times. Otherwise stacks decide: a phase
    ends with a backward pass, or with a step of an optimizer. The course of memory alone proves
    nothing: the layers of one forward pass rise and fall too.
    """
    operations = snapshot.operations
    names = Counter(phase.name for phase in snapshot.phases)
    if names and (found := names.most_common(1)[0])[1] >= _REPEATED:
        ends = (phase.end_unix_us for phase in snapshot.phases if phase.name == found[0])
        indexes = sorted(bisect_right(operations.unix_us, unix_us) for unix_us in ends)
        return [index for index in indexes if index <= before]
    flags = bytes(_backward_flags(snapshot.stacks))
    if not any(flags):
        return []
    return list(_ends_of_runs(operations, flags, before))


def growing(
    live: dict[int, Live], ends: Sequence[int], place_of: Callable[[int], Frame]
) -> tuple[LineHolding, ...]:
    """
    Return the lines that allocated in each of the repeated phases without freeing, the most first.

    The first phase does not count: what a program builds once, it builds there.
    """
    phases = len(ends) - 1
    if phases < _REPEATED:
        return ()
    kept: dict[Frame, dict[int, int]] = {}
    blocks: Counter[Frame] = Counter()
    for one in live.values():
        phase = bisect_right(ends, one.since) - 1
        if one.since < 0 or not 0 <= phase < phases:
            continue
        place = place_of(one.stack)
        sums = kept.setdefault(place, {})
        sums[phase] = sums.get(phase, 0) + one.size_bytes
        blocks[place] += 1
    holders = (
        LineHolding(place, sum(sums.values()), blocks[place])
        for place, sums in kept.items()
        if len(sums) == phases
    )
    return tuple(sorted(holders, key=lambda one: (-one.size_bytes, one.place)))


def _backward_flags(stacks: Sequence[tuple[Frame, ...]]) -> Iterator[bool]:
    # Stacks share their frames, which are far fewer.
    known: dict[int, bool] = {}
    for frames in stacks:
        for frame in frames:
            if id(frame) not in known:
                is_file = _BACKWARD_FILES.fullmatch(frame.file) is not None
                known[id(frame)] = is_file or _BACKWARD.match(frame.function) is not None
        yield any(known[id(frame)] for frame in frames)


def _ends_of_runs(operations: Operations, flags: bytes, before: int) -> Iterator[int]:
    is_running = False
    for at in range(before):
        # Frees have no stack, or that of the code that triggered garbage collection.
        if operations.actions[at] != _ALLOCATE:
            continue
        stack = operations.stacks[at]
        is_backward = stack < len(flags) and bool(flags[stack])
        if is_running and not is_backward:
            yield at
        is_running = is_backward
    if is_running:
        yield before
