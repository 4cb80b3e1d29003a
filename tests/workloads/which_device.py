"""
Makes calls on a device, and asks which one that is.

Usage: which_device.py RUNTIME DRIVER. Sets the device that the first line of standard input names, if
any. Then each line is a number of rounds: in each, it asks ten times which device is current, and queries
an event once. The line "context" makes a context current. Prints its pid at first, and a line after each.
"""

import ctypes
import json
import os
import sys


def say(line: object) -> None:
    json.dump(line, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def main() -> None:
    """Do what standard input says."""
    runtime, driver = (ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in sys.argv[1:3])
    device = ctypes.c_int()
    say({"pid": os.getpid()})
    first = sys.stdin.readline().strip()
    if first:
        runtime.cudaSetDevice(int(first))
    say(first)
    for line in sys.stdin:
        if line.strip() == "context":
            driver.cuCtxSetCurrent(ctypes.c_void_p(0x10))
        else:
            for _ in range(int(line)):
                for _ in range(10):
                    runtime.cudaGetDevice(ctypes.byref(device))
                runtime.cudaEventQuery(None)
        say(line.strip())


main()
