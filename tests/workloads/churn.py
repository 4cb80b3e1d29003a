"""
A meter of blocks, from below a stack of DEPTH frames.

    churn.py ALLOCATOR CHURN DEPTH

Each line of input is a number of blocks and how many of them per second, 0: as fast as can be. The
answer is the CPU time that they took, in nanoseconds.
"""

import ctypes
import json
import sys

C10, CHURN = (ctypes.CDLL(path) for path in sys.argv[1:3])
CHURN.churn.restype = ctypes.c_longlong
CHURN.churn.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
PLACES = [ctypes.cast(function, ctypes.c_void_p) for function in (C10.c10_malloc, C10.c10_free)]


def below(depth, blocks, per_second):
    if depth:
        return below(depth - 1, blocks, per_second)
    return CHURN.churn(*PLACES, blocks, per_second)


def say(answer):
    json.dump(answer, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say({})
    for line in sys.stdin:
        say(below(int(sys.argv[3]) - 2, *map(int, line.split())))
