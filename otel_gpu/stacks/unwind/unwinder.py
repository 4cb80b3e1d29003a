"""
Walks native stacks from registers and a copy of the stack.

How a walk goes
---------------

Each frame has an address, and the tables of its file contain the positions of its return address and
its caller's registers in the copy (cfi.py). A return address is that of the instruction after the call;
if the called function never returns, that is in another function. So the byte before is looked up. A
function that a signal interrupted has made no call, so its address itself counts. It appears among the
addresses plus 1, so that "the byte before" is right for all but the first.

Registers other than the stack and the frame pointer are not followed, as few rows use them. A row that
needs more than those two and a constant takes one general step (frame_steps.py); if it needs a register
that was not followed, the walk is repeated with all of them.

Without tables (generated code, files without them), the frame pointer is followed if it points into the
copy and the word above is the address after a call. Code that uses the register for a variable can look
the same, and a function that has not set it yet hides its caller: so the method of such a stack is ``frame_pointer``.

A walk is complete when it reaches a function without a caller by the tables (``_start``,
a thread's beginning), to a return address of 0, or, by frame pointers, to a frame pointer of 0.
"""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from otel_gpu.stacks import mappings
from otel_gpu.stacks.read_budget import FileWork
from otel_gpu.stacks.unwind.cached_suffixes import CachedSuffix
from otel_gpu.stacks.unwind.frame_steps import (
    AARCH64,
    BEGINNING,
    X86_64,
    Architecture,
    StackCopy,
    UnwoundFrame,
    caller,
)
from otel_gpu.stacks.unwind.rules import (
    BY_FRAME_POINTER,
    BY_STACK_POINTER,
    FRAME_RECORD,
    GENERAL,
    NO_CODE,
    NOWHERE,
    OUTERMOST,
    FileRules,
    Rules,
    SameRule,
)
from otel_gpu.wire.frames import NativeStack, UnwindMethod

MAX_FRAMES: Final = 256
"""Most frames of a walk; a longer one is incomplete."""

_HOST: Final = AARCH64 if platform.machine() == "aarch64" else X86_64
RETURN_ADDRESS_BYTES: Final = 0 if _HOST is AARCH64 else 8
"""Bytes that a call pushes below the caller's stack pointer."""
_UNKNOWN: Final = -1
# Sources of the frame pointer, besides a position in the copy.
_REGISTER: Final = -1
_NOTED: Final = -2
# The trampoline of uretprobes pushes three registers before it enters the kernel.
_TRAMPOLINE_BYTES: Final = (-8, 0, 8, 16)


class Registers(NamedTuple):
    """User-space registers of a thread; ``link_register`` is 0 except on AArch64."""

    instruction_pointer: int
    stack_pointer: int
    frame_pointer: int
    link_register: int = 0


class Unwinder:
    """
    Walks stacks of any number of processes, and caches their rules.

    Args:
        architecture: The processor that the processes run on.
        work: The budget for reading tables.
    """

    def __init__(self, architecture: Architecture = _HOST, work: FileWork | None = None) -> None:
        self._architecture = architecture
        self._rules = Rules(architecture, work)

    def unwind(
        self,
        registers: Registers,
        stack: bytes | memoryview,
        find: Callable[[int], mappings.Mapping | None],
        returns: Mapping[int, int],
    ) -> NativeStack:
        """
        Return the code addresses of a thread, innermost first.

        No content of the stack (from the stack pointer on) or of files raises an error. ``find``
        returns the executable mapping of an address; ``returns`` are return addresses that uretprobes
        replaced, by their address on the stack.
        """
        self._rules.begin()
        copy = StackCopy(origin=registers.stack_pointer, content=stack, find=find, returns=returns)
        return _Walk(self._architecture, self._rules, copy).run(registers)

    def unwind_to(
        self,
        suffixes: Mapping[int, Sequence[CachedSuffix]],
        registers: Registers,
        stack: bytes | memoryview,
        find: Callable[[int], mappings.Mapping | None],
    ) -> tuple[NativeStack, CachedSuffix | None, Sequence[tuple[int, CachedSuffix]]]:
        """
        Unwind as ``unwind``, but stop at one of these suffixes.

        Returns the stack, the suffix, and without one, new suffixes with the address of each. The
        result depends on more than the ``words`` of the stack.
        """
        self._rules.begin()
        copy = StackCopy(origin=registers.stack_pointer, content=stack, find=find, returns={})
        walk = _Walk(self._architecture, self._rules, stack=copy, suffixes=suffixes)
        found = walk.run(registers)
        new = (
            () if walk.suffix or not found.complete else tuple(self._suffixes_of(walk, found, copy))
        )
        return found, walk.suffix, new

    def _suffixes_of(
        self, walk: "_Walk", found: NativeStack, copy: StackCopy
    ) -> Iterator[tuple[int, CachedSuffix]]:
        # From the callers 1, 2, 4, … frames out: walks that join further in share these too.
        places = list(zip(found.addresses, found.stack_pointers, walk.frame_pointers, strict=False))
        for address, stack_pointer, frame_pointer in (
            places[1 << power]
            for power in range(len(places).bit_length())
            if 1 << power < len(places)
        ):
            words = copy.words[(stack_pointer - copy.origin) >> 3 :]
            part = _Walk(
                self._architecture,
                self._rules,
                StackCopy(origin=stack_pointer, content=words, find=copy.find, returns={}),
            )
            rest = part.run(Registers(address, stack_pointer, frame_pointer), is_caller=True)
            if rest.complete and part.is_plain:
                yield (
                    address - 1,
                    CachedSuffix(
                        walk=rest,
                        words=words,
                        stack_pointer=stack_pointer,
                        frame_pointer=frame_pointer,
                    ),
                )


