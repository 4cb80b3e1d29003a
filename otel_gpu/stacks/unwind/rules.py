"""
Unwind rules: compact steps to the caller, cached for each address.

Most rows of call frame information are simple: the CFA is rsp or rbp plus a constant, the return
address is right below it, rbp was saved or not. Such a row is four small numbers, and addresses repeat.
So a walk is a dictionary lookup and two reads a frame; only the first one reads the tables.
"""

from bisect import bisect_right
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from otel_gpu.stacks import mappings
from otel_gpu.stacks.read_budget import FileWork, NotReadError
from otel_gpu.stacks.symbols.elf_file import ElfImage
from otel_gpu.stacks.unwind import cfi_rows
from otel_gpu.stacks.unwind.cfi import CallFrames
from otel_gpu.stacks.unwind.cfi_rows import CfiRow
from otel_gpu.stacks.unwind.frame_steps import Architecture, follows_call

# Kinds of rules. Only the first two have numbers.
BY_STACK_POINTER: Final = 0
BY_FRAME_POINTER: Final = 1
GENERAL: Final = 2
"""Use the whole row."""
FRAME_RECORD: Final = 3
"""No row: follow the frame pointer."""
OUTERMOST: Final = 4
"""It has no caller."""
NO_CODE: Final = 5
"""Not the address of an instruction, or without a caller to find."""

_MAX_OFFSET: Final = 1 << 31
# A rule takes some 70 bytes, a row up to 5,000.
_MAX_RULES: Final = 1 << 16
_ROW_WEIGHT: Final = 64
_MAX_ELF_FILES: Final = 512
# Bytes of tables for the rules of one walk. Most functions have less than 100; a hostile file could
# have 64 KB for each.
_MAX_WORK: Final = 256 << 10


class UnwindRule(NamedTuple):
    """
    The step from one address to its caller.

    In words of 8 bytes: the CFA relative to the register; the return address and the saved frame
    pointer relative to the CFA (0: the frame pointer was not saved).
    """

    kind: int
    cfa: int = 0
    return_address: int = 0
    frame_pointer: int = 0


class FileRules(dict[int, UnwindRule]):
    """The rules of one file by virtual address, made on first use."""

    def __init__(self, elf: ElfImage, rules: "Rules") -> None:
        super().__init__()
        self._elf = elf
        self._all = rules
        self._frames = CallFrames(elf)
        self._rows: dict[int, CfiRow | None] = {}
        # The starts of known rows in order, and their ends with their rules.
        self._begins: list[int] = []
        self._extents: list[tuple[int, UnwindRule]] = []

    @property
    def weight(self) -> int:
        """What it has of ``Rules.used``."""
        return len(self) + len(self._begins) + _ROW_WEIGHT * len(self._rows)

    def __missing__(self, address: int) -> UnwindRule:
        at = bisect_right(self._begins, address)
        if at and address < self._extents[at - 1][0]:
            rule = self[address] = self._extents[at - 1][1]
            self._all.used += 1
            return rule
        try:
            row = self._read(address)
        except NotReadError:
            return _NO_CODE
        if row is not None:
            rule = _reduced(self._all.architecture, row)
            rule = self._all.different.setdefault(rule, rule)
            self._begins.insert(at, row.begin)
            self._extents.insert(at, (row.end, rule))
            self._all.used += 1
        else:
            rule = _FRAME_RECORD if self._is_code(address) else _NO_CODE
        # Many addresses share few rules.
        rule = self[address] = self._all.different.setdefault(rule, rule)
        self._all.used += 1
        return rule

    def row(self, address: int) -> CfiRow | None:
        """Return the row of an address, or None."""
        if address not in self._rows:
            try:
                self._rows[address] = self._read(address)
            except NotReadError:
                return None
            self._all.used += _ROW_WEIGHT
        return self._rows[address]

    def follows_call(self, address: int) -> bool:
        """Whether a call precedes an address."""
        return self._is_code(address - 1) and follows_call(
            self._all.architecture, self._elf, address
        )

    def _read(self, address: int) -> CfiRow | None:
        if self._all.work > _MAX_WORK:
            raise NotReadError("this walk has read enough")
        before = self._frames.work
        with self._all.reading():
            row = self._frames.row(address)
        self._all.work += self._frames.work - before
        return row

    def _is_code(self, address: int) -> bool:
        return self._elf.machine == self._all.architecture.machine and any(
            segment.executable and 0 <= address - segment.address < segment.memory_bytes
            for segment in self._elf.segments
        )


