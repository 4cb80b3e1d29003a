"""
At which instruction of a function its probe costs least.

A uprobe replaces the instruction at its site by a breakpoint. The thread that gets there traps
into the kernel, which runs our programs and then has to do what the replaced instruction does. For
some instructions it does that itself (it *emulates* them): pushes of a register, relative jumps and
calls, ``nop``. For all others it runs a copy of the instruction elsewhere and traps a second time
behind it (it *single-steps* it). In a virtual machine the second trap leaves the guest: 15 µs
instead of half of one. On bare metal it costs 0.9 µs instead of 0.3.

Many functions do not begin with a cheap instruction. Nearly all of libcuda's begin with a ``cmpl``
of a global, and the ``je`` behind it is emulated. So a function is decoded from its start, and the
probe goes to the first instruction that the kernel emulates, if a program there sees what it would
see at the entry:

- No skipped instruction writes a register of arguments, the stack pointer or the frame pointer. So
  arguments are in place, a return probe finds the return address, and a call has the same
  identity (its stack pointer). Probes that read no stack pass ``sub n, %rsp``.
- No skipped instruction branches, traps, or reads memory at an address that the caller chose: each
  call gets to the site.
- Nothing jumps behind the start and not behind the site: no other symbol is there, and no branch of
  the function leads there. Of a loop in the first block, each turn would be a call.
  Where a jump goes is not always known (tables, parts of the function that lie elsewhere). Then only
  a ``push`` will do, which no compiler puts into a loop, or a ``nop``.

In all other cases the probe is at the entry. Sites on arm64 are in ``arm64_sites.py``.
"""

import os
import re
from collections.abc import Collection
from enum import StrEnum
from functools import cache
from typing import NamedTuple

from otel_gpu.limits.caches import remembered

# A site is at most so many bytes behind the start of its function.
SITE_BYTES = 24
# Of a longer function it is not looked up where it jumps to.
MAX_FUNCTION_BYTES = 4096
_KEPT = 1024
_CONDITIONS = (
    *("jo", "jno", "jb", "jae", "je", "jne", "jbe", "ja"),
    *("js", "jns", "jp", "jnp", "jl", "jge", "jle", "jg"),
)
# Without other prefixes, with which kernels do not.
_EMULATED = re.compile(
    rb"(?P<push>\x41?[\x50-\x57])"
    rb"|(?P<nop>\x66?\x90)"
    rb"|(?P<jmp>[\xe9\xeb])"
    rb"|(?P<call>\xe8)"
    rb"|(?P<condition>[\x70-\x7f]|\x0f[\x80-\x8f])"
    rb"|(?P<long_nop>\x66?\x0f\x1f)"
)
# Since then the kernel emulates nops of several bytes.
_LONG_NOPS_SINCE = (6, 18)


class SiteClass(StrEnum):
    """
    What a probe costs at its site.

    UNKNOWN: the instruction there is not decoded. REFUSED: kernels put no probe there, or do wrong.
    """

    EMULATED = "emulated"
    SINGLE_STEPPED = "single-stepped"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class Site(NamedTuple):
    """
    Where the probe of a function is.

    ``offset`` is in bytes from the start of the function; ``instruction`` is the mnemonic of what is
    there, empty if it is not decoded.
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
    Choose the site in a function of x86-64, by nothing but its bytes.

    Args:
        code: The whole function; less of it: the probe stays at the entry.
        later_starts: Where in it other symbols begin, in bytes from its start; hashable.
        reads_stack: Whether the programs need the stack pointer of the entry.
    """
    if name := emulated(code):
        return Site(0, name, SiteClass.EMULATED)
    # Of most libraries nothing has to be decoded, and the decoder takes memory and time.
    from otel_gpu.capture.probes.prologues import read_prologue  # noqa: PLC0415

    first, found = read_prologue(code, reads_stack=reads_stack)
    if found and not any(0 < start <= found for start in later_starts):
        return Site(found, emulated(code[found:]), SiteClass.EMULATED)
    return Site(0, first, SiteClass.SINGLE_STEPPED) if first else ENTRY


def emulated(code: bytes) -> str:
    """Return the mnemonic of the instruction at the start of these bytes, if kernels emulate it."""
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
    """Say whether the running kernel is this version or a newer one."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= version
