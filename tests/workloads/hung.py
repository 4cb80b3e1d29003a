"""
Hangs in a CUDA call before anybody looks, with threads that wait beside it.

    hung.py LIBCUDART spin|driver|line THREADS

Prints one line of JSON when the call has begun: the process, the thread, the lines of the call
and of the waits. The call is made through ``step``, waits through ``idle``. It either spins
in the runtime, or is blocked in the driver that the runtime calls; or it waits for a line of
input, and returns. Then MORE calls follow, it says so, and waits for another line.
"""

import ctypes
import inspect
import json
import os
import sys
import threading
from pathlib import Path

CUDA = ctypes.CDLL(sys.argv[1])
DRIVER = ctypes.CDLL(str(Path(sys.argv[1]).with_name("libcuda.so.1")))
NAME = b"cudaStreamSynchronize"
NEVER = threading.Event()
MORE = 7
about = {"pid": os.getpid(), "version": sys.hexversion}


def line_of(function, comment):
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, text in enumerate(lines) if text.rstrip().endswith(comment))


def step():
    about["tid"] = threading.get_native_id()
    CUDA.cudaStreamSynchronize(None)  # hangs


def train():
    step()
    CUDA.stub_call_inside(NAME, None, None)
    for _ in range(MORE):
        CUDA.cudaStreamSynchronize(None)
    sys.stdout.write(json.dumps({"calls": MORE}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


def idle(depth):
    if depth:
        idle(depth - 1)
    NEVER.wait()  # waits


def say():
    while not CUDA.stub_calls(NAME):
        NEVER.wait(0.001)
    about["step"], about["idle"] = line_of(step, "# hangs"), line_of(idle, "# waits")
    json.dump(about, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


CUDA.stub_calls.restype = ctypes.c_uint64
if sys.argv[2] == "spin":
    CUDA.stub_set(NAME, b"spin_ns=86400000000000")
elif sys.argv[2] == "line":
    CUDA.stub_call_inside(NAME, ctypes.CDLL(None).getchar, None)
else:
    CUDA.stub_set(NAME, b"nest=1")
    DRIVER.stub_set(b"cuStreamSynchronize", b"hang=1")
for _ in range(int(sys.argv[3])):
    threading.Thread(target=idle, args=(10,), daemon=True).start()
threading.Thread(target=say, daemon=True).start()
train()
