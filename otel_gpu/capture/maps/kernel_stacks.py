"""Kernel stacks as RECORD_STACK: the names of their functions, sent once per stack."""

import struct
from collections.abc import Iterator, Sequence
from typing import Protocol

from otel_gpu import wire
from otel_gpu.capture.maps.kernel_symbols import KernelSymbols
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.procfs import kernel_clock
from otel_gpu.wire.agent_records import json_record

_SCHEDULER = "__schedule"
# Ids from here on are assigned by this module, not by the kernel side.
_FIRST_OF_TICKS = 1 << 30
_MAX_OF_TICKS = 4096
# Of the addresses or functions of 25 frames; the functions' names are shared.
_STACK_BYTES = 400
_ADDRESS = struct.Struct("<Q")
_SAMPLE_KIND = wire.RECORD_CPU_SAMPLE.to_bytes(2, "little")
_SAMPLE_BYTES = wire.CPU_SAMPLE_RECORD.size
_SIZE = wire.CPU_SAMPLE_RECORD.offset_of("size")
_STACK = wire.CPU_SAMPLE_RECORD.offset_of("kernel_stack")


class _KernelSide(Protocol):
    def kernel_stack(self, stack: int) -> tuple[int, ...]: ...


class KernelStacks:
    """Resolves kernel stacks by the ids of the kernel side, and those of on-CPU samples."""

    def __init__(self, programs: _KernelSide, symbols: KernelSymbols | None = None) -> None:
        self._programs = programs
        self._sent: set[int] = set()
        self._symbols = symbols or KernelSymbols()
        # By the functions, and by the addresses.
        self._of_ticks: Recent[tuple[str, ...], int] = Recent(_MAX_OF_TICKS)
        self._known_ticks: Recent[bytes, int] = Recent(
            _MAX_OF_TICKS, cache="kernel_stacks", entry_bytes=_STACK_BYTES
        )
        self._ticks = 0
        # One that is evicted gets another id, so only the bound of its own holds.
        CACHES.register("kernel_stacks", self, "_of_ticks", entry_bytes=_STACK_BYTES)

    def prepare(self) -> None:
        """Read the kernel's symbols, which takes 0.1 s."""
        self._symbols.read()

    def compress(self) -> None:
        """Compress some more of the kernel's function names."""
        self._symbols.compress()

    def describe(self, stack: int) -> Iterator[bytes]:
        """Yield a stack's functions, innermost first, the first time that it is passed."""
        if stack < 0 or stack in self._sent:
            return
        addresses = self._programs.kernel_stack(stack)
        if not addresses:
            return
        self._sent.add(stack)
        places, functions = self._name(addresses)
        if _SCHEDULER in functions:
            # Frames above the scheduler belong to our probe.
            above = functions.index(_SCHEDULER) + 1
            del functions[:above], places[:above]
        # The kernel omits these from other threads' stacks, but not from the current one's.
        functions = [
            function
            for function, place in zip(functions, places, strict=True)
            if not self._symbols.is_scheduler(place)
        ]
        yield _record(stack, functions)

    def place(self, sample: bytes) -> Iterator[bytes]:
        """
        Yield a CPU_SAMPLE record with an id in place of the kernel stack that can follow it.

        A new stack's RECORD_STACK comes first. Ticks interrupt functions at any address, so an id
        stands for a list of functions, not of addresses, which keeps ids few.
        """
        addresses = sample[_SAMPLE_BYTES:].rstrip(b"\0")
        if not addresses:
            yield without_kernel_stack(sample)
            return
        stack = self._known_ticks.use(addresses)
        if stack is None:
            words = _ADDRESS.iter_unpack(addresses.ljust(wire.KERNEL_STACK.size, b"\0"))
            functions = tuple(self._name([word for (word,) in words if word])[1])
            stack = self._of_ticks.use(functions)
            if stack is None:
                stack = _FIRST_OF_TICKS + self._ticks % _FIRST_OF_TICKS
                self._ticks += 1
                yield _record(stack, functions)
            self._of_ticks[functions] = self._known_ticks[addresses] = stack
        yield _with_kernel_stack(sample, stack)

    def _name(self, addresses: Sequence[int]) -> tuple[list[int], list[str]]:
        # All but the first are return addresses. After a call to a function that never returns, that
        # address can lie in the next function, so one byte is subtracted.
        places = [address - bool(caller) for caller, address in enumerate(addresses)]
        return places, [self._symbols.name(place) for place in places]


def _record(stack: int, functions: Sequence[str]) -> bytes:
    body = {"kernel_stack": stack, "functions": list(functions)}
    return json_record(wire.RECORD_STACK, kernel_clock.ktime_ns(), body)


def without_kernel_stack(record: bytes) -> bytes:
    """Return a CPU_SAMPLE record without the kernel stack that can follow it; others unchanged."""
    return _with_kernel_stack(record, -1) if record.startswith(_SAMPLE_KIND) else record


def _with_kernel_stack(sample: bytes, stack: int) -> bytes:
    placed = bytearray(sample[:_SAMPLE_BYTES])
    struct.pack_into("<I", placed, _SIZE, _SAMPLE_BYTES)
    struct.pack_into("<i", placed, _STACK, stack)
    return bytes(placed)
