"""
Enters a CUDA call that never returns, through the chain of calls that is named.

    parked.py LIBCUDART LIBNATIVE CHAIN

Prints one line of JSON, right before: the process and the thread.
"""

import ctypes
import functools
import json
import os
import sys
import threading

CUDA = ctypes.CDLL(sys.argv[1])
NATIVE = ctypes.CDLL(sys.argv[2])
LIBC = ctypes.CDLL(None)
SYNCHRONIZE = ctypes.cast(CUDA.cudaStreamSynchronize, ctypes.c_void_p)
COMPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def say():
    json.dump({"pid": os.getpid(), "tid": threading.get_native_id()}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def callback():
    def compare(_left, _right):
        say()
        return CUDA.cudaStreamSynchronize(None)

    numbers = (ctypes.c_int * 2)(2, 1)
    LIBC.qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), COMPARE(compare))


def batches():
    say()
    yield NATIVE.native_outer(SYNCHRONIZE, ctypes.c_size_t(1))


def native():
    return sum(1 for _ in batches())


class Loader:
    def load(self):
        return sorted([1], key=self.key)

    @functools.lru_cache  # noqa: B019 -- a function of C between two of Python
    def key(self, _):
        say()
        return CUDA.cudaStreamSynchronize(None)


def thread():
    worker = threading.Thread(target=Loader().load)
    worker.start()
    worker.join()


CUDA.cudaFree(None)
CUDA.stub_set(b"cudaStreamSynchronize", b"hang=1")
{"callback": callback, "native": native, "thread": thread}[sys.argv[3]]()
