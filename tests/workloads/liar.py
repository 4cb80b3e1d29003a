"""
A program that lies about its steps: nonsense for arguments, times that cannot be, and far too many.

    liar.py LIBCUDART

Prints a line of JSON: its pid, how many steps make sense, and how many marks do not.
"""

import ctypes
import json
import os
import sys
import time

from otel_gpu import wire
from otel_gpu.files.built_libraries import MARKS, built_library

HONEST, UNREADABLE, IMPOSSIBLE, TOO_MANY = 101, 13, 17, 20_011

cuda = ctypes.CDLL(sys.argv[1])
cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(64))
step = ctypes.PyDLL(str(built_library(MARKS))).otel_gpu_step
step.argtypes, step.restype = [ctypes.c_void_p], None


def told(**values):
    now_ktime_ns = time.monotonic_ns()
    start_ktime_ns, end_ktime_ns = now_ktime_ns - 2_000_000, now_ktime_ns - 1_000_000
    times = {"start_ktime_ns": start_ktime_ns, "end_ktime_ns": end_ktime_ns}
    raw = wire.REPORTED_STEP.build(**times | {"now_ktime_ns": now_ktime_ns} | values)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    step(ctypes.addressof(buffer))


for number in range(HONEST):
    told(number=number, name=b"\xff" * 32)
for number in range(UNREADABLE):
    step(number * 8)
for number in range(IMPOSSIBLE):
    told(number=number, start_ktime_ns=number, now_ktime_ns=(1 << 64) - 1 - number)
told(start_ktime_ns=1 << 63)
for _ in range(TOO_MANY):
    told(
        number=(1 << 64) - 1, loader_wait_ns=(1 << 64) - 1, step_kind=255,
        trace_id=b"T" * 16, trace_flags=255, name=b"a\0b",
    )  # fmt: skip
print(  # noqa: T201
    json.dumps({"pid": os.getpid(), "sane": HONEST + TOO_MANY, "insane": IMPOSSIBLE + 1}),
    flush=True,
)
