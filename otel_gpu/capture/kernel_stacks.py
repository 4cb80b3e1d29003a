"""Kernel stacks as RECORD_STACK: the names of their functions, sent once each."""

import time
from collections.abc import Iterator
from typing import Protocol

from otel_gpu import wire
from otel_gpu.capture.kernel_symbols import KernelSymbols
from otel_gpu.records import json_record

_SCHEDULER = "__schedule"


class _KernelSide(Protocol):
    def kernel_stack(self, stack: int) -> tuple[int, ...]: ...


class KernelStacks:
    """The stacks that the kernel side gave ids to."""

    def __init__(self, programs: _KernelSide, symbols: KernelSymbols | None = None) -> None:
        self._programs = programs
        self._sent: set[int] = set()
        self._symbols = symbols or KernelSymbols()

    def prepare(self) -> None:
        """Read the kernel's symbols now: it takes a tenth of a second."""
        self._symbols.read()

    def tell(self, stack: int) -> Iterator[bytes]:
        """Yield the functions of a stack, innermost first, when it is met for the first time."""
        if stack < 0 or stack in self._sent:
            return
        addresses = self._programs.kernel_stack(stack)
        if not addresses:
            return
        self._sent.add(stack)
        # All but the first are where a call returns to. A function that ends with a call, as
        # one that never returns does, would have that in the next function.
        places = [address - bool(caller) for caller, address in enumerate(addresses)]
        functions = [self._symbols.name(place) for place in places]
        if _SCHEDULER in functions:
            # What is above the scheduler is how we came to look.
            above = functions.index(_SCHEDULER) + 1
            del functions[:above], places[:above]
        # The kernel leaves these out of the stack of another thread, not out of our own.
        functions = [
            function
            for function, place in zip(functions, places, strict=True)
            if not self._symbols.is_scheduler(place)
        ]
        body = {"kernel_stack": stack, "functions": functions}
        yield json_record(wire.RECORD_STACK, time.monotonic_ns(), body)
