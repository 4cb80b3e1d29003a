"""
Chooses sites that are safe for a probe in functions of arm64; ``probe_sites.py`` defines sites.

The kernel *simulates* some instructions: jumps, calls and returns, ``adr`` and ``adrp``, and since 6.13
``nop``. It single-steps a copy of any other instruction. That is slow, and it has corrupted processes
(https://github.com/DataDog/datadog-agent/issues/54291). So the class of a site also decides whether
functions of other vendors are probed at all.

Newer kernels refuse literal loads; older ones read them from the wrong address space.
"""

import struct
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from otel_gpu.capture.probes.probe_sites import ENTRY, SITE_BYTES, Site, SiteClass, is_kernel_since

_KEPT = 1024
WORD_BYTES = 4
_NOPS_SINCE = (6, 13)
_NOP = "nop"


class _Form(NamedTuple):
    # Instructions with ``word & mask == value``; a jump's target is ``target_bits`` from
    # ``target_shift``.

    name: str
    mask: int
    value: int
    target_bits: int = 0
    target_shift: int = 0


_SIMULATED = (
    _Form("b", 0xFC000000, 0x14000000, 26),
    _Form("bl", 0xFC000000, 0x94000000, 26),
    _Form("b.cond", 0xFF000010, 0x54000000, 19, 5),
    _Form("cbz", 0x7F000000, 0x34000000, 19, 5),
    _Form("cbnz", 0x7F000000, 0x35000000, 19, 5),
    _Form("tbz", 0x7F000000, 0x36000000, 14, 5),
    _Form("tbnz", 0x7F000000, 0x37000000, 14, 5),
    _Form("br", 0xFFFFFC1F, 0xD61F0000),
    _Form("blr", 0xFFFFFC1F, 0xD63F0000),
    _Form("ret", 0xFFFFFC1F, 0xD65F0000),
    _Form("adr", 0x9F000000, 0x10000000),
    _Form("adrp", 0x9F000000, 0x90000000),
    _Form(_NOP, 0xFFFFFFFF, 0xD503201F),
)
_INDIRECT = (_Form("br", 0xFFFFFC1F, 0xD61F0000), _Form("braa", 0xFEFFF800, 0xD61F0800))
_CONDITIONAL = {"b.cond", "cbz", "cbnz", "tbz", "tbnz"}
# Exclusive accesses never succeed when they are single-stepped.
_REFUSED = (_Form("ldr", 0x3B000000, 0x18000000), _Form("ldxr", 0x3F800000, 0x08000000))
# These write only flags.
_ONLY_FLAGS = (
    _Form("cmp", 0x7F00001F, 0x7100001F),
    _Form("cmp", 0x7F20001F, 0x6B00001F),
    _Form("tst", 0x7F20001F, 0x6A00001F),
    _Form("bti", 0xFFFFFF3F, 0xD503241F),
    _Form(_NOP, 0xFFFFFFFF, 0xD503201F),
)
# Immediate and register operands; the low five bits are the destination.
_WRITES_REGISTER = (
    _Form("mov", 0x1C000000, 0x10000000),
    _Form("mov", 0x0E000000, 0x0A000000),
    _Form("mrs", 0xFFFFFFE0, 0xD53BD040),
)
# Scratch registers: no arguments, and not preserved across calls.
_FREE_REGISTERS = range(9, 18)
# Can be skipped if a BPF program reads only arguments: stack allocation, saved registers, signed returns.
_FRAMES = (
    _Form("sub", 0xFF8003FF, 0xD10003FF),
    _Form("stp", 0xFE4003E0, 0xA80003E0),
    _Form("stp", 0xFE4003E0, 0x6C0003E0),
    _Form("str", 0xFFE003E0, 0xF80003E0),
    _Form("str", 0xFFC003E0, 0xF90003E0),
    _Form("add", 0xFF8003FF, 0x910003FD),
    _Form("paciasp", 0xFFFFFFFF, 0xD503233F),
    _Form("pacibsp", 0xFFFFFFFF, 0xD503237F),
)
_NAMED = (*_REFUSED, *_ONLY_FLAGS, *_FRAMES, *_WRITES_REGISTER)


@lru_cache(_KEPT)
def choose_arm64_site(
    code: bytes,
    later_starts: Collection[int] = (),
    *,
    reads_stack: bool = True,
    behind_entry: bool = True,
) -> Site:
    """
    Choose the site in a function of arm64 by its bytes.

    Args:
        code: The whole function.
        later_starts: Offsets of other symbols in it, in bytes; hashable.
        reads_stack: Whether the BPF programs need the stack and link registers of the entry.
        behind_entry: Whether a site behind the entry is allowed.
    """
    words = [word for (word,) in struct.iter_unpack("<I", code[: len(code) & -WORD_BYTES])]
    if not words:
        return ENTRY
    if name := _simulated(words[0]):
        return Site(0, name, SiteClass.EMULATED)
    found = _find_behind(words, reads_stack=reads_stack) if behind_entry else 0
    if found and not any(0 < start <= found for start in later_starts):
        return Site(found, _simulated(words[found // WORD_BYTES]), SiteClass.EMULATED)
    is_refused = _match(words[0], _REFUSED) is not None
    form = _match(words[0], _NAMED)
    kind = SiteClass.REFUSED if is_refused else SiteClass.SINGLE_STEPPED
    return Site(0, form.name if form else "", kind)


def _find_behind(words: list[int], *, reads_stack: bool) -> int:
    for number, word in enumerate(words[: SITE_BYTES // WORD_BYTES + 1]):
        offset = number * WORD_BYTES
        if name := _simulated(word):
            is_once = name == _NOP or _stays_inside(words)
            return offset if is_once and not _comes_back(words, offset) else 0
        if not _can_be_skipped(word, reads_stack=reads_stack):
            break
    return 0


def _simulated(word: int) -> str:
    form = _match(word, _SIMULATED)
    if form is None or (form.name == _NOP and not is_kernel_since(_NOPS_SINCE)):
        return ""
    return form.name


def _match(word: int, forms: Collection[_Form]) -> _Form | None:
    return next((form for form in forms if word & form.mask == form.value), None)


def _can_be_skipped(word: int, *, reads_stack: bool) -> bool:
    if _match(word, _ONLY_FLAGS) or (not reads_stack and _match(word, _FRAMES)):
        return True
    return bool(_match(word, _WRITES_REGISTER)) and word & 31 in _FREE_REGISTERS


def _targets(words: list[int]) -> list[tuple[str, int]]:
    # Direct jumps with their targets, in bytes from the start.
    found = []
    for number, word in enumerate(words):
        form = _match(word, _SIMULATED)
        if form is not None and form.target_bits:
            distance = word >> form.target_shift & (1 << form.target_bits) - 1
            distance -= distance >> form.target_bits - 1 << form.target_bits
            found.append((form.name, (number + distance) * WORD_BYTES))
    return found


def _comes_back(words: list[int], offset: int) -> bool:
    # Whether a jump leads behind the start and not behind the offset.
    return any(0 < target <= offset for _, target in _targets(words))


def _stays_inside(words: list[int]) -> bool:
    # Whether all jumps into the function come from this code.
    size = len(words) * WORD_BYTES
    return not any(_match(word, _INDIRECT) for word in words) and all(
        0 <= target < size for name, target in _targets(words) if name in _CONDITIONAL
    )
