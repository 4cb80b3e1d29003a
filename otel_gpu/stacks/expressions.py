"""
DWARF expressions: where a register was saved, as a small stack program.

Call frame information uses them where "register plus offset" does not do: in the stubs of
the procedure linkage table, behind realigned stacks, in signal frames. They come out of
files that anybody may have written, so a program is held to a number of steps and values,
and whatever it cannot have (a register that is not known, memory that was not copied, an
address of the process) ends it with nothing.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.stacks.leb128 import sleb128, uleb128

_WORD: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
# The longest that is in use has 9 steps.
_MAX_STEPS: Final = 64
_MAX_VALUES: Final = 32

_DEREF, _PICK, _PLUS_UCONST = 0x06, 0x15, 0x23
_BRA, _SKIP = 0x28, 0x2F
_LIT0, _LIT31, _BREG0, _BREG31, _BREGX = 0x30, 0x4F, 0x70, 0x8F, 0x92
_DEREF_SIZE, _NOP = 0x94, 0x96

# Width in bytes and sign of the constant that follows.
_CONSTANTS: Final = {
    0x08: (1, False),
    0x09: (1, True),
    0x0A: (2, False),
    0x0B: (2, True),
    0x0C: (4, False),
    0x0D: (4, True),
    0x0E: (8, False),
    0x0F: (8, True),
}
_LEB_CONSTANTS: Final = {0x10: uleb128, 0x11: sleb128}


def _signed(value: int) -> int:
    return value - (1 << 64) if value & _SIGN else value


def _divide(left: int, right: int) -> int:
    quotient = abs(_signed(left)) // abs(_signed(right))
    return quotient if (left ^ right) & _SIGN == 0 else -quotient


# Of the second value on the stack and the first.
_BINARY: Final[dict[int, Callable[[int, int], int]]] = {
    0x1A: operator.and_,
    0x1B: _divide,
    0x1C: operator.sub,
    0x1D: operator.mod,
    0x1E: operator.mul,
    0x21: operator.or_,
    0x22: operator.add,
    0x24: lambda left, right: left << right if right < 64 else 0,  # noqa: PLR2004 -- bits
    0x25: lambda left, right: left >> right if right < 64 else 0,  # noqa: PLR2004 -- bits
    0x26: lambda left, right: _signed(left) >> min(right, 63),
    0x27: operator.xor,
    0x29: lambda left, right: _signed(left) == _signed(right),
    0x2A: lambda left, right: _signed(left) >= _signed(right),
    0x2B: lambda left, right: _signed(left) > _signed(right),
    0x2C: lambda left, right: _signed(left) <= _signed(right),
    0x2D: lambda left, right: _signed(left) < _signed(right),
    0x2E: lambda left, right: _signed(left) != _signed(right),
}
_UNARY: Final[dict[int, Callable[[int], int]]] = {
    0x19: lambda value: abs(_signed(value)),
    0x1F: operator.neg,
    0x20: operator.invert,
}
_REARRANGING: Final[dict[int, Callable[[list[int]], object]]] = {
    0x12: lambda values: values.append(values[-1]),  # dup
    0x13: list.pop,  # drop
    0x14: lambda values: values.append(values[-2]),  # over
    0x16: lambda values: values.append(values.pop(-2)),  # swap
    0x17: lambda values: values.extend((values.pop(-3), values.pop(-2))),  # rot
}


def evaluate(
    program: bytes,
    registers: Mapping[int, int | None],
    read: Callable[[int, int], int | None],
    *initial: int,
) -> int | None:
    """
    Return the value that an expression leaves, in 64 bits; None if it leaves none.

    Args:
        program: The expression.
        registers: Values by DWARF number, of those that are known.
        read: Returns the value in memory at an address, of a size in bytes, or None.
        initial: What lies on the stack at the start.
    """
    try:
        return _Machine(program, registers, read, [*initial]).run()
    except (ArithmeticError, IndexError, ValueError):
        return None


class _Machine:
    def __init__(
        self,
        program: bytes,
        registers: Mapping[int, int | None],
        read: Callable[[int, int], int | None],
        values: list[int],
    ) -> None:
        self._program = program
        self._registers = registers
        self._read = read
        self._values = values
        self._at = 0

    def run(self) -> int:
        values = self._values
        for _ in range(_MAX_STEPS):
            if self._at >= len(self._program):
                return values[-1]
            self._step()
            if len(values) > _MAX_VALUES:
                break
        raise ValueError("too long")

    def _step(self) -> None:
        operation = self._program[self._at]
        self._at += 1
        values = self._values
        if operation in _BINARY:
            right = values.pop()
            values.append(int(_BINARY[operation](values.pop(), right)) & _WORD)
        elif operation in _UNARY:
            values.append(_UNARY[operation](values.pop()) & _WORD)
        elif operation in (_DEREF, _DEREF_SIZE):
            self._dereference(8 if operation == _DEREF else self._constant(1, signed=False))
        elif operation == _PLUS_UCONST:
            values.append(values.pop() + self._leb(uleb128) & _WORD)
        elif operation in (_BRA, _SKIP):
            self._branch(always=operation == _SKIP)
        elif operation in _REARRANGING:
            _REARRANGING[operation](values)
        elif operation != _NOP:
            values.append(self._pushed(operation) & _WORD)

    def _pushed(self, operation: int) -> int:
        if operation == _PICK:
            return self._values[-1 - self._constant(1, signed=False)]
        if _BREG0 <= operation <= _BREG31:
            return self._register(operation - _BREG0)
        if operation == _BREGX:
            return self._register(self._leb(uleb128))
        if _LIT0 <= operation <= _LIT31:
            return operation - _LIT0
        if operation in _CONSTANTS:
            size_bytes, signed = _CONSTANTS[operation]
            return self._constant(size_bytes, signed=signed)
        if operation in _LEB_CONSTANTS:
            return self._leb(_LEB_CONSTANTS[operation])
        raise ValueError("an operation that has no place in call frame information")

    def _register(self, register: int) -> int:
        value = self._registers.get(register)
        if value is None:
            raise ValueError("a register that is not known")
        return value + self._leb(sleb128)

    def _dereference(self, size_bytes: int) -> None:
        value = self._read(self._values.pop(), size_bytes)
        if value is None:
            raise ValueError("memory that was not copied")
        self._values.append(value)

    def _branch(self, *, always: bool) -> None:
        distance = self._constant(2, signed=True)
        if always or self._values.pop():
            self._at += distance
            if self._at < 0:
                raise ValueError("before the beginning")

    def _constant(self, size_bytes: int, *, signed: bool) -> int:
        data = self._program[self._at : self._at + size_bytes]
        if len(data) < size_bytes:
            raise ValueError("cut short")
        self._at += size_bytes
        return int.from_bytes(data, "little", signed=signed)

    def _leb(self, decode: Callable[[bytes, int], tuple[int, int]]) -> int:
        value, self._at = decode(self._program, self._at)
        return value
