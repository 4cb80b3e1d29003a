"""
Calls functions before and after others wrote over their first bytes: patched_starts.py LIBRARY WHEN.

Prints its pid, and after a line of input the calls that it made. WHEN is ``before`` or ``after``: a
program that is attached to, or one that patches what carries probes already.
"""

import ctypes
import json
import mmap
import os
import signal
import struct
import sys

BREAKPOINT, HOOKED = "cuMemsetD8Async", "cuEventQuery"
PROT_ALL = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
# mov $1, %eax: what begins the function that is hooked.
FIRST = b"\xb8\x01\x00\x00\x00"
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def jump(at: int, to: int) -> bytes:
    """Return a jump of five bytes."""
    return b"\xe9" + struct.pack("<i", to - at - 5)


def write(address: int, code: bytes) -> None:
    """Write over code, as debuggers and hooking libraries do."""
    page = address & -mmap.PAGESIZE
    assert LIBC.mprotect(page, 2 * mmap.PAGESIZE, PROT_ALL) == 0
    ctypes.memmove(address, code, len(code))
    # The kernel puts no probe where code can be written.
    assert LIBC.mprotect(page, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC) == 0


def hook(entry: int) -> None:
    """Have a function begin with a jump to a copy of its first instruction, which jumps back."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    near = (entry & -mmap.PAGESIZE) - (64 << 20)
    copy = LIBC.mmap(near, mmap.PAGESIZE, PROT_ALL, flags, -1, 0)
    code = FIRST + jump(copy + len(FIRST), entry + len(FIRST))
    ctypes.memmove(copy, code, len(code))
    write(entry, jump(entry, copy))


def say(what: dict[str, int]) -> None:
    """Print a line of JSON at once."""
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def main() -> None:
    """Call, write, call again."""
    traps = []
    signal.signal(signal.SIGTRAP, lambda number, _frame: traps.append(number))
    library = ctypes.CDLL(sys.argv[1])
    functions = [getattr(library, name) for name in (BREAKPOINT, HOOKED)]
    entries = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
    sizes = (ctypes.c_size_t(1), ctypes.c_size_t(1))
    made = 0

    def call(times: int) -> None:
        nonlocal made
        for _ in range(times):
            assert not any(function(None, *sizes) for function in functions)
        made += times

    def patch() -> None:
        write(entries[0], b"\xcc")
        hook(entries[1])

    if sys.argv[2] == "before":
        patch()
    say({"pid": os.getpid()})
    sys.stdin.readline()
    call(503)
    if sys.argv[2] == "after":
        patch()
    call(509)
    say({"calls": made, "traps": len(traps)})


main()
