"""
A program that makes steps and tells nobody, or makes none.

    periodic.py LIBCUDART WHAT [STEPS]

At its end it prints a line of JSON: its pid, and of each step between which calls it began and ended, as (when
the call before began, when the step began, when its last call began, when the step ended).
"""

import ctypes
import json
import os
import random
import sys
import time

CUDA = ctypes.CDLL(sys.argv[1])
WHAT = sys.argv[2]
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 397
CHANCE = random.Random(1)  # noqa: S311 -- the same each time
TO_DEVICE, TO_HOST = 1, 2
BATCH, TOKENS = 1 << 20, 2048
HOST = ctypes.create_string_buffer(BATCH)
DEVICE = ctypes.create_string_buffer(BATCH)
KERNELS = ctypes.addressof(HOST)
steps = []
called_ns = time.monotonic_ns()


def call(function, *arguments):
    global called_ns  # noqa: PLW0603 -- one thread
    called_ns = time.monotonic_ns()
    function(*arguments)


def launch(*kernels):
    ones = [ctypes.c_uint64(1)] * 4
    for kernel in kernels:
        call(CUDA.cudaLaunchKernel, ctypes.c_void_p(KERNELS + 16 * kernel), *ones, None, 0, None)


def copy(kind, size_bytes):
    call(CUDA.cudaMemcpyAsync, DEVICE, HOST, ctypes.c_size_t(size_bytes), kind, None)


def wait():
    # A program that looks whether it is done yet, as often as it takes.
    for _ in range(CHANCE.randint(0, 3)):
        CUDA.cudaStreamQuery(None)
    call(CUDA.cudaStreamSynchronize, None)


def step(work):
    before_ns, start_ns = called_ns, time.monotonic_ns()
    time.sleep((1 + CHANCE.random()) / 1_000)
    work()
    steps.append((before_ns, start_ns, called_ns, time.monotonic_ns()))


def train():
    copy(TO_DEVICE, BATCH)
    launch(*range(12), *range(20, 40), 5, 6)
    wait()


def evaluate():
    copy(TO_DEVICE, BATCH)
    launch(*range(12))
    wait()


def prefill():
    copy(TO_DEVICE, TOKENS)
    launch(*[50, 51, 52, 50] * CHANCE.choice([6]), 53)
    copy(TO_HOST, 8)
    wait()


def decode():
    copy(TO_DEVICE, 8)
    launch(*[60, 51, 61] * 4, 62)
    copy(TO_HOST, 8)
    wait()


def loop():
    for _ in range(STEPS):
        step(train)


def epochs():
    for number in range(307):
        step(train)
        if number % 50 == 49:
            # Of the whole set, without a look at the device before the end.
            for _ in range(7):
                launch(*range(12), 70)
            copy(TO_HOST, 64)
            time.sleep(0.02)


def evaluations():
    for number in range(307):
        step(train)
        if number % 50 == 49:
            for _ in range(9):
                step(evaluate)


def serve():
    for _ in range(43):
        time.sleep(CHANCE.random() / 100)
        step(prefill)
        for _ in range(CHANCE.randint(3, 12)):
            step(decode)


def wander():
    def one():
        launch(CHANCE.randrange(9))

    ways = (one, one, one, wait, lambda: copy(TO_DEVICE, BATCH), lambda: copy(TO_HOST, 8))
    for _ in range(9_001):
        CHANCE.choice(ways)()


# It loads for a while first.
for _ in range(29):
    CUDA.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(BATCH))
    copy(TO_DEVICE, BATCH)
globals()[WHAT]()
print(json.dumps({"pid": os.getpid(), "steps": steps}))  # noqa: T201
