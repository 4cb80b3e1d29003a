"""
Blocks of the frameworks' allocators in the kernel side's maps: totals, holders, and memory maps.

The memory map of a device is read after an allocation failed on it. Until then the kernel side keeps
blocks that are freed after the failure, so the map shows the state at the failure.
"""

import itertools
from collections.abc import Collection, Iterator
from typing import Final

from otel_gpu import wire
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.objects import BpfObject
from otel_gpu.capture.bpf.settings import block_mode
from otel_gpu.config import Config
from otel_gpu.errors import MapFullError
from otel_gpu.options import BlocksMode
from otel_gpu.stacks.samples import ProcessKey
from otel_gpu.wire.bodies import MemoryMapFacts

STACK_OF_ONE: Final = 1 << wire.STACK_OF_ONE_BIT
"""A bit in the key of a stack that belongs to only one block."""

_MAX_BLOCKS: Final = 262_144
_MAX_HOLDERS: Final = 65_536
# Per device; the largest are kept.
MAX_MAP_BLOCKS: Final = 8192
MAX_MAP_SEGMENTS: Final = 4096
_TRIES: Final = 5
_U64: Final = (1 << 64) - 1
_LAYERS: Final = (wire.LAYER_RUNTIME, wire.LAYER_DRIVER)
_TOTALS: Final = slice(0, wire.MEMORY_TOTALS.size)
_HOLDER: Final = slice(0, wire.HOLDER.size)
_LIVE_BLOCKS: Final = wire.HOLDER.fields.index("live_blocks")
_STACK: Final = wire.HOLDER_KEY.fields.index("stack")
_CHAIN: Final = wire.CHAIN_KEY


def let_blocks_grow(bpf: BpfObject) -> None:
    """Allow many blocks where map entries are allocated on demand; before ``load``."""
    for name, entries in (("blocks", _MAX_BLOCKS), ("holders", _MAX_HOLDERS)):
        bpf.set_max_entries(name, entries)
        bpf.let_grow(name)
    bpf.let_grow("freed_memory")


