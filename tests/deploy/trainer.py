"""
Does again and again, until its standard input ends, all that a dashboard shows.

    trainer.py LIBCUDART

In each step it allocates, copies both ways, launches, waits, fails once, and gives back all but a
little of what it holds; at times it forks. Prints one line when the first step is done.
"""

import ctypes
import os
import subprocess
import sys
import threading
import time

CUDA = ctypes.CDLL(sys.argv[1])
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
MIB = 1 << 20
STEP_S = 0.01
STEPS_PER_FORK = 50


def behave(api: str, text: str) -> None:
    CUDA.stub_set(api.encode(), text.encode())


def step(number: int) -> None:
    address, stream, event, graph = (ctypes.c_void_p() for _ in range(4))
    CUDA.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(3 * MIB))
    CUDA.cudaMemset(address, 0, ctypes.c_size_t(MIB))
    CUDA.cudaMemcpy(address, address, ctypes.c_size_t(2 * MIB), HOST_TO_DEVICE)
    CUDA.cudaStreamCreate(ctypes.byref(stream))
    CUDA.cudaEventCreate(ctypes.byref(event))
    CUDA.cudaHostRegister(address, ctypes.c_size_t(4096), 0)
    CUDA.cudaLaunchKernel(address, 1, 1, 1, 1, 1, 1, None, ctypes.c_size_t(0), stream)
    CUDA.cudaGraphLaunch(graph, stream)
    CUDA.cudaEventRecord(event, stream)
    CUDA.cudaEventSynchronize(event)
    CUDA.cudaStreamSynchronize(stream)
    CUDA.cudaMemcpyAsync(address, address, ctypes.c_size_t(MIB), DEVICE_TO_HOST, stream)
    CUDA.cudaDeviceSynchronize()
    CUDA.cudaStreamDestroy(stream)
    if number % 7:
        CUDA.cudaFree(address)
    if number % STEPS_PER_FORK == 0:
        subprocess.run(["/bin/true"], check=True)
    time.sleep(STEP_S)


def wait_for_end() -> None:
    sys.stdin.read()
    os._exit(0)


behave("cudaMalloc", "fail=2,fail_every=11")
behave("cudaStreamSynchronize", "sleep_ns=2000000")
threading.Thread(target=wait_for_end, daemon=True).start()
step(0)
print("stepped", flush=True)  # noqa: T201
count = 0
while True:
    count += 1
    step(count)
