"""
An ordinary program that uses CUDA: it knows nothing of otel_gpu.

It calls the CUDA runtime library through ctypes from several threads and from a child
process, a prime number of times each, and prints what it did. Where there is no GPU,
the library is real and every call fails with the error that it gives without a driver.
"""

import collections
import ctypes
import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

THREADS = 3
ROUNDS = 211
CHILDREN = 2


def find_runtime() -> str:
    """Return the CUDA runtime library: the one of the PyPI wheel, else the system's."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).glob("**/libcudart.so.*")):
            return str(library)
    return "libcudart.so"


class Worker:
    """Makes CUDA calls and counts them."""

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self._runtime = runtime
        self.made: collections.Counter[str] = collections.Counter()
        self.failed = 0

    def _call(self, name: str, *arguments: object) -> None:
        self.made[name] += 1
        if getattr(self._runtime, name)(*arguments):
            self.failed += 1

    def run(self, rounds: int) -> None:
        """Allocate, copy, synchronize and free, as a training step would."""
        pointer = ctypes.c_void_p()
        host = ctypes.create_string_buffer(4096)
        for number in range(rounds):
            self._call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(4096))
            self._call("cudaMemcpy", pointer, host, ctypes.c_size_t(4096), 1)
            self._call("cudaDeviceSynchronize")
            self._call("cudaFree", pointer)
            if number % 50 == 0:
                time.sleep(0.02)  # the data loader


def main() -> None:
    """Work in threads and children, and print the sums."""
    runtime = ctypes.CDLL(find_runtime())
    children = []
    for _ in range(CHILDREN):
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            Worker(runtime).run(ROUNDS)
            os._exit(0)
        children.append(pid)
    workers = [Worker(runtime) for _ in range(THREADS)]
    threads = [threading.Thread(target=worker.run, args=(ROUNDS,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for pid in children:
        os.waitpid(pid, 0)
    made = sum((worker.made for worker in workers), collections.Counter())
    failed = sum(worker.failed for worker in workers)
    print(
        f"workload: {sum(made.values())} calls from {THREADS} threads, {failed} failed; "
        f"and {CHILDREN} children with {4 * ROUNDS} calls each"
    )


if __name__ == "__main__":
    main()
