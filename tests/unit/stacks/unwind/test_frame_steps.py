"""Single steps, and walks of AArch64 stacks, on tables and stacks made by hand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.stacks.mappings import Mapping
from otel_gpu.stacks.symbols.elf_file import LoadSegment
from otel_gpu.stacks.unwind.cfi_rows import (
    AT_EXPRESSION,
    AT_OFFSET,
    EXPRESSION,
    OFFSET,
    REGISTER,
    UNDEFINED,
    CfiRow,
    Saved,
)
from otel_gpu.stacks.unwind.frame_steps import (
    AARCH64,
    BEGINNING,
    X86_64,
    StackCopy,
    UnwoundFrame,
    caller,
    follows_call,
)
from otel_gpu.stacks.unwind.unwinder import Registers, Unwinder

SP = 0x7FFF_0000
RA = {16: Saved(AT_OFFSET, -8)}
FRAME = UnwoundFrame(0x400, {7: SP, 6: SP + 32, 3: 0x33})


def row(register=7, offset=16, saved=RA, expression=b"", number=16, *, signal=False):
    return CfiRow(register, offset, expression, saved, number, signal)


def copy(*words, returns=()):
    content = struct.pack(f"<{len(words)}Q", *words)
    return StackCopy(SP, content, lambda _: None, dict(returns))


def step(made, *words, frame=FRAME):
    return caller(X86_64, made, frame, copy(*words))


@pytest.mark.parametrize(
    ("made", "registers"),
    [
        pytest.param(row(), {7: SP + 16, 6: SP + 32, 3: 0x33}, id="kept"),
        pytest.param(
            row(saved={**RA, 3: Saved(AT_OFFSET, -16)}), {7: SP + 16, 6: SP + 32, 3: 11}, id="saved"
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(AT_OFFSET, -24)}), {7: SP + 16, 6: SP + 32, 3: 0x33},
            id="saved below the stack pointer: put back already",
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(AT_OFFSET, 64)}), {7: SP + 16, 6: SP + 32},
            id="saved beyond the copy",
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(OFFSET, -4)}), {7: SP + 16, 6: SP + 32, 3: SP + 12},
            id="a distance from the CFA",
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(AT_EXPRESSION, 0, b"\x77\x00")}),
            {7: SP + 16, 6: SP + 32, 3: 11}, id="where an expression says",
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(EXPRESSION, 0, b"\x23\x01")}),
            {7: SP + 16, 6: SP + 32, 3: SP + 17}, id="what an expression says of the CFA",
        ),
        pytest.param(
            row(saved={**RA, 12: Saved(REGISTER, 3)}),
            {7: SP + 16, 6: SP + 32, 3: 0x33, 12: 0x33}, id="in another register",
        ),
        pytest.param(
            row(saved={**RA, 3: Saved(UNDEFINED), 12: Saved(REGISTER, 13)}),
            {7: SP + 16, 6: SP + 32}, id="lost",
        ),
        pytest.param(
            row(saved={**RA, 7: Saved(OFFSET, 8)}),
            {7: SP + 24, 6: SP + 32, 3: 0x33}, id="a stack pointer that is not the CFA",
        ),
    ],
)  # fmt: skip
def test_each_way_to_find_a_register_of_the_caller(made, registers):
    """What is not known is left out, and never made up."""
    assert step(made, 11, 0x22) == UnwoundFrame(0x21, registers)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        pytest.param(row(register=8), (11, 0x22), id="a CFA by a register that is not known"),
        pytest.param(row(expression=b"\x78\x00"), (11, 0x22), id="in an expression too"),
        pytest.param(row(number=5), (11, 0x22), id="a return address in an unknown place"),
        pytest.param(row(saved={}), (11, 0x22), id="no return address"),
        pytest.param(row(offset=-8), (11, 0x22), id="a CFA below the stack"),
        pytest.param(row(offset=24), (11, 0x22), id="beyond the copy"),
        pytest.param(row(offset=15), (11, 0x22), id="between two words"),
    ],
)
def test_a_caller_that_cannot_be_found_is_none(made, words):
    """A step gives all that a walk needs, or nothing."""
    assert step(made, *words) is None


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (row(saved={16: Saved(UNDEFINED)}), (11, 0x22)),
        (row(), (11, 0)),
    ],
)
def test_the_first_function_of_a_thread_has_no_caller(made, words):
    """The tables say so, or the word where its return address would be."""
    assert step(made, *words) is BEGINNING


def test_what_a_signal_interrupted_is_looked_up_at_its_own_address():
    """It called nobody; and its stack may be below the signal's."""
    saved = {16: Saved(AT_OFFSET, -8), 7: Saved(AT_OFFSET, -16)}

    assert step(row(saved=saved, signal=True), 0x1000, 0x22) == UnwoundFrame(
        0x22, {7: 0x1000, 6: SP + 32, 3: 0x33}
    )


