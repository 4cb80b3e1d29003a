"""
DWARF expressions: small stack programs that compute the location of a register.

Call frame information uses them where "register plus offset" is not enough: in stubs of the procedure
linkage table, with realigned stacks, in signal frames. They come from untrusted files, so steps and
values are bounded. An unknown register, memory outside of the copy, or an address of the process ends a
program without a result.
"""

import operator
import struct
from collections.abc import Callable, Mapping
from typing import Final

from otel_gpu.stacks.unwind.leb128 import sleb128, uleb128

_WORD: Final = (1 << 64) - 1
_SIGN: Final = 1 << 63
# The longest one in practice has 9 steps.
_MAX_STEPS: Final = 64
_MAX_VALUES: Final = 32

_DEREF, _PICK, _PLUS_UCONST = 0x06, 0x15, 0x23
_BRA, _SKIP = 0x28, 0x2F
_LIT0, _LIT31, _BREG0, _BREG31, _BREGX = 0x30, 0x4F, 0x70, 0x8F, 0x92
_DEREF_SIZE = 0x94

# Of the constants from 1 byte without a sign to 8 bytes with one, and those of any size.
_CONSTANTS: Final = {0x08 + number: form for number, form in enumerate("BbHhIiQqus")}
# What follows an operation, for the struct module; u, s: LEB128.
_OPERANDS: Final = _CONSTANTS | {
    **dict.fromkeys((_PLUS_UCONST, _BREGX), "u"),
    **dict.fromkeys((_PICK, _DEREF_SIZE), "B"),
    **dict.fromkeys((_BRA, _SKIP), "h"),
    **dict.fromkeys(range(_BREG0, _BREG31 + 1), "s"),
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
    0x96: lambda _: None,  # nop
}


def evaluate(
    program: bytes,
    registers: Mapping[int, int],
    read: Callable[[int, int], int | None],
    *initial: int,
) -> int | None:
    """
    Return the result of an expression in 64 bits, or None.

    ``registers`` are the known ones by DWARF number, ``read`` returns a value in memory by address and
    size in bytes, and ``initial`` is on the stack at the start.
    """
    values = [*initial]
    at = 0
    try:
        for _ in range(_MAX_STEPS):
            if at >= len(program):
                return values[-1]
            operation = program[at]
            operand, at = _operand(operation, program, at + 1)
            if operation in _BINARY:
                right = values.pop()
                values.append(int(_BINARY[operation](values.pop(), right)) & _WORD)
            elif operation in _UNARY:
                values.append(_UNARY[operation](values.pop()) & _WORD)
            elif operation in _REARRANGING:
                _REARRANGING[operation](values)
            elif operation in (_BRA, _SKIP):
                at += operand if operation == _SKIP or values.pop() else 0
            elif operation == _BREGX:
                offset, at = sleb128(program, at)
                values.append(registers[operand] + offset & _WORD)
            else:
                values.append(_pushed(operation, operand, values, registers, read) & _WORD)
            if len(values) > _MAX_VALUES or at < 0:
                break
    except (ArithmeticError, LookupError, ValueError, struct.error):
        pass
    return None


def _operand(operation: int, program: bytes, at: int) -> tuple[int, int]:
    # With the position of the next instruction.
    form = _OPERANDS.get(operation)
    if form is None:
        return 0, at
    if form in "us":
        return (uleb128 if form == "u" else sleb128)(program, at)
    packed = struct.Struct(f"<{form}")
    return packed.unpack_from(program, at)[0], at + packed.size


def _pushed(
    operation: int,
    operand: int,
    values: list[int],
    registers: Mapping[int, int],
    read: Callable[[int, int], int | None],
) -> int:
    if operation in (_DEREF, _DEREF_SIZE):
        value = read(values.pop(), 8 if operation == _DEREF else operand)
        if value is None:
            raise ValueError("memory that was not copied")
        return value
    if operation == _PICK:
        return values[-1 - operand]
    if operation == _PLUS_UCONST:
        return values.pop() + operand
    if _BREG0 <= operation <= _BREG31:
        return registers[operation - _BREG0] + operand
    if _LIT0 <= operation <= _LIT31:
        return operation - _LIT0
    if operation in _CONSTANTS:
        return operand
    raise ValueError("an operation that call frame information cannot contain")
