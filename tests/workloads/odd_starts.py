"""
Calls functions of a library that begin in many ways: odd_starts.py LIBRARY NAME=CALLS...

Prints its pid. Each gets a pointer and a size, and has to return 0.
"""

import ctypes
import json
import os
import sys


def main() -> None:
    """Call each so many times."""
    library = ctypes.CDLL(sys.argv[1])
    pointer = ctypes.c_void_p()
    for asked in sys.argv[2:]:
        name, _, calls = asked.partition("=")
        function = getattr(library, name)
        for _ in range(int(calls)):
            assert function(ctypes.byref(pointer), ctypes.c_size_t(997)) == 0, name
    json.dump({"pid": os.getpid()}, sys.stdout)
    sys.stdout.write("\n")


main()
