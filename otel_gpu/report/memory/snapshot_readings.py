"""
Memory snapshots as readings of a live capture, so that they can be stored and exported.

Contains the allocator's totals at some hundred times, the holders at the peak and at the end, and
the failed requests with block maps. Only reports have the block layout in between.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from otel_gpu.enrich.activities import (
    Activity,
    BlocksActivity,
    CaptureActivity,
    MemoryActivity,
    OutOfMemoryActivity,
)
from otel_gpu.enrich.identity.identities import CallStack, DeviceIdentity, Program
from otel_gpu.enrich.ids import NO_SEED, SpanIds
from otel_gpu.explain.memory.out_of_memory import MAX_FAILURES
from otel_gpu.faults import Observer
from otel_gpu.state.memory.history import (
    BlockWalk,
    Live,
    live_before,
    reading_times,
    sizes_by_stack,
    walk_back,
)
from otel_gpu.state.memory.layout import segments_before
from otel_gpu.state.memory.stacks import stack_numbered
from otel_gpu.wire import OUT_OF_MEMORY_FRAMEWORK
from otel_gpu.wire.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.wire.bodies import MemoryMapFacts
from otel_gpu.wire.memory_snapshot import NO_STACK, Action, BlockState, MemorySnapshot

MAX_MAPPED: Final = 4_096
"""Blocks in the map of one failed request, the largest ones."""

_NS_PER_US = 1_000
# The service name of a program without a known name.
_SERVICE = "unknown_service:python"


class AsReadings:
    """Passes activities to an observer, with readings in place of memory snapshots."""

    def __init__(self, observer: Observer) -> None:
        self._observe = observer.observe
        self._ids = SpanIds(NO_SEED)
        self._process = Program(
            pid=0,
            program_ktime_ns=0,
            comm="python",
            start_unix_ns=0,
            attributes={"service.name": _SERVICE},
        )

    def observe(self, activity: Activity) -> None:
        """Pass one activity on."""
        if isinstance(activity, CaptureActivity):
            self._ids = SpanIds(activity.seed)
            attributes = {"service.name": _SERVICE}
            self._process = Program(
                pid=0,
                program_ktime_ns=0,
                comm="python",
                start_unix_ns=activity.unix_ns,
                attributes=attributes,
            )
        if isinstance(activity, MemoryActivity):
            for reading in readings_of(activity, self._process, self._ids):
                self._observe(reading)
        else:
            self._observe(activity)


def readings_of(
    activity: MemoryActivity, process: Program, ids: SpanIds
) -> Iterator[BlocksActivity | OutOfMemoryActivity]:
    """Yield a snapshot's readings, in order of time."""
    snapshot, history = activity.snapshot, walk_back(activity.snapshot)
    walk = _SnapshotWalk(activity=activity, process=process, ids=ids, history=history)
    at_end = len(snapshot.operations)
    failed = [
        at
        for at, action in enumerate(snapshot.operations.actions)
        if action == Action.OUT_OF_MEMORY
    ][-MAX_FAILURES:]
    readings = {*reading_times(history), history.peak_at, at_end}
    for at in sorted({*readings, *failed}):
        if at in readings:
            yield walk.reading(at, has_holders=at in (history.peak_at, at_end))
        if at in failed:
            yield walk.failure(at)


