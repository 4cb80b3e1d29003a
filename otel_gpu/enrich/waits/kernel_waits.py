"""Where threads wait in the kernel: the stacks that the stream tells, and the reasons in them."""

from otel_gpu.enrich.waits.kernel_reasons import find_reason
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.limits.caches import CACHES
from otel_gpu.wire.symbol_records import Stack

MAX_STACKS = 16_384
"""Stacks that are remembered; what waits in others has no reason."""

# Of one of 25 functions, whose names are shared.
_STACK_BYTES = 450


class KernelWaits:
    """
    The kernel's stacks of one capture; bounded.

    Attributes:
        version: Another number once a reason may be another one than it was.
    """

    def __init__(self) -> None:
        self.version = 0
        self._stacks: dict[int, tuple[str, ...]] = {}
        self._machine = ""
        # No stack is said twice, so none is released.
        CACHES.register("kernel_stacks", self, "_stacks", entry_bytes=_STACK_BYTES)

    def begin(self, machine: str) -> None:
        """Begin with another capture, on a host of this architecture."""
        self._machine = machine
        self._stacks.clear()
        self.version += 1

    def learn(self, event: Stack) -> None:
        """Take in a stack."""
        known = self._stacks
        if len(known) < MAX_STACKS and known.get(event.kernel_stack) != event.functions:
            known[event.kernel_stack] = event.functions
            self.version += 1

    def functions(self, kernel_stack: int) -> tuple[str, ...]:
        """Return the functions of a stack, innermost first; none if it is not known."""
        return self._stacks.get(kernel_stack, ())

    def reason(self, kernel_stack: int, system_call: int, flags: int) -> WaitReason:
        """Return why a thread waits there; see ``find_reason``."""
        return find_reason(self.functions(kernel_stack), system_call, flags, self._machine)
