"""
Does a known number of everything that is captured, in one order.

    everything.py LIBCUDART

Prints one line of JSON: its pid.
"""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time

CUDA = ctypes.CDLL(sys.argv[1])
ADDRESS = ctypes.c_void_p()
BYTES = 4096
SLEEP_NS = 20_000_000


def behave(api, text):
    CUDA.stub_set(api.encode(), text.encode())


def allocate_and_copy():
    for size in (BYTES, 3 * BYTES, 5 * BYTES):
        CUDA.cudaMalloc(ctypes.byref(ADDRESS), ctypes.c_size_t(size))
        CUDA.cudaMemcpy(ADDRESS, ADDRESS, ctypes.c_size_t(size - 1), 3)
        CUDA.cudaFree(ADDRESS)


def fail():
    behave("cudaMalloc", "nest=1,fail=2")
    for _ in range(7):
        CUDA.cudaMalloc(ctypes.byref(ADDRESS), ctypes.c_size_t(BYTES))
    behave("cudaMalloc", "nest=1")


def wait_inside():
    behave("cudaStreamSynchronize", f"sleep_ns={SLEEP_NS}")
    for _ in range(5):
        CUDA.cudaStreamSynchronize(None)
    behave("cudaStreamSynchronize", "")


def wait_between():
    CUDA.cudaDeviceSynchronize()
    time.sleep(SLEEP_NS / 1e9)
    CUDA.cudaDeviceSynchronize()


def use_threads():
    for _ in range(3):
        thread = threading.Thread(target=CUDA.cudaDeviceSynchronize)
        thread.start()
        thread.join()


def make_children():
    for _ in range(2):
        child_pid = os.fork()
        if not child_pid:
            CUDA.cudaDeviceSynchronize()
            os._exit(3)
        os.waitpid(child_pid, 0)
    subprocess.run(["/bin/true"], check=True)


behave("cudaMalloc", "nest=1")
allocate_and_copy()
fail()
wait_inside()
wait_between()
use_threads()
make_children()
print(json.dumps({"pid": os.getpid()}))  # noqa: T201
