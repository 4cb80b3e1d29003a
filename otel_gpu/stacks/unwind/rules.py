"""
Rules: what to do at an address to get to its caller, short enough to keep for each address.

Most rows of call frame information say the same few things: the CFA is rsp or rbp plus a
constant, the return address is right below it, rbp was saved or not. Such a row is four small
numbers, and addresses come again and again. So a walk is a dictionary look-up and two reads a
frame, and reading the tables costs only the first time.
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

# What to do at an address. Only the first two have numbers.
BY_STACK_POINTER: Final = 0
BY_FRAME_POINTER: Final = 1
GENERAL: Final = 2
"""Take the whole row."""
FRAME_RECORD: Final = 3
"""There is no row: follow the frame pointer."""
OUTERMOST: Final = 4
"""It has no caller."""
NO_CODE: Final = 5
"""It cannot be the address of an instruction, or leads nowhere."""

_MAX_OFFSET: Final = 1 << 31
# A rule takes some 70 bytes, a row up to 5,000.
_MAX_RULES: Final = 1 << 16
_ROW_WEIGHT: Final = 64
_MAX_IMAGES: Final = 512
# To make the rules of one walk. Most functions have less than 100 bytes of tables; a file could
# say that all have 64 KB, to keep us busy.
_MAX_WORK: Final = 256 << 10


class UnwindRule(NamedTuple):
    """
    How to get from one address to its caller.

    In words of 8 bytes: how far the CFA is above the register; where the return address and
    the saved frame pointer are, seen from the CFA (0: the frame pointer was not saved).
    """

    kind: int
    cfa: int = 0
    return_address: int = 0
    frame_pointer: int = 0


class FileRules(dict[int, UnwindRule]):
    """The rules of one file by virtual address, made when they are asked for."""

    def __init__(self, image: ElfImage, rules: "Rules") -> None:
        super().__init__()
        self._image = image
        self._all = rules
        self._frames = CallFrames(image)
        self._rows: dict[int, CfiRow | None] = {}
        # Where the rows begin that were met, in order, and with where they end, their rules.
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
        # Rules are few, addresses many.
        rule = self[address] = self._all.different.setdefault(rule, rule)
        self._all.used += 1
        return rule

    def row(self, address: int) -> CfiRow | None:
        """Return what the tables say about an address."""
        if address not in self._rows:
            try:
                self._rows[address] = self._read(address)
            except NotReadError:
                return None
            self._all.used += _ROW_WEIGHT
        return self._rows[address]

    def follows_call(self, address: int) -> bool:
        """Return whether an address is what a call returns to."""
        return self._is_code(address - 1) and follows_call(
            self._all.architecture, self._image, address
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
        return self._image.machine == self._all.architecture.machine and any(
            segment.executable and 0 <= address - segment.address < segment.memory_bytes
            for segment in self._image.segments
        )


class SameRule(dict[int, UnwindRule]):
    """The rule of memory that is no file."""

    def __init__(self, rule: UnwindRule) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, address: int) -> UnwindRule:
        return self._rule

    def row(self, address: int) -> None:
        """Return that there are no tables."""

    def follows_call(self, address: int) -> bool:  # noqa: ARG002 -- as in FileRules
        """Return whether it may be code that was made at run time, which cannot be read."""
        return self._rule.kind == FRAME_RECORD


_GENERAL: Final = UnwindRule(GENERAL)
_FRAME_RECORD: Final = UnwindRule(FRAME_RECORD)
_NO_CODE: Final = UnwindRule(NO_CODE)
_OUTERMOST: Final = UnwindRule(OUTERMOST)
_GENERATED: Final = SameRule(_FRAME_RECORD)
NOWHERE: Final = SameRule(_NO_CODE)
"""Where there is no code."""


class Rules:
    """
    The rules of all files that were met.

    There are ``used`` of them, of which a row counts as many; ``different`` has each once.
    ``work`` is how many bytes of tables the present walk has read, and ``file_work`` what reading them
    may take.
    """

    def __init__(self, architecture: Architecture, file_work: FileWork | None = None) -> None:
        self.architecture = architecture
        self._file_work = file_work or FileWork()
        self._mapping: mappings.Mapping | None = None
        self._files: dict[ElfImage, FileRules] = {}
        self.used = self.work = 0
        self.different: dict[UnwindRule, UnwindRule] = {}

    def begin(self) -> None:
        """Begin a walk: it may read so much of tables, and too many rules are forgotten."""
        self.work = 0
        if self.used > _MAX_RULES or len(self._files) > _MAX_IMAGES:
            self._files.clear()
            self.different.clear()
            self.used = 0

    def of(self, mapping: mappings.Mapping) -> FileRules | SameRule:
        """Return the rules of what is mapped, by ``address - mapping.bias``."""
        image = mapping.image
        if image is None:
            # What a uretprobe put in the place of a return address has no caller.
            return NOWHERE if mapping.path == mappings.UPROBES else _GENERATED
        self._mapping = mapping
        rules = self._files.get(image)
        if rules is None:
            self._forget_closed()
            rules = self._files[image] = FileRules(image, self)
        return rules

    def _forget_closed(self) -> None:
        # No process maps such a file any more; whoever opens it again has another image.
        for image in [image for image in self._files if image.closed]:
            self.used -= self._files.pop(image).weight

    def reading(self) -> AbstractContextManager[None]:
        """Read tables of what ``of`` was asked about last, for its process; see ``FileWork``."""
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
