"""
Spends 50, 25, 15, 7 and 3 % of a thread's CPU time in five lines, each in C code that keeps the GIL.

    shares.py EXTENSION SECONDS COMMAND...

Another thread wants the GIL all the time. The command runs meanwhile; then a line of JSON: the
process, the nanoseconds that the thread was on a CPU, the numbers of the five lines, and what the
command has printed.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

ITERATIONS = 700_000  # of 1 %
extension = ctypes.PyDLL(sys.argv[1])
is_done = threading.Event()


def one_round():
    extension.work_50(ctypes.c_uint64(50 * ITERATIONS))
    extension.work_25(ctypes.c_uint64(25 * ITERATIONS))
    extension.work_15(ctypes.c_uint64(15 * ITERATIONS))
    extension.work_7(ctypes.c_uint64(7 * ITERATIONS))
    extension.work_3(ctypes.c_uint64(3 * ITERATIONS))


def want_the_gil():
    while not is_done.wait(0.01):
        pass


other = threading.Thread(target=want_the_gil)
other.start()
with subprocess.Popen(sys.argv[3:], stdout=subprocess.PIPE, text=True) as command:
    while time.thread_time() < float(sys.argv[2]):
        one_round()
    said = {
        "pid": os.getpid(),
        "cpu_ns": time.thread_time_ns(),
        "first_line": one_round.__code__.co_firstlineno,
    }
    is_done.set()
    other.join()
    said["command"] = json.loads(command.communicate()[0])
print(json.dumps(said))  # noqa: T201
