"""Kernel stacks of waits, and the reasons in them."""

from otel_gpu.enrich.waits.kernel_reasons import find_reason
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.symbol_records import Stack

MAX_STACKS = 16_384
"""Stacks kept; waits in others have no reason."""

# A stack of 25 functions, whose names are shared.
_STACK_BYTES = 450


class KernelWaits:
    """
    The kernel's stacks of one capture; bounded.

    Attributes:
        version: Changes whenever the reason of a stack can have changed.
    """

    def __init__(self) -> None:
        self.version = 0
        self._stacks: dict[int, tuple[str, ...]] = {}
        self._machine = ""
        # No stack is sent twice, so none is released.
        CACHES.register("kernel_stacks", self, "_stacks", entry_bytes=_STACK_BYTES)

    def begin(self, machine: str) -> None:
        """Begin another capture, on a host of this architecture."""
        self._machine = machine
        self._stacks.clear()
        self.version += 1

    def learn(self, event: Stack) -> None:
        """Add a stack."""
        known = self._stacks
        if len(known) < MAX_STACKS and known.get(event.kernel_stack) != event.functions:
            known[event.kernel_stack] = event.functions
            self.version += 1

    def functions(self, kernel_stack: int) -> tuple[str, ...]:
        """Return the functions of a stack, innermost first; empty: not known."""
        return self._stacks.get(kernel_stack, ())

    def reason(self, kernel_stack: int, system_call: int, flags: int) -> WaitReason:
        """Return why a thread waits there; see ``find_reason``."""
        return find_reason(
            self.functions(kernel_stack), system_call, flags=flags, machine=self._machine
        )
