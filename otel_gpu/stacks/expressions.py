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

_DEREF, _DUP, _DROP, _OVER, _PICK, _SWAP, _ROT = 0x06, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
_CONSTU, _CONSTS = 0x10, 0x11
_ABS, _NEG, _NOT, _PLUS_UCONST = 0x19, 0x1F, 0x20, 0x23
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
    _ABS: lambda value: abs(_signed(value)),
    _NEG: operator.neg,
    _NOT: operator.invert,
}


def evaluate(
    program: bytes,
    registers: Mapping[int, int | None],
    read: Callable[[int, int], int | None],
    *initial: int,
) -> int | None:
    """
    Return the value that an expression leaves, in 64 bits.

    Args:
        program: The expression.
        registers: Values by DWARF number; missing or None: not known.
        read: Gives the value in memory at an address, of a size in bytes; None if there
            is nothing to read.
        initial: What lies on the stack at the start.

    Returns:
        None if the value cannot be had, or if the program is none.
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
        elif _BREG0 <= operation <= _BREG31:
            self._push_register(operation - _BREG0)
        elif operation == _BREGX:
            self._push_register(self._unsigned())
        elif operation in (_DEREF, _DEREF_SIZE):
            self._dereference(8 if operation == _DEREF else self._constant(1, signed=False))
        elif operation == _PLUS_UCONST:
            values.append(values.pop() + self._unsigned() & _WORD)
        elif operation in (_BRA, _SKIP):
            self._branch(always=operation == _SKIP)
        elif operation != _NOP and not self._push_constant(operation):
            self._rearrange(operation)

    def _push_constant(self, operation: int) -> bool:
        if _LIT0 <= operation <= _LIT31:
            value = operation - _LIT0
        elif operation in _CONSTANTS:
            size_bytes, signed = _CONSTANTS[operation]
            value = self._constant(size_bytes, signed=signed)
        elif operation == _CONSTU:
            value = self._unsigned()
        elif operation == _CONSTS:
            value = self._leb(sleb128)
        else:
            return False
        self._values.append(value & _WORD)
        return True

    def _rearrange(self, operation: int) -> None:
        values = self._values
        if operation == _DUP:
            values.append(values[-1])
        elif operation == _DROP:
            values.pop()
        elif operation == _OVER:
            values.append(values[-2])
        elif operation == _PICK:
            values.append(values[-1 - self._constant(1, signed=False)])
        elif operation == _SWAP:
            values[-2:] = values[-1], values[-2]
        elif operation == _ROT:
            values[-3:] = values[-1], values[-3], values[-2]
        else:
            raise ValueError("an operation that has no place in call frame information")

    def _push_register(self, register: int) -> None:
        value = self._registers.get(register)
        if value is None:
            raise ValueError("a register that is not known")
        self._values.append(value + self._leb(sleb128) & _WORD)

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

    def _unsigned(self) -> int:
        return self._leb(uleb128)

    def _leb(self, decode: Callable[[bytes, int], tuple[int, int]]) -> int:
        value, self._at = decode(self._program, self._at)
        return value