class SameRule(dict[int, UnwindRule]):
    """One rule for all addresses of memory without a file."""

    def __init__(self, rule: UnwindRule) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, address: int) -> UnwindRule:
        return self._rule

    def row(self, address: int) -> None:
        """Return None: no tables."""

    def follows_call(self, address: int) -> bool:  # noqa: ARG002 -- as in FileRules
        """Whether it could be generated code, which is not readable."""
        return self._rule.kind == FRAME_RECORD


_GENERAL: Final = UnwindRule(GENERAL)
_FRAME_RECORD: Final = UnwindRule(FRAME_RECORD)
_NO_CODE: Final = UnwindRule(NO_CODE)
_OUTERMOST: Final = UnwindRule(OUTERMOST)
_GENERATED: Final = SameRule(_FRAME_RECORD)
NOWHERE: Final = SameRule(_NO_CODE)
"""The rules of addresses without code."""


class Rules:
    """
    The rules of all known files.

    ``used`` counts them, a row as several; ``different`` has each once. ``work`` is the bytes of tables
    that the present walk has read, and ``file_work`` the budget for reading them.
    """

    def __init__(self, architecture: Architecture, file_work: FileWork | None = None) -> None:
        self.architecture = architecture
        self._file_work = file_work or FileWork()
        self._mapping: mappings.Mapping | None = None
        self._files: dict[ElfImage, FileRules] = {}
        self.used = self.work = 0
        self.different: dict[UnwindRule, UnwindRule] = {}

    def begin(self) -> None:
        """Begin a walk with a new budget for tables; evict the rules if they are too many."""
        self.work = 0
        if self.used > _MAX_RULES or len(self._files) > _MAX_ELF_FILES:
            self._files.clear()
            self.different.clear()
            self.used = 0

    def of(self, mapping: mappings.Mapping) -> FileRules | SameRule:
        """Return the rules of a mapping, by ``address - mapping.bias``."""
        elf = mapping.elf
        if elf is None:
            # The replacement of a return address by a uretprobe has no caller.
            return NOWHERE if mapping.path == mappings.UPROBES else _GENERATED
        self._mapping = mapping
        rules = self._files.get(elf)
        if rules is None:
            self._forget_closed()
            rules = self._files[elf] = FileRules(elf, self)
        return rules

    def _forget_closed(self) -> None:
        # No process maps a closed file any more; opened again, it is another ``ElfImage``.
        for elf in [elf for elf in self._files if elf.closed]:
            self.used -= self._files.pop(elf).weight

    def reading(self) -> AbstractContextManager[None]:
        """Charge reads of the tables that ``of`` returned last to its process; see ``FileWork``."""
        mapping = self._mapping
        return self._file_work.reading(*(mapping.pid, mapping.path) if mapping else (0, ""))


def _reduced(architecture: Architecture, row: CfiRow) -> UnwindRule:
    stack_pointer, frame_pointer = architecture.stack_pointer, architecture.frame_pointer
    if row.return_register != architecture.return_address:
        return _GENERAL
    return_rule = row.saved.get(architecture.return_address)
    frame_rule = row.saved.get(frame_pointer)
    if return_rule is not None and return_rule.kind == cfi_rows.UNDEFINED:
        return _OUTERMOST
    if (
        return_rule is None
        or row.is_signal_frame
        or row.cfa_expression
        or row.cfa_register not in (stack_pointer, frame_pointer)
        or stack_pointer in row.saved
    ):
        return _GENERAL
    offsets = [row.cfa_offset, return_rule.value, frame_rule.value if frame_rule else 0]
    for saved in (return_rule, frame_rule):
        if saved is not None and (saved.kind != cfi_rows.AT_OFFSET or saved.value >= 0):
            return _GENERAL
    if any(offset % 8 or abs(offset) >= _MAX_OFFSET for offset in offsets):
        return _GENERAL
    kind = BY_STACK_POINTER if row.cfa_register == stack_pointer else BY_FRAME_POINTER
    return UnwindRule(kind, *(offset // 8 for offset in offsets))
