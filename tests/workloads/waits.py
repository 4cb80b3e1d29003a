"""
Waits in places that a test knows, by the comments of its lines.

    waits.py LIBCUDART

Waits in a poll() outside of any CUDA call, for a lock inside of one, and then enters a
call that never returns. Prints one line of JSON before each.
"""

import ctypes
import json
import os
import select
import sys
import threading

CUDA = ctypes.CDLL(sys.argv[1])
WAIT_S = 0.3


def say(what):
    about = {"what": what, "pid": os.getpid(), "tid": threading.get_native_id()}
    sys.stdout.write(json.dumps(about) + "\n")
    sys.stdout.flush()


def pause():
    select.poll().poll(1000 * WAIT_S)  # pauses


def outer(function):
    return [function()]  # in outer


def inside():
    CUDA.cudaDeviceSynchronize()  # calls


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def callback(_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=WAIT_S)  # locks


def hang():
    CUDA.cudaStreamSynchronize(None)  # hangs


CUDA.cudaFree(None)
say("pause")
outer(pause)  # pause
say("call")
CUDA.stub_call_inside(b"cudaDeviceSynchronize", callback, None)
outer(inside)  # call
CUDA.stub_set(b"cudaStreamSynchronize", b"hang=1")
say("hang")
outer(hang)  # hang
