"""
One step of a walk from a frame to its caller: with any rule, and all registers.

Most frames do not need it, as their rules are "rsp or rbp plus a constant" (see unwinder.py). Signal
frames, stubs and the dynamic linker do.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from otel_gpu.stacks import mappings
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.unwind import cfi_rows
from otel_gpu.stacks.unwind.cfi_rows import CfiRow, Saved
from otel_gpu.stacks.unwind.expressions import evaluate

_WORD: Final = (1 << 64) - 1
# Expressions in one walk. A signal frame needs 18, a realigned stack 7.
_MAX_EXPRESSIONS: Final = 1024
_LONGEST_CALL_BYTES: Final = 7
_CALL_RELATIVE: Final = 0xE8
_CALL_INDIRECT: Final = (0xFF, 2)
# bl; blr; blraa and its variants.
_AARCH64_CALLS: Final = (
    (0xFC00_0000, 0x9400_0000),
    (0xFFFF_FC1F, 0xD63F_0000),
    (0xFEFF_F800, 0xD63F_0800),
)


class Architecture(NamedTuple):
    """
    The unwinding conventions of a processor.

    Registers are DWARF numbers. ``address_mask`` removes the signature of pointer authentication from a
    return address (AArch64). ``record_is_at_top``: the caller's frame pointer and the return address,
    to which a frame pointer points, are at the end of a frame, so that the caller's stack follows.
    """

    machine: int
    stack_pointer: int
    frame_pointer: int
    return_address: int
    address_mask: int
    record_is_at_top: bool


X86_64: Final = Architecture(
    machine=62,
    stack_pointer=7,
    frame_pointer=6,
    return_address=16,
    address_mask=_WORD,
    record_is_at_top=True,
)
AARCH64: Final = Architecture(
    machine=183,
    stack_pointer=31,
    frame_pointer=29,
    return_address=30,
    address_mask=(1 << 48) - 1,
    record_is_at_top=False,
)


class StackCopy:
    """
    A copy of the top of a stack from the address ``origin`` on; reads never leave it.

    ``used`` are the positions of the ``words`` that were read; ``returns`` are return addresses that
    uretprobes replaced, by their address on the stack. ``find`` returns the mapping of an address.
    """

    def __init__(
        self,
        origin: int,
        content: bytes | memoryview,
        find: Callable[[int], mappings.Mapping | None],
        returns: Mapping[int, int],
    ) -> None:
        view = memoryview(content).cast("B")
        self.origin = origin
        self.words = view[: len(view) & ~7].cast("Q")
        self.used: list[int] = []
        self.returns = returns
        self.find = find
        self._expressions = _MAX_EXPRESSIONS

    def read(self, address: int, size_bytes: int = 8) -> int | None:
        """Return the unsigned integer at an address; None: outside of the copy."""
        distance = address - self.origin
        index, shift = distance >> 3, distance & 7
        if not 0 <= index < len(self.words) or not 0 < size_bytes <= 8 - shift:
            return None
        self.used.append(index)
        return self.words[index] >> 8 * shift & (1 << 8 * size_bytes) - 1

    def evaluate(self, program: bytes, registers: Mapping[int, int], *initial: int) -> int | None:
        """Return the result of an expression; None: no result, or too many expressions."""
        self._expressions -= 1
        return evaluate(program, registers, self.read, *initial) if self._expressions >= 0 else None

    def replaced(self, address: int, value: int) -> int:
        """
        Return the original return address at an address of the stack.

        ``value`` is the present value. The kernel keeps a replaced address until it notices that
        longjmp left the function; so a value that looks like a return address of the program is one.
        """
        saved = self.returns.get(address)
        if saved is None:
            return value
        mapping = self.find(value)
        return saved if mapping is None or mapping.path == mappings.UPROBES else value


class UnwoundFrame(NamedTuple):
    """
    The address of a frame, and its known registers by DWARF number.

    ``lookup`` is an address in its current instruction: the call, or the instruction that a signal
    interrupted.
    """

    lookup: int
    registers: dict[int, int]


BEGINNING: Final = UnwoundFrame(-1, {})
"""The caller of a thread's first function."""


