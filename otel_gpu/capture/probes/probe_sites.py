"""
Chooses the instruction of a function at which a probe costs least: its site.

A uprobe replaces the instruction at its site by a breakpoint. A thread that reaches it traps into the
kernel, which runs our BPF programs and then executes the replaced instruction. The kernel *emulates*
some instructions: pushes of a register, relative jumps and calls, ``nop``. object other instruction it
*single-steps*: it runs a copy elsewhere and traps a second time behind it. In a virtual machine the second
trap leaves the guest: 15 µs instead of 0.5 µs. On bare metal it costs 0.9 µs instead of 0.3 µs.

Many functions do not begin with an instruction that is emulated. Nearly all of libcuda's begin with a
``cmpl`` of a global, and the ``je`` behind it is emulated. So we decode a function from its start, and
put the probe at the first instruction that the kernel emulates, if a BPF program sees the same state
there as at the entry:

- No skipped instruction writes an argument register, the stack pointer or the frame pointer. So arguments
  are in place, a return probe finds the return address, and the call has the same identity (its stack
  pointer). Probes that do not read the stack can skip ``sub n, %rsp``.
- No skipped instruction branches, traps, or reads memory at an address from the caller. So each call
  reaches the site.
- Nothing jumps behind the start and up to the site: no other symbol is there, and no branch of the
  function leads there. Otherwise each iteration of a loop would count as a call. Targets of some jumps are
  unknown (tables, parts of the function at other addresses). Then only a ``push``, which no compiler puts
  into a loop, or a ``nop`` is used.

Otherwise the probe is at the entry. Sites on arm64 are in ``arm64_sites.py``.
"""

import os
import re
from collections.abc import Collection
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from otel_gpu.limits.caches import remembered

# The largest offset of a site.
SITE_BYTES = 24
# Longer functions are not decoded.
MAX_FUNCTION_BYTES = 4096
_KEPT = 1024
_CONDITIONS = (
    *("jo", "jno", "jb", "jae", "je", "jne", "jbe", "ja"),
    *("js", "jns", "jp", "jnp", "jl", "jge", "jle", "jg"),
)
# Kernels emulate these only without further prefixes.
_EMULATED = re.compile(
    rb"(?P<push>\x41?[\x50-\x57])"
    rb"|(?P<nop>\x66?\x90)"
    rb"|(?P<jmp>[\xe9\xeb])"
    rb"|(?P<call>\xe8)"
    rb"|(?P<condition>[\x70-\x7f]|\x0f[\x80-\x8f])"
    rb"|(?P<long_nop>\x66?\x0f\x1f)"
)
# The first kernel that emulates nops of several bytes.
_LONG_NOPS_SINCE = (6, 18)


class SiteClass(StrEnum):
    """
    How the kernel executes the instruction at a site.

    UNKNOWN: the instruction is not decoded. REFUSED: kernels refuse a probe there, or execute it wrongly.
    """

    EMULATED = "emulated"
    SINGLE_STEPPED = "single-stepped"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Site(NamedTuple):
    """
    The site of a function's probe.

    ``offset`` is in bytes from the start of the function; ``instruction`` is the mnemonic there, empty if
    it is not decoded.
    """

    offset: int
    instruction: str
    kind: SiteClass


ENTRY = Site(0, "", SiteClass.UNKNOWN)


@remembered("probe_sites", _KEPT, 700)
def choose_site(
    code: bytes, later_starts: Collection[int] = (), *, reads_stack: bool = True
) -> Site:
    """
    Choose the site in a function of x86-64 by its bytes.

    Args:
        code: The whole function; if incomplete, the site is the entry.
        later_starts: Offsets of other symbols in it, in bytes; hashable.
        reads_stack: Whether the BPF programs need the stack pointer of the entry.
    """
    if name := emulated(code):
        return Site(0, name, SiteClass.EMULATED)
    # Most libraries need no decoder, which takes memory and time to import.
    from otel_gpu.capture.probes.prologues import read_prologue  # noqa: PLC0415

    first, found = read_prologue(code, reads_stack=reads_stack)
    if found and not any(0 < start <= found for start in later_starts):
        return Site(found, emulated(code[found:]), SiteClass.EMULATED)
    return Site(0, first, SiteClass.SINGLE_STEPPED) if first else ENTRY


def emulated(code: bytes) -> str:
    """Return the mnemonic of the first instruction if kernels emulate it, else an empty string."""
    found = _EMULATED.match(code)
    match found and found.lastgroup:
        case None:
            return ""
        case "condition":
            return _CONDITIONS[found[0][-1] % len(_CONDITIONS)]  # type: ignore[index]
        case "long_nop":
            return "nop" if is_kernel_since(_LONG_NOPS_SINCE) else ""
        case name:
            return str(name)


@cache
def is_kernel_since(version: tuple[int, int]) -> bool:
    """Whether the running kernel has this version or a newer one."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= version