class _Walk:
    def __init__(
        self,
        architecture: Architecture,
        rules: Rules,
        stack: StackCopy,
        suffixes: Mapping[int, Sequence[CachedSuffix]] | None = None,
    ) -> None:
        self._architecture = architecture
        self._rules = rules
        self._stack = stack
        self._addresses: list[int] = []
        self._stack_pointers: list[int] = []
        self._knows_stack_pointers = True
        self._is_complete = False
        # Number of addresses when a frame pointer was last followed.
        self._last_record = 0
        self._uses_frame_pointer = False
        self._suffixes = suffixes or {}
        self.suffix: CachedSuffix | None = None
        # The frame pointer in each frame, unless the walk was a careful one.
        self.frame_pointers: list[int] = []
        # Whether each step was "a register plus a constant", at any address of the stack.
        self.is_plain = True

    def run(self, registers: Registers, *, is_caller: bool = False) -> NativeStack:
        registers = self._returned(registers)
        if not self._quickly(registers, is_caller=is_caller):
            self.is_plain = False
            self.frame_pointers.clear()
            self._addresses.clear()
            self._stack_pointers.clear()
            self._last_record = 0
            self._carefully(registers)
        addresses = self._addresses or [registers.instruction_pointer]
        method = UnwindMethod.EH_FRAME
        if self._last_record:
            method = UnwindMethod.FRAME_POINTER
        elif len(addresses) == 1 and not self._is_complete:
            method = UnwindMethod.NONE
        return NativeStack(
            addresses=tuple(addresses),
            complete=self._is_complete,
            method=method,
            words=tuple(self._stack.used),
            uses_frame_pointer=self._uses_frame_pointer,
            stack_pointers=tuple(self._stack_pointers) if self._knows_stack_pointers else (),
        )

    def _returned(self, registers: Registers) -> Registers:
        # A thread can be leaving a probed function, in the trampoline.
        stack = self._stack
        if stack.returns:
            mapping = stack.find(registers.instruction_pointer)
            if mapping is not None and mapping.path == mappings.UPROBES:
                for distance in _TRAMPOLINE_BYTES:
                    place = registers.stack_pointer + distance
                    if place in stack.returns:
                        return registers._replace(
                            instruction_pointer=stack.returns[place], stack_pointer=place + 8
                        )
        return registers

    def _quickly(  # noqa: C901, PLR0912, PLR0915 -- one loop, since calls would double its time
        self, registers: Registers, *, is_caller: bool
    ) -> bool:
        # False if it needs registers that are not followed here. Stack locations are positions in
        # `words`; only the frame pointer, which can have any value, is an address.
        stack, addresses, find = self._stack, self._addresses, self._stack.find
        pointers = self._stack_pointers
        words, origin, returns = stack.words, stack.origin, stack.returns
        count = len(words)
        use = stack.used.append
        mask = self._architecture.address_mask
        seen: list[tuple[int, int, int, FileRules | SameRule]] = []
        start = end = bias = 0
        rules: FileRules | SameRule = NOWHERE
        sp = (registers.stack_pointer - origin) >> 3
        fp = registers.frame_pointer
        # Most functions keep a variable in it. So its saved position counts as used only when it is
        # needed: walks that differ in a variable are equal.
        fp_from = _REGISTER
        lookup = address = registers.instruction_pointer
        if is_caller:
            lookup -= 1
        suffixes, frame_pointers = self._suffixes, self.frame_pointers
        for _ in range(MAX_FRAMES):
            if lookup in suffixes and addresses:
                base = origin + 8 * sp
                for suffix in suffixes[lookup]:
                    if suffix.is_at(words[sp:], fp - base):
                        addresses += suffix.addresses
                        pointers += [base + 8 * place for place in suffix.stack_pointers]
                        self.suffix, self._is_complete = suffix, True
                        return True
            if not start <= lookup < end:
                for known in seen:
                    if known[0] <= lookup < known[1]:
                        start, end, bias, rules = known
                        break
                else:
                    mapping = find(lookup)
                    if mapping is None:
                        break
                    start, end, bias = mapping.start, mapping.end, mapping.bias
                    rules = self._rules.of(mapping)
                    seen.append((start, end, bias, rules))
            kind, to_cfa, to_return_address, to_frame_pointer = rules[lookup - bias]
            if kind == BY_STACK_POINTER:
                cfa = sp + to_cfa
            elif kind == BY_FRAME_POINTER:
                fp_from = self._note_use(fp_from)
                distance = fp - origin
                # Nothing is read through a frame pointer that is misaligned.
                cfa = _UNKNOWN if distance & 7 else (distance >> 3) + to_cfa
            elif kind == NO_CODE:
                break
            else:
                addresses.append(address)
                pointers.append(origin + 8 * sp)
                frame_pointers.append(fp)
                if kind == FRAME_RECORD and not self._architecture.record_is_at_top:
                    return False
                fp_from = self._note_use(fp_from)
                frame = self._step(rules, lookup - bias, self._frame(registers, lookup, sp, fp))
                if frame is None:
                    return self._is_complete or kind != GENERAL
                lookup, address = frame.lookup, frame.lookup + 1
                sp, fp = self._positions(frame)
                continue
            addresses.append(address)
            pointers.append(origin + 8 * sp)
            frame_pointers.append(fp)
            position = cfa + to_return_address
            if not sp <= position < count:
                break
            address = words[position]
            use(position)
            if returns:
                address = stack.replaced(origin + 8 * position, address)
            if address > mask:
                address &= mask
            if not address:
                self._is_complete = True
                break
            if to_frame_pointer:
                saved = cfa + to_frame_pointer
                # Below the stack pointer: the function has restored it already.
                if saved >= sp:
                    if saved < count:
                        fp, fp_from = words[saved], saved
                    else:
                        fp, fp_from = _UNKNOWN, _NOTED
            sp = cfa
            lookup = address - 1
        return True

    def _note_use(self, fp_from: int) -> int:
        if fp_from >= 0:
            self._stack.used.append(fp_from)
        elif fp_from == _REGISTER:
            self._uses_frame_pointer = True
        return _NOTED

    def _carefully(self, registers: Registers) -> None:
        self._uses_frame_pointer = True
        sp = (registers.stack_pointer - self._stack.origin) >> 3
        frame = self._frame(registers, registers.instruction_pointer, sp, registers.frame_pointer)
        address = registers.instruction_pointer
        for _ in range(MAX_FRAMES):
            mapping = self._stack.find(frame.lookup)
            if mapping is None:
                break
            rules, place = self._rules.of(mapping), frame.lookup - mapping.bias
            if rules[place].kind == NO_CODE:
                break
            self._addresses.append(address)
            self._stack_pointers.append(frame.registers[self._architecture.stack_pointer])
            found = self._step(rules, place, frame)
            if found is None:
                break
            frame, address = found, found.lookup + 1

    def _frame(self, registers: Registers, lookup: int, sp: int, fp: int) -> UnwoundFrame:
        architecture = self._architecture
        known = {architecture.stack_pointer: self._stack.origin + 8 * sp}
        if fp != _UNKNOWN:
            known[architecture.frame_pointer] = fp
        if architecture.machine == AARCH64.machine and lookup == registers.instruction_pointer:
            known[architecture.return_address] = registers.link_register
        return UnwoundFrame(lookup, known)

    def _positions(self, frame: UnwoundFrame) -> tuple[int, int]:
        # A signal can have interrupted a function on another stack, beyond this one.
        distance = frame.registers[self._architecture.stack_pointer] - self._stack.origin
        sp, count = distance >> 3, len(self._stack.words)
        if distance & 7 or not 0 <= sp <= count:
            self._knows_stack_pointers = False
            sp = count
        return sp, frame.registers.get(self._architecture.frame_pointer, _UNKNOWN)

    def _step(
        self, rules: FileRules | SameRule, place: int, frame: UnwoundFrame
    ) -> UnwoundFrame | None:
        # The caller's frame; None at the end, complete or not.
        kind = rules[place].kind
        found: UnwoundFrame | None = None
        self.is_plain &= kind == OUTERMOST
        if kind == OUTERMOST:
            found = BEGINNING
        elif kind == FRAME_RECORD or (
            self._last_record and not self._architecture.record_is_at_top
        ):
            found = self._recorded(frame)
        else:
            row = rules.row(place)
            if row is not None:
                found = caller(self._architecture, row, frame, self._stack)
        self._is_complete = found is BEGINNING
        return None if self._is_complete else found

    def _recorded(self, frame: UnwoundFrame) -> UnwoundFrame | None:
        # By the two words at a frame pointer: the caller's frame pointer, and the return address.
        stack, architecture = self._stack, self._architecture
        fp = frame.registers.get(architecture.frame_pointer)
        if fp == 0 and self._last_record == len(self._addresses) - 1 > 0:
            return BEGINNING
        if fp is None or fp < frame.registers[architecture.stack_pointer]:
            return None
        caller_fp, address = stack.read(fp), stack.read(fp + 8)
        if caller_fp is None or address is None:
            return None
        address = stack.replaced(fp + 8, address) & architecture.address_mask
        if not address:
            return BEGINNING
        mapping = stack.find(address - 1)
        if mapping is None or not self._rules.of(mapping).follows_call(address - mapping.bias):
            return None
        self._last_record = len(self._addresses)
        # Otherwise it is only known to be above the record.
        self._knows_stack_pointers &= architecture.record_is_at_top
        known = {architecture.stack_pointer: fp + 16, architecture.frame_pointer: caller_fp}
        return UnwoundFrame(address - 1, known)
