"""
Calls functions of a library that begin in many ways: odd_starts.py LIBRARY NAME=CALLS...

Prints its pid. Each gets a pointer, a size and a count, and has to return 0.
"""

import ctypes
import json
import os
import signal
import sys


def main() -> None:
    """Call each so many times."""
    # What a breakpoint in a function does to a program that has no debugger.
    signal.signal(signal.SIGTRAP, lambda _number, _frame: None)
    library = ctypes.CDLL(sys.argv[1])
    pointer, sizes = ctypes.c_void_p(), (ctypes.c_size_t(997), ctypes.c_size_t(1))
    for asked in sys.argv[2:]:
        name, _, calls = asked.partition("=")
        function = getattr(library, name)
        for _ in range(int(calls)):
            assert function(ctypes.byref(pointer), *sizes) == 0, name
    json.dump({"pid": os.getpid()}, sys.stdout)
    sys.stdout.write("\n")


main()
