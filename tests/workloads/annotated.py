"""
A program that makes CUDA calls, and of which something is said by who it runs, and by itself.

    annotated.py LIBCUDART

Prints a line of JSON: its pid, the exit codes of what it ran, and the number of the slow step.
"""

import ctypes
import json
import os
import subprocess
import sys
import time

from otel_gpu.instrumentation.marks import annotate, mark_step

STEPS, SLOW, SLOW_S = 23, 17, 0.1


def say(*arguments):
    command = f"{sys.executable} -m otel_gpu annotate {' '.join(map(str, arguments))}"
    return subprocess.run(["/bin/sh", "-c", f"{command}; exit $?"], check=False).returncode


cuda = ctypes.CDLL(sys.argv[1])
cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64))
codes = [
    say("epoch=2", "phase=warm-up"),
    say("epoch=3", "--pid", os.getpid()),
    say("epoch=9", "--pid", 1),
    say("'no pair'"),
]
annotate(batch=7)
for number in range(1, STEPS + 1):
    start_ns = time.monotonic_ns()
    cuda.cudaDeviceSynchronize()
    if number == SLOW:
        time.sleep(SLOW_S)
    mark_step(number, start_ns, time.monotonic_ns(), name="naïve ☃")
print(json.dumps({"pid": os.getpid(), "codes": codes, "slow": SLOW}), flush=True)  # noqa: T201