def test_an_expression_may_ask_for_the_address():
    """Which goes by the number of the return address, on x86-64."""
    assert step(row(expression=b"\x80\x00\x77\x10\x16\x13"), 11, 0x22) == UnwoundFrame(
        0x21, {7: SP + 16, 6: SP + 32, 3: 0x33}
    )


@pytest.mark.parametrize(
    ("address", "size", "expected"),
    [
        (SP, 8, 0x8877_6655_4433_2211),
        (SP + 1, 1, 0x22),
        (SP + 4, 4, 0x8877_6655),
        (SP + 4, 8, None),
        (SP + 8, 8, None),
        (SP - 8, 8, None),
        (SP, 0, None),
        (SP, 9, None),
        (0, 8, None),
    ],
)
def test_a_copy_is_not_read_outside(address, size, expected):
    """Nor across two words; what was read is noted."""
    stack = copy(0x8877_6655_4433_2211)

    assert stack.read(address, size) == expected
    assert stack.used == ([] if expected is None else [0])


VALUES = st.integers(-(1 << 64), 1 << 64)
SAVED = st.builds(Saved, st.integers(0, 6), VALUES, st.binary(max_size=6))


@given(
    st.builds(
        CfiRow,
        st.integers(0, 31),
        VALUES,
        st.binary(max_size=12),
        st.dictionaries(st.integers(0, 31), SAVED, max_size=5),
        st.sampled_from([16, 30]),
        st.booleans(),
    ),
    st.lists(st.integers(0, (1 << 64) - 1), max_size=8),
    st.sampled_from([(X86_64, 7), (AARCH64, 31)]),
)
def test_no_row_harms(made, words, architecture):
    """Whatever a file says: a caller, the beginning, or none."""
    architecture, register = architecture
    frame = caller(architecture, made, UnwoundFrame(0x400, {register: SP}), copy(*words))

    assert frame is None or frame is BEGINNING or register in frame.registers


class Memory:
    """A file whose code is at 0x1000 to 0x2000 and whose tables follow, in place of an ELF file."""

    machine = 183
    segments = (LoadSegment(0x1000, 0, 0x1000, 0x1000, executable=True),)
    eh_frame_header = 0x2000

    def __init__(self, functions, code=b""):
        cie = struct.pack("<I", 0) + bytes.fromhex("01 7a5200 04 78 1e 01 1b 0c1f00")
        entries = self._with_length(cie)
        rows = []
        base = 0x2000 + 12 + 8 * len(functions)
        for start, size, program in functions:
            at = base + len(entries)
            rows.append((start - 0x2000, at - 0x2000))
            body = struct.pack("<Iii", at + 4 - base, start - at - 8, size) + b"\0"
            entries += self._with_length(body + bytes.fromhex(program))
        table = b"".join(struct.pack("<ii", *row) for row in rows)
        head = b"\x01\x1b\x03\x3b" + struct.pack("<iI", 0, len(functions))
        self.content = code.ljust(0x1000, b"\0") + head + table + entries

    @staticmethod
    def _with_length(body):
        body += bytes(-len(body) % 4)
        return struct.pack("<I", len(body)) + body

    def read(self, address, size_bytes):
        at = address - 0x1000
        return memoryview(self.content)[at : at + size_bytes] if at >= 0 else memoryview(b"")

    def find(self, address):
        mapping = Mapping(0xAAAA_0000_1000, 0xAAAA_0000_2000, 0, "/lib.so", self, 0xAAAA_0000_0000)
        return mapping if mapping.start <= address < mapping.end else None


