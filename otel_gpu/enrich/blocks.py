"""Blocks of device memory: the stack of each key, and failed requests that wait for their map."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import CallStack, ProcessKey
from otel_gpu.enrich.stack_table import StackTable
from otel_gpu.limits.recent import GroupedRecent
from otel_gpu.wire.blocks import (
    BlockStack,
    Holder,
    Holders,
    Memory,
    MemoryMap,
    MemoryTotals,
    OutOfMemory,
)
from otel_gpu.wire.bodies import MemoryMapFacts

MAX_BLOCK_STACKS: Final = 65_536
"""Keys kept, of all processes: each is sent once in the life of its process."""
MAP_PATIENCE_NS: Final = 5_000_000_000
"""The map of a device is read right after a request failed; after this time none comes."""

_MAX_FAILED = 256


class BlockStacks:
    """Where the blocks of each key were allocated; bounded, the oldest are evicted first."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self._known: GroupedRecent[ProcessKey, int, CallStack] = GroupedRecent(MAX_BLOCK_STACKS)

    def learn(self, event: BlockStack) -> None:
        """Keep the stack of a key, if it is known."""
        stack = self._stacks.find(event.user_stack)
        if stack is not None:
            self._known[(event.pid, event.program_ktime_ns), event.stack] = stack

    def find(self, program: ProcessKey, key: int) -> CallStack | None:
        """Return the stack of a key; None: not known."""
        return self._known.get((program, key))

    def forget(self, program: ProcessKey) -> None:
        """Forget the keys of a program that ended."""
        self._known.forget(program)

    def clear(self) -> None:
        """Forget everything: another capture begins."""
        self._known.clear()


class BlocksRead(NamedTuple):
    """The reading of one device of one program."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    comm: str
    device: int
    totals: MemoryTotals | None
    holders: tuple[tuple[int, Holder], ...]


def split_reading(event: Memory | Holders) -> Iterator[BlocksRead]:
    """Yield the part of a reading for each device of each program."""
    if isinstance(event, Memory):
        for key, totals in event.totals:
            program_ktime_ns, pid, device = key
            yield BlocksRead(
                ktime_ns=event.ktime_ns,
                program_ktime_ns=program_ktime_ns,
                pid=pid,
                comm="",
                device=device,
                totals=totals,
                holders=(),
            )
        return
    by_device: dict[tuple[int, int, int], list[tuple[int, Holder]]] = {}
    for (program_ktime_ns, stack, pid, device), holder in event.holders:
        by_device.setdefault((program_ktime_ns, pid, device), []).append((stack, holder))
    for (program_ktime_ns, pid, device), holders in by_device.items():
        yield BlocksRead(
            ktime_ns=event.ktime_ns,
            program_ktime_ns=program_ktime_ns,
            pid=pid,
            comm="",
            device=device,
            totals=None,
            holders=tuple(holders),
        )


class Failed(NamedTuple):
    """A request that failed, with the map of its device if there was one."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    comm: str
    event: OutOfMemory
    map: MemoryMapFacts | None


class FailedRequests:
    """
    Requests that failed, until the map of their device has come, or time has passed.

    A framework asks the device, releases what it does not need, asks again, and then reports that
    it has no more memory: calls that failed before its report are of the same request.
    """

    def __init__(self) -> None:
        self._waiting: list[OutOfMemory] = []

    def add(self, event: OutOfMemory) -> Iterator[Failed]:
        """Add a failed request; yield the oldest one beyond the limit."""
        if event.source == wire.OUT_OF_MEMORY_FRAMEWORK:
            self._waiting = [one for one in self._waiting if not _is_answered(one, event)]
        self._waiting.append(event)
        if len(self._waiting) > _MAX_FAILED:
            yield _failed(self._waiting.pop(0), None)

    def take_mapped(self, event: MemoryMap) -> Iterator[Failed]:
        """
        Yield the requests that failed on the device of a map before it; the map is that of the last
        one.
        """
        found = [one for one in self._waiting if _is_mapped(one, event)]
        self._waiting = [one for one in self._waiting if not _is_mapped(one, event)]
        for number, one in enumerate(found, 1):
            yield _failed(one, event.info if number == len(found) else None)

    def take_overdue(self, ktime_ns: int) -> Iterator[Failed]:
        """Yield the requests that have waited for long enough."""
        while self._waiting and ktime_ns - self._waiting[0].ktime_ns > MAP_PATIENCE_NS:
            yield _failed(self._waiting.pop(0), None)

    def take_all(self) -> Iterator[Failed]:
        """Yield all requests that wait; nothing follows."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            yield _failed(one, None)


def _is_mapped(failed: OutOfMemory, event: MemoryMap) -> bool:
    place = (failed.pid, failed.program_ktime_ns, failed.device)
    is_place = place == (event.pid, event.program_ktime_ns, event.device)
    return is_place and failed.ktime_ns <= event.ktime_ns


def _is_answered(call: OutOfMemory, report: OutOfMemory) -> bool:
    # Whether a failed call is the one that a framework reports now.
    is_same_thread = (call.pid, call.tid) == (report.pid, report.tid)
    return is_same_thread and call.source == wire.OUT_OF_MEMORY_CALL


def _failed(event: OutOfMemory, info: MemoryMapFacts | None) -> Failed:
    return Failed(
        ktime_ns=event.ktime_ns,
        program_ktime_ns=event.program_ktime_ns,
        pid=event.pid,
        comm=event.comm,
        event=event,
        map=info,
    )
