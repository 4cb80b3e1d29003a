"""
Rows of call frame information, and the programs that make them.

A program is a list of instructions that change one row from address to address: the CFA is
now rsp + 16, rbp is now saved at CFA - 16. Run up to an address, it leaves that address's row.
Programs come from untrusted files: they cannot jump, and can push a bounded number of rows.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from otel_gpu.stacks.unwind.leb128 import sleb128, uleb128

_MAX_REMEMBERED: Final = 64
_MAX_EXPRESSION_BYTES: Final = 64
# x86-64 numbers 17 integer registers, AArch64 32. Vector registers are not followed.
_MAX_REGISTER: Final = 31
_RESTORE, _OFFSET, _ADVANCE, _OPERAND = 0xC0, 0x80, 0x40, 0x3F

# How a register of the caller is found.
AT_OFFSET: Final = 0
"""In memory, at CFA + offset."""
OFFSET: Final = 1
"""It is CFA + offset."""
AT_EXPRESSION: Final = 2
"""In memory, at the result of an expression."""
EXPRESSION: Final = 3
"""It is the result of an expression."""
REGISTER: Final = 4
"""In the register of that number."""
UNDEFINED: Final = 5
"""It is lost; for the return address: no caller."""


class Saved(NamedTuple):
    """The location of one register of the caller."""

    kind: int
    value: int = 0
    expression: bytes = b""


class CfiRow(NamedTuple):
    """
    The rules to get from an address to its caller.

    The CFA is ``cfa_register`` + ``cfa_offset``, or ``cfa_expression`` unless that is empty.
    A register that is not in ``saved`` has the same value in the caller.
    ``return_register`` is the column of the return address; ``is_signal_frame``: the "caller" was
    interrupted and made no call. It applies from ``begin`` to before ``end``.
    """

    cfa_register: int
    cfa_offset: int
    cfa_expression: bytes
    saved: dict[int, Saved]
    return_register: int
    is_signal_frame: bool
    begin: int = 0
    end: int = 0


class Common(NamedTuple):
    """
    The shared entry (CIE) of functions.

    The alignments are the units of distances between addresses and of offsets from the CFA, in
    bytes. ``program`` runs before the program of each function.
    """

    code_alignment: int
    data_alignment: int
    return_register: int
    pointer_encoding: int
    has_augmentation: bool
    is_signal_frame: bool
    program: bytes


def row_at(common: Common, program: bytes, start: int, end: int, address: int) -> CfiRow:
    """
    Return the row of an address in the function from ``start`` to ``end``, by its program.

    Raises:
        ValueError: The program is invalid.
        IndexError: It ends within an instruction.
    """
    state = _State(common.code_alignment, common.data_alignment)
    state.run(common.program, 0)
    state.initial = dict(state.saved)
    state.before = state.location = start
    state.run(program, address)
    extent = (state.location, end)
    if state.location > address:
        extent = (state.before, min(state.location, end))
    return CfiRow(*state.cfa, state.saved, common.return_register, common.is_signal_frame, *extent)


class _State:
    # The row so far, and all operations of instructions on it.

    def __init__(self, code_alignment: int, data_alignment: int) -> None:
        self._code_alignment = code_alignment
        self._data_alignment = data_alignment
        self.before = self.location = 0
        self.cfa: tuple[int, int, bytes] = (0, 0, b"")
        self.saved: dict[int, Saved] = {}
        self.initial: dict[int, Saved] = {}
        self.remembered: list[tuple[tuple[int, int, bytes], dict[int, Saved]]] = []

    def save(self, register: int, kind: int, value: int = 0, expression: bytes = b"") -> None:
        if register <= _MAX_REGISTER:
            self.saved[register] = Saved(kind, value, expression)

    def restore(self, register: int) -> None:
        self.saved.pop(register, None)
        if register in self.initial:
            self.saved[register] = self.initial[register]

    def define(self, register: int | None, offset: int | None, expression: bytes = b"") -> None:
        old_register, old_offset, old_expression = self.cfa
        if old_expression and (register is None or offset is None):
            raise ValueError("a rule that is half an expression")
        self.cfa = (
            old_register if register is None else register,
            old_offset if offset is None else offset,
            expression,
        )

    def remember(self) -> None:
        if len(self.remembered) >= _MAX_REMEMBERED:
            raise ValueError("too many remembered rows")
        self.remembered.append((self.cfa, dict(self.saved)))

    def recall(self) -> None:
        self.cfa, self.saved = self.remembered.pop()

    def advance(self, distance: int) -> None:
        self.before = self.location
        self.location += distance

    def run(self, program: bytes, until: int) -> None:
        # The instructions for an address come before the first advance beyond it.
        at = 0
        while at < len(program) and self.location <= until:
            byte = program[at]
            at += 1
            operand = byte & _OPERAND
            if byte >= _RESTORE:
                self.restore(operand)
            elif byte >= _OFFSET:
                value, at = uleb128(program, at)
                self.save(operand, AT_OFFSET, value * self._data_alignment)
            elif byte >= _ADVANCE:
                self.advance(operand * self._code_alignment)
            else:
                at = self._extended(byte, program, at)

    def _extended(self, operation: int, program: bytes, at: int) -> int:
        if operation not in _INSTRUCTIONS:
            raise ValueError("an unknown instruction")
        operands, effect = _INSTRUCTIONS[operation]
        numbers = []
        expression = b""
        for operand in operands:
            if operand in "124":
                end = at + int(operand)
                value = int.from_bytes(program[at:end], "little") * self._code_alignment
            elif operand == "b":
                value, at = uleb128(program, at)
                end = at + value
                expression = program[at:end]
                if value > _MAX_EXPRESSION_BYTES:
                    raise ValueError("an expression that is too long")
            else:
                value, end = (uleb128 if operand in "uf" else sleb128)(program, at)
                if operand in "fF":
                    value *= self._data_alignment
            if end > len(program):
                raise IndexError("an instruction that is cut short")
            numbers.append(value)
            at = end
        effect(self, numbers, expression)
        return at


_Effect = Callable[[_State, list[int], bytes], object]

# Operands: 1, 2, 4: bytes, in units of the code alignment; u, s: LEB128; f, F: the same in
# units of the data alignment; b: an expression.
_INSTRUCTIONS: Final[dict[int, tuple[str, _Effect]]] = {
    0x00: ("", lambda _s, _n, _b: None),  # nothing
    **{
        0x02 + place: (width, lambda s, n, _b: s.advance(n[0])) for place, width in enumerate("124")
    },
    0x05: ("uf", lambda s, n, _b: s.save(n[0], AT_OFFSET, n[1])),
    0x06: ("u", lambda s, n, _b: s.restore(n[0])),
    0x07: ("u", lambda s, n, _b: s.save(n[0], UNDEFINED)),
    0x08: ("u", lambda s, n, _b: s.saved.pop(n[0], None)),
    0x09: ("uu", lambda s, n, _b: s.save(n[0], REGISTER, n[1])),
    0x0A: ("", lambda s, _n, _b: s.remember()),
    0x0B: ("", lambda s, _n, _b: s.recall()),
    0x0C: ("uu", lambda s, n, _b: s.define(n[0], n[1])),
    0x0D: ("u", lambda s, n, _b: s.define(n[0], None)),
    0x0E: ("u", lambda s, n, _b: s.define(None, n[0])),
    0x0F: ("b", lambda s, _n, b: s.define(0, 0, b)),
    0x10: ("ub", lambda s, n, b: s.save(n[0], AT_EXPRESSION, expression=b)),
    0x11: ("uF", lambda s, n, _b: s.save(n[0], AT_OFFSET, n[1])),
    0x12: ("uF", lambda s, n, _b: s.define(n[0], n[1])),
    0x13: ("F", lambda s, n, _b: s.define(None, n[0])),
    0x14: ("uf", lambda s, n, _b: s.save(n[0], OFFSET, n[1])),
    0x15: ("uF", lambda s, n, _b: s.save(n[0], OFFSET, n[1])),
    0x16: ("ub", lambda s, n, b: s.save(n[0], EXPRESSION, expression=b)),
    # Pointer authentication: readers of return addresses strip it anyway.
    0x2C: ("", lambda _s, _n, _b: None),
    0x2D: ("", lambda _s, _n, _b: None),
    0x2E: ("u", lambda _s, _n, _b: None),  # size of the arguments on the stack
}
