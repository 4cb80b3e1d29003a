"""
A call meter in Python: what ``timed.c`` is, from below a stack of DEPTH frames.

    timed.py LIBRARY DEPTH

Half of the frames are functions of their own, half are calls of an object, which the
interpreter makes through C code.
"""

import ctypes
import json
import sys
import time

CUDA = ctypes.CDLL(sys.argv[1])


def measure(calls):
    call = CUDA.cudaStreamSynchronize
    start_ns = time.monotonic_ns()
    for _ in range(calls):
        call(None)
    return time.monotonic_ns() - start_ns


class Layer:
    def __init__(self, inner):
        self.inner = inner

    def __call__(self, calls):
        return self.inner(calls)


def function_around(inner, number):
    space = {"inner": inner}
    source = f"def layer_{number}(calls):\n    return inner(calls)\n"
    exec(source, space)  # noqa: S102 - each is a code object of its own
    return space[f"layer_{number}"]


def main():
    outermost = measure
    # measure, main and the module are frames too.
    for number in range(int(sys.argv[2]) - 3):
        outermost = Layer(outermost) if number % 2 else function_around(outermost, number)
    about = {
        "runtime": ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime")),
        "version": sys.hexversion,
    }
    say(about)
    for line in sys.stdin:
        say(outermost(int(line)))


def say(answer):
    json.dump(answer, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


main()