def caller(
    architecture: Architecture, row: CfiRow, frame: UnwoundFrame, stack: StackCopy
) -> UnwoundFrame | None:
    """Return the caller of a frame with a known stack pointer, by its row; or None."""
    if row.return_register != architecture.return_address:
        return None
    rule = row.saved.get(row.return_register)
    if rule is not None and rule.kind == cfi_rows.UNDEFINED:
        return BEGINNING
    cfa = _cfa(architecture, row, frame, stack)
    if cfa is None:
        return None
    found: dict[int, int | None] = {**frame.registers, architecture.stack_pointer: cfa}
    for register, rule in row.saved.items():
        found[register] = _restored(architecture, rule, register, cfa, frame.registers, stack)
    known = {register: value for register, value in found.items() if value is not None}
    return _going_on(architecture, row, frame, known)


def _cfa(
    architecture: Architecture, row: CfiRow, frame: UnwoundFrame, stack: StackCopy
) -> int | None:
    if row.cfa_expression:
        # Stubs use the offset in them; on x86-64, its register has the number of the return address.
        known = {architecture.return_address: frame.lookup, **frame.registers}
        return stack.evaluate(row.cfa_expression, known)
    base = frame.registers.get(row.cfa_register)
    return None if base is None else base + row.cfa_offset & _WORD


def _going_on(
    architecture: Architecture, row: CfiRow, frame: UnwoundFrame, found: dict[int, int]
) -> UnwoundFrame | None:
    address = found.pop(architecture.return_address, None)
    stack_pointer = architecture.stack_pointer
    if address is None or stack_pointer not in found:
        return None
    address &= architecture.address_mask
    if row.is_signal_frame:
        return UnwoundFrame(address, found)
    if not address:
        return BEGINNING
    # A function without a frame does not change the stack pointer (AArch64).
    is_above = found[stack_pointer] >= frame.registers[stack_pointer]
    return UnwoundFrame(address - 1, found) if is_above else None


def _restored(
    architecture: Architecture,
    rule: Saved,
    register: int,
    cfa: int,
    registers: Mapping[int, int],
    stack: StackCopy,
) -> int | None:
    if rule.kind == cfi_rows.REGISTER:
        return registers.get(rule.value)
    if rule.kind == cfi_rows.UNDEFINED:
        return None
    if rule.expression:
        place = stack.evaluate(rule.expression, registers, cfa)
    else:
        place = cfa + rule.value & _WORD
    if place is None or rule.kind in (cfi_rows.OFFSET, cfi_rows.EXPRESSION):
        return place
    if place < registers[architecture.stack_pointer]:
        # The end of a function: it has restored the register and released its location.
        return registers.get(register)
    value = stack.read(place)
    if value is not None and register == architecture.return_address:
        value = stack.replaced(place, value)
    return value


def follows_call(architecture: Architecture, elf: ElfImage, address: int) -> bool:
    """Whether the instruction before a virtual address of a file is a call."""
    if architecture.machine == AARCH64.machine:
        word = int.from_bytes(elf.read(address - 4, 4), "little")
        return any(word & mask == call for mask, call in _AARCH64_CALLS)
    code = bytes(elf.read(address - _LONGEST_CALL_BYTES, _LONGEST_CALL_BYTES))
    if len(code) < _LONGEST_CALL_BYTES:
        return False
    # A distance of four bytes; or a register, an address, an index, and an offset.
    return code[-5] == _CALL_RELATIVE or any(
        code[-size] == _CALL_INDIRECT[0] and code[1 - size] >> 3 & 7 == _CALL_INDIRECT[1]
        for size in (2, 3, 4, 6, 7)
    )