class BlockMaps:
    """
    The kernel side's maps of blocks.

    Attributes:
        are_followed: Whether the configuration asks for blocks.
        maps: Maps in which a program can leave entries. Keys begin with its start, an address and its pid.
    """

    def __init__(self, bpf: BpfObject, config: Config) -> None:
        self.are_followed = block_mode(config) != wire.BLOCKS_OFF
        self._smallest_bytes = (
            0 if config.memory.blocks == BlocksMode.ALL else config.memory.large_bytes
        )
        self._devices = bpf.map("device_memories")
        self._holders = bpf.map("holders")
        self._blocks = bpf.map("blocks")
        self._freed = bpf.map("freed_memory")
        self._unread = bpf.map("unread_maps")
        self._broken_chains = bpf.map("broken_chains")
        self._allocations = bpf.map("allocations")
        self.maps: tuple[BpfMap, ...] = (self._freed,)

    def read_totals(self) -> Iterator[tuple[bytes, bytes]]:
        """
        Yield ``MEMORY_TOTALS`` of each device of each program with reports.

        All fields are 0 if the reports were only about memory that the program inherited.
        """
        for key, read in self._devices.entries():
            # Read again if it was read in the middle of an update.
            again = (self._devices.lookup(key) or read for _ in range(_TRIES))
            value = next(filter(_adds_up, itertools.chain([read], again)), read)
            yield key, value[_TOTALS]

    def forget_totals(self, key: bytes) -> None:
        """Delete a device of a program that ended."""
        self._devices.delete(key)
        self._unread.delete(key)

    def read_holders(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the holders of blocks, as ``HOLDER``."""
        for key, value in self._holders.entries():
            yield key, value[_HOLDER]

    def forget_holder(self, key: bytes) -> None:
        """Delete a holder that will not change any more."""
        self._holders.delete(key)

    def forget_blocks(self, programs: Collection[ProcessKey]) -> None:
        """Delete all blocks of programs."""
        for key, _ in list(self._blocks.entries()):
            program_ktime_ns, _, pid, _ = wire.BLOCK_KEY.unpack(key)
            if (pid, program_ktime_ns) in programs:
                self._blocks.delete(key)

    def break_chain(self, program: ProcessKey, stack: int) -> None:
        """Mark a stack key, which was computed from frame pointers, as standing for several stacks."""
        pid, program_ktime_ns = program
        try:
            self._broken_chains.update(
                _CHAIN.pack(program_ktime_ns, stack, pid), (1).to_bytes(4, "little")
            )
        except MapFullError:
            return

    def read_map(self, program: ProcessKey, device: int, ktime_ns: int) -> MemoryMapFacts | None:
        """
        Return the memory map of a device at a failed allocation, as the body of RECORD_MEMORY_MAP.

        Args:
            program: The program whose allocation failed.
            device: Its number in the process.
            ktime_ns: Time of the failure.

        Returns:
            None if an earlier failure's map was not read before this failure.
        """
        pid, program_ktime_ns = program
        key = wire.DEVICE_KEY.pack(program_ktime_ns, pid, max(device, 0))
        if self._unread.lookup(key) != ktime_ns.to_bytes(8, "little"):
            return None
        blocks: dict[int, tuple[int, int]] = {}
        segments = self._segments(program, device, ktime_ns)
        # In this order: a block is added to the freed ones before it is removed from the live ones.
        for bpf_map in (self._blocks, self._freed):
            for raw_key, raw in bpf_map.entries():
                owner, address, owner_pid, kind = wire.BLOCK_KEY.unpack(raw_key)
                size_bytes, _, stack, since_ktime_ns, at, _ = wire.BLOCK.unpack(raw)
                if (owner_pid, owner) != program or since_ktime_ns > ktime_ns:
                    continue
                if max(at, 0) == max(device, 0):
                    if kind == wire.MEMORY_SEGMENT:
                        segments[address] = size_bytes
                    elif size_bytes >= self._smallest_bytes:
                        blocks[address] = (size_bytes, stack)
                    if bpf_map is self._freed:
                        bpf_map.delete(raw_key)
        self._unread.delete(key)
        return self._describe(device, segments, blocks)

    def _segments(self, program: ProcessKey, device: int, ktime_ns: int) -> dict[int, int]:
        segments: dict[int, int] = {}
        mappings: dict[int, tuple[int, int]] = {}
        physical: dict[int, int] = {}
        for raw_key, raw in self._allocations.entries():
            owner, address, pid, layer = wire.ALLOCATION_KEY.unpack(raw_key)
            if (pid, owner) != program:
                continue
            size_bytes, of, at, _, since_ktime_ns = wire.ALLOCATION.unpack(raw)
            if layer == wire.MEMORY_PHYSICAL:
                physical[address] = at
            elif not since_ktime_ns or since_ktime_ns > ktime_ns:
                continue
            elif layer == wire.MEMORY_MAPPING:
                mappings[address] = (size_bytes, of)
            elif layer in _LAYERS and max(at, 0) == max(device, 0) and size_bytes:
                segments[address] = size_bytes
        return segments | _joined(
            {
                address: size_bytes
                for address, (size_bytes, of) in mappings.items()
                if max(physical.get(of, device), 0) == max(device, 0)
            }
        )

    def _describe(
        self, device: int, segments: dict[int, int], blocks: dict[int, tuple[int, int]]
    ) -> MemoryMapFacts:
        by_size = sorted(blocks.items(), key=lambda block: (-block[1][0], block[0]))
        shown = by_size[:MAX_MAP_BLOCKS]
        left_out = len(by_size) - len(shown)
        largest = sorted(segments.items(), key=lambda segment: (-segment[1], segment[0]))
        return {
            "device": max(device, 0),
            "segments": sorted(largest[:MAX_MAP_SEGMENTS]),
            "blocks": sorted((address, *block) for address, block in shown),
            "left_out": left_out,
            "smallest_bytes": shown[-1][1][0] if left_out else self._smallest_bytes,
        }


def is_over(key: bytes, holder: bytes) -> bool:
    """Whether a holder is of a single block that was freed."""
    is_of_one = wire.HOLDER_KEY.unpack(key)[_STACK] & STACK_OF_ONE
    return bool(is_of_one) and not wire.HOLDER.unpack(holder)[_LIVE_BLOCKS]


def _adds_up(value: bytes) -> bool:
    totals = wire.DEVICE_MEMORY.named(value)
    seen = totals["totals.handed_out_bytes"] - totals["totals.taken_back_bytes"]
    return bool(
        (totals["totals.before_bytes"] + seen - totals["totals.allocated_bytes"]) & _U64 == 0
    )


def _joined(mappings: dict[int, int]) -> dict[int, int]:
    # Adjacent mappings are one segment.
    joined: dict[int, int] = {}
    start = end = 0
    for address, size_bytes in sorted(mappings.items()):
        if not joined or address != end:
            start, end = address, address
        end += size_bytes
        joined[start] = end - start
    return joined