class _SnapshotWalk:
    # Goes through a snapshot once, from its beginning.

    def __init__(
        self, activity: MemoryActivity, process: Program, ids: SpanIds, history: BlockWalk
    ) -> None:
        self._activity, self._process, self._ids = activity, process, ids
        self._snapshot: MemorySnapshot = activity.snapshot
        self._history = history
        self._device = DeviceIdentity(self._snapshot.device, None, None)
        self._at = 0
        self._handed_out = self._peak = self._peak_reserved = 0
        self._allocated: Counter[int] = Counter()
        self._blocks: Counter[int] = Counter()
        self._known: dict[int, CallStack] = {}

    def reading(self, at: int, *, has_holders: bool) -> BlocksActivity:
        self._advance(at)
        history = self._history
        live, before = history.totals_bytes[at], history.totals_bytes[0]
        unix_ns = self._unix_ns(at)
        totals = MemoryTotals(
            last_ktime_ns=unix_ns,
            allocated_bytes=live,
            reserved_bytes=history.reserved_bytes[at],
            peak_allocated_bytes=max(self._peak, live),
            peak_reserved_bytes=max(self._peak_reserved, history.reserved_bytes[at]),
            before_bytes=before,
            # How many reports there were, and what they agreed with, is not known.
            before_freed_bytes=0,
            allocations=0,
            frees=0,
            handed_out_bytes=self._handed_out,
            taken_back_bytes=max(0, before + self._handed_out - live),
            unequal=0,
            unsampled_bytes=0,
            rate_limited_bytes=0,
        )
        holders = tuple(self._holders(live_before(self._snapshot, at))) if has_holders else ()
        return BlocksActivity(
            unix_ns=unix_ns,
            process=self._process,
            number=self._snapshot.device,
            device=self._device,
            totals=totals,
            holders=holders,
        )

    def failure(self, at: int) -> OutOfMemoryActivity:
        self._advance(at)
        operations, unix_ns = self._snapshot.operations, self._unix_ns(at)
        stack = self._stack(operations.stacks[at])
        event = OutOfMemory(
            ktime_ns=unix_ns,
            program_ktime_ns=self._process.program_ktime_ns,
            pid=self._process.pid,
            tid=0,
            asked_bytes=max(0, operations.sizes_bytes[at]),
            allocated_bytes=self._history.totals_bytes[at],
            reserved_bytes=self._history.reserved_bytes[at],
            device_free_bytes=max(0, operations.addresses[at]),
            device_total_bytes=self._snapshot.capacity_bytes,
            device_ktime_ns=unix_ns,
            root_start_ktime_ns=0,
            user_stack=stack.id if stack else 0,
            device=self._snapshot.device,
            source=OUT_OF_MEMORY_FRAMEWORK,
            api=0,
            comm=self._process.comm,
        )
        live = live_before(self._snapshot, at)
        segments = segments_before(self._snapshot, at, live)
        used = [
            (block.address, block.size_bytes, block.stack)
            for segment in segments
            for block in segment.blocks
            if block.state is not BlockState.FREE
        ]
        used.sort(key=lambda block: (-block[1], block[0]))
        # A file of an older PyTorch states no addresses of blocks.
        placed = [block for block in used if block[0] >= 0]
        shown, stacks = placed[:MAX_MAPPED], dict[int, CallStack]()
        mapped = []
        for address, size_bytes, number in shown:
            found = self._stack(number)
            key = found.id if found else 0
            mapped.append((address, size_bytes, key))
            if found:
                stacks[key] = found
        info: MemoryMapFacts = {
            "segments": [(one.address, one.size_bytes) for one in segments if one.address >= 0],
            "blocks": mapped,
            "left_out": len(used) - len(shown),
            "smallest_bytes": shown[-1][1] if len(placed) > len(shown) else 0,
        }
        found_ids = self._ids.of_out_of_memory(event)
        return OutOfMemoryActivity(
            unix_ns, self._process, event, self._device, None, stack, info, stacks, *found_ids
        )

    def _advance(self, at: int) -> None:
        operations, history = self._snapshot.operations, self._history
        for index in range(self._at, at):
            self._peak = max(self._peak, history.totals_bytes[index])
            self._peak_reserved = max(self._peak_reserved, history.reserved_bytes[index])
            if operations.actions[index] == Action.ALLOCATE:
                self._handed_out += operations.sizes_bytes[index]
                self._allocated[operations.stacks[index]] += operations.sizes_bytes[index]
                self._blocks[operations.stacks[index]] += 1
        self._at = max(self._at, at)

    def _holders(self, live: dict[int, Live]) -> Iterator[tuple[int, Holder, CallStack | None]]:
        sums: dict[int, list[int]] = {}
        for number, size_bytes in sizes_by_stack(live):
            held = sums.setdefault(number, [0, 0])
            held[0] += size_bytes
            held[1] += 1
        # Two numbers can be the same stack.
        found: dict[int, list[int]] = {}
        for number in sums.keys() | self._allocated.keys():
            stack = self._stack(number)
            if stack is not None:
                held = found.setdefault(stack.id, [0, 0, 0, 0])
                values = (*sums.get(number, (0, 0)), self._allocated[number], self._blocks[number])
                found[stack.id] = [one + more for one, more in zip(held, values, strict=True)]
        by_id = {stack.id: stack for stack in self._known.values()}
        for key, (size_bytes, blocks, allocated, ever) in sorted(found.items()):
            holder = Holder(
                live_bytes=size_bytes,
                live_blocks=blocks,
                allocated_bytes=max(allocated, size_bytes),
                allocated_blocks=max(ever, blocks),
                large_live_bytes=size_bytes,
            )
            yield key, holder, by_id[key]

    def _stack(self, number: int) -> CallStack | None:
        if number in (NO_STACK, -1):
            return None
        if number not in self._known:
            stack = stack_numbered(self._snapshot, number)
            if not stack.id:
                return None
            self._known[number] = stack
        return self._known[number]

    def _unix_ns(self, at: int) -> int:
        times: Sequence[int] = self._snapshot.operations.unix_us
        unix_us = times[min(at, len(times) - 1)] if times else 0
        return unix_us * _NS_PER_US if unix_us > 0 else self._activity.unix_ns
