"""Decodes the first instructions of x86-64 functions, to find probe sites (``probe_sites.py``)."""

from otel_gpu.capture.probes.probe_sites import SITE_BYTES, emulated
from otel_gpu.lean_imports import hollow

# These large enumerations of iced_x86 are not needed.
with hollow(*(f"iced_x86.{name}" for name in ("Code", "CpuidFeature", "MemorySize"))):
    from iced_x86 import (
        Decoder,
        FlowControl,
        Instruction,
        InstructionInfoFactory,
        Mnemonic,
        OpAccess,
        OpKind,
        Register,
        RegisterInfo,
    )

# Registers of arguments, and those that lead to the caller's frame.
_KEPT = {
    *(Register.RDI, Register.RSI, Register.RDX, Register.RCX, Register.R8, Register.R9),
    *(Register.RSP, Register.RBP),
}
_NO_WRITES = {OpAccess.NONE, OpAccess.READ, OpAccess.COND_READ, OpAccess.NO_MEM_ACCESS}
_OWN_MEMORY = {Register.NONE, Register.RIP, Register.RSP}
_NEAR = {OpKind.NEAR_BRANCH16, OpKind.NEAR_BRANCH32, OpKind.NEAR_BRANCH64}
_IN_NO_LOOP = {"push", "nop"}
_infos = InstructionInfoFactory()


def read_prologue(code: bytes, *, reads_stack: bool) -> tuple[str, int]:
    """
    Return the mnemonic of the first instruction, and the offset of a site behind it.

    The mnemonic is empty if the code cannot be decoded; the offset is 0 without a site.
    """
    instructions = list(Decoder(64, code, ip=0))
    if not instructions or not all(instructions):
        return "", 0
    first = str(instructions[0]).split()[0]
    for instruction in instructions:
        offset = instruction.ip
        if offset > SITE_BYTES:
            break
        if name := emulated(code[offset : offset + instruction.len]):
            knows_all = name in _IN_NO_LOOP or _stays_inside(instructions, len(code))
            return first, offset if knows_all and not _comes_back(instructions, offset) else 0
        if not _can_be_skipped(instruction, reads_stack=reads_stack):
            break
    return first, 0


def _can_be_skipped(instruction: Instruction, *, reads_stack: bool) -> bool:
    # Whether a BPF program behind the instruction sees the same state as one before it.
    if (
        instruction.flow_control != FlowControl.NEXT
        or instruction.is_privileged
        or instruction.has_rep_prefix
        or instruction.has_repne_prefix
    ):
        return False
    if not reads_stack and _grows_stack(instruction):
        return True
    info = _infos.info(instruction)
    return all(
        used.access in _NO_WRITES or RegisterInfo(used.register).full_register not in _KEPT
        for used in info.used_registers()
    ) and all(
        # An address from the caller can fault.
        memory.base in _OWN_MEMORY and not memory.index
        for memory in info.used_memory()
    )


def _grows_stack(instruction: Instruction) -> bool:
    # By a constant, or by pushing a constant.
    if instruction.mnemonic == Mnemonic.PUSH:
        return instruction.op0_kind not in {OpKind.REGISTER, OpKind.MEMORY}
    return (instruction.mnemonic, instruction.op0_register) == (
        Mnemonic.SUB,
        Register.RSP,
    ) and instruction.op1_kind not in {OpKind.REGISTER, OpKind.MEMORY}


def _comes_back(instructions: list[Instruction], offset: int) -> bool:
    # Whether a branch leads behind the start and not behind the offset.
    return any(
        0 < one.near_branch_target <= offset for one in instructions if one.op0_kind in _NEAR
    )


def _stays_inside(instructions: list[Instruction], size: int) -> bool:
    # Whether all branches into the function come from this code.
    for one in instructions:
        match one.flow_control:
            # To a part of the function at another address.
            case FlowControl.CONDITIONAL_BRANCH if not 0 <= one.near_branch_target < size:
                return False
            # Through a register or a table, maybe back into the function.
            case FlowControl.INDIRECT_BRANCH if (
                one.op0_kind != OpKind.MEMORY
                or one.memory_index
                or one.memory_base not in {Register.NONE, Register.RIP}
            ):
                return False
    return True