def at(offset):
    return 0xAAAA_0000_0000 + offset


SIGNED = 0x0023 << 48
# Without a frame; stp x29, x30, [sp, #-32]!; the same with a frame pointer; a first function.
FUNCTIONS = [
    (0x1100, 0x40, ""),
    (0x1200, 0x40, "2d 41 0e 20 9d 04 9e 03"),
    (0x1300, 0x40, "41 0e 20 9d 04 9e 03 41 0c 1d 20"),
    (0x1400, 0x40, "07 1e"),
]


def test_an_aarch64_stack_is_walked():
    """
    The innermost function left its return address in the link register; the signatures of the
    others are taken off.
    """
    stack = struct.pack(
        "<10Q",
        *(SP + 32, SIGNED | at(0x1320), 0, 0),  # frame at 0x1200, saved by it
        *(0, at(0x1410) | SIGNED, 0, 0),  # frame at 0x1300
        *(0, 0),
    )
    registers = Registers(at(0x1110), SP, SP + 999, at(0x1220))
    walk = Unwinder(AARCH64).unwind(registers, stack, Memory(FUNCTIONS).find, {})

    assert walk.addresses == (at(0x1110), at(0x1220), at(0x1320), at(0x1410))
    assert (walk.complete, walk.method) == (True, "eh_frame")
    assert walk.stack_pointers == (SP, SP, SP + 32, SP + 64)


def test_a_link_register_holds_the_return_address_of_one_function_only():
    """A second function without a frame would be its own caller."""
    registers = Registers(at(0x1110), SP, 0, at(0x1120))
    walk = Unwinder(AARCH64).unwind(registers, bytes(64), Memory(FUNCTIONS).find, {})

    assert walk.addresses == (at(0x1110), at(0x1120))
    assert not walk.complete


def test_aarch64_frame_records_are_followed_to_the_end():
    """
    They lie at the bottom of frames, so the stack pointer of the caller stays unknown, and no
    row that needs it is used.
    """
    code = bytearray(0x1000)
    for offset in (0x11C, 0x21C, 0x31C):
        code[offset : offset + 4] = (0x9400_0010).to_bytes(4, "little")  # bl
    stack = struct.pack(
        "<8Q", *(SP + 32, at(0x1220) | SIGNED, 0, 0), *(SP + 48, at(0x1320)), *(0, at(0x1410))
    )
    registers = Registers(at(0x1050), SP, SP)
    find = Memory(FUNCTIONS, bytes(code)).find
    walk = Unwinder(AARCH64).unwind(registers, stack, find, {})

    # 0x1410 does not follow a call.
    assert walk.addresses == (at(0x1050), at(0x1220), at(0x1320))
    assert (walk.complete, walk.method) == (False, "frame_pointer")
    assert walk.stack_pointers == ()


@pytest.mark.parametrize(
    ("architecture", "code", "expected"),
    [
        (X86_64, "90 90 e8 01 02 03 04", True),
        (X86_64, "90 90 90 90 90 ff d0", True),
        (X86_64, "90 90 90 90 41 ff d4", True),
        (X86_64, "90 90 90 90 ff 50 10", True),
        (X86_64, "90 ff 15 01 02 03 04", True),
        (X86_64, "ff 94 c3 01 02 03 04", True),
        (X86_64, "90 90 90 ff 54 c3 10", True),
        (X86_64, "90 90 e9 01 02 03 04", False),
        (X86_64, "90 90 90 90 90 ff e0", False),
        (X86_64, "90 90 90 90 90 90 c3", False),
        (X86_64, "c3", False),
        (AARCH64, "00 00 00 94", True),
        (AARCH64, "ff ff ff 97", True),
        (AARCH64, "00 00 3f d6", True),
        (AARCH64, "1f 09 3f d6", True),
        (AARCH64, "00 00 00 14", False),
        (AARCH64, "c0 03 5f d6", False),
        (AARCH64, "00 00", False),
    ],
)
def test_a_return_address_comes_after_a_call(architecture, code, expected):
    """Direct, through a register, through memory; a jump is no call."""
    code = bytes.fromhex(code)
    image = Memory([])
    image.content = code

    assert follows_call(architecture, image, 0x1000 + len(code)) is expected
