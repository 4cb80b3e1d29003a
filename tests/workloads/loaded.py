"""
Waits for what another process makes, again and again, between CUDA calls.

    loaded.py LIBRARY queue|pipe ITEMS MADE_NS

The other process is busy for MADE_NS of its own CPU time before each item. With ``queue`` it hands
items over as a loader of torch does: by a multiprocessing.Queue, whose feeder thread writes them
into a pipe. Prints one line of JSON: the processes, and how long the first one waited.
"""

import ctypes
import json
import multiprocessing
import os
import sys
import time

library, how = sys.argv[1:3]
items, made_ns = map(int, sys.argv[3:])


def make(target):
    for number in range(items):
        end_ns = time.thread_time_ns() + made_ns
        while time.thread_time_ns() < end_ns:
            pass
        if how == "queue":
            target.put(bytes(1000))
        else:
            os.write(target, number.to_bytes(4, "little"))


def main():
    cuda = ctypes.CDLL(library)
    context = multiprocessing.get_context("fork")
    if how == "queue":
        queue = context.Queue()
        target, take = queue, queue.get
    else:
        ours, target = os.pipe()
        take = lambda: os.read(ours, 4)  # noqa: E731
    cuda.cudaLaunchKernel(None)
    maker = context.Process(target=make, args=(target,))
    maker.start()
    waited_ns = 0
    for _ in range(items):
        start_ns = time.monotonic_ns()
        take()
        waited_ns += time.monotonic_ns() - start_ns
        cuda.cudaLaunchKernel(None)
    maker.join()
    said = {"pid": os.getpid(), "tid": os.getpid(), "maker": maker.pid, "waited_ns": waited_ns}
    sys.stdout.write(json.dumps(said) + "\n")


main()
