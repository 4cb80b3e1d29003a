"""
Makes CUDA calls, or gaps between them, that spend their time in a known way.

    account.py LIBRARY spin_and_sleep CALLS SPIN_NS SLEEP_NS
    account.py LIBRARY gap CALLS SPIN_NS SLEEP_NS
    account.py LIBRARY gil|lock|handover TIMES HELD_NS

Prints one line of JSON: the process, the thread that makes the calls, the other one.
"""

import ctypes
import json
import os
import platform
import sys
import threading
import time

cuda = ctypes.CDLL(sys.argv[1])
libc = ctypes.CDLL(None)
libc_with_gil = ctypes.PyDLL(None)
MUTEX_BYTES = 64
FUTEX = 202 if platform.machine() == "x86_64" else 98
FUTEX_WAIT, FUTEX_WAKE = 128, 129  # of this process


def spin(duration_ns):
    end_ns = time.monotonic_ns() + duration_ns
    while time.monotonic_ns() < end_ns:
        pass


def spin_and_sleep(calls, spin_ns, sleep_ns):
    cuda.stub_set(b"cudaStreamSynchronize", f"spin_ns={spin_ns},sleep_ns={sleep_ns}".encode())
    for _ in range(calls):
        cuda.cudaStreamSynchronize(None)
    return 0


def gap(calls, spin_ns, sleep_ns):
    cuda.cudaLaunchKernel(None)
    for _ in range(calls - 1):
        spin(spin_ns)
        libc_with_gil.usleep(sleep_ns // 1000)
        cuda.cudaLaunchKernel(None)
    return 0


def gil(times, held_ns):
    """Another thread keeps the GIL in a call that should let go of it."""
    orders = threading.Semaphore(0)
    tids = []

    def hold():
        tids.append(threading.get_native_id())
        while orders.acquire():
            libc_with_gil.usleep(held_ns // 1000)

    threading.Thread(target=hold, daemon=True).start()
    for _ in range(times):
        cuda.cudaStreamSynchronize(None)
        orders.release()
        time.sleep(0.001)
        cuda.cudaStreamSynchronize(None)
    return tids[0]


def lock(times, held_ns):
    """Another thread holds a mutex, and the feeder wants it inside of no call."""
    mutex = ctypes.create_string_buffer(MUTEX_BYTES)
    held = threading.Semaphore(0)
    turn = threading.Semaphore(0)
    tids = []

    def hold():
        tids.append(threading.get_native_id())
        while turn.acquire():
            libc.pthread_mutex_lock(mutex)
            held.release()
            libc.usleep(held_ns // 1000)
            libc.pthread_mutex_unlock(mutex)

    threading.Thread(target=hold, daemon=True).start()
    for _ in range(times):
        cuda.cudaStreamSynchronize(None)
        turn.release()
        held.acquire()
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_unlock(mutex)
        cuda.cudaStreamSynchronize(None)
    return tids[0]


def handover(times, held_ns):
    """The feeder waits in the interpreter's state for another thread, and at once again for none."""
    state = ctypes.c_uint.in_dll(ctypes.pythonapi, "_PyRuntime")
    shortly = (ctypes.c_long * 2)(0, 50_000)
    orders = threading.Semaphore(0)
    tids = []

    def futex(operation, value, timeout=None):
        libc.syscall(FUTEX, ctypes.byref(state), operation, value, timeout)

    def hold():
        tids.append(threading.get_native_id())
        while orders.acquire():
            libc.usleep(held_ns // 1000)
            futex(FUTEX_WAKE, 1)

    threading.Thread(target=hold, daemon=True).start()
    for _ in range(times):
        cuda.cudaStreamSynchronize(None)
        orders.release()
        futex(FUTEX_WAIT, state.value)
        futex(FUTEX_WAIT, state.value, shortly)
        cuda.cudaStreamSynchronize(None)
    return tids[0]


ways = {way.__name__: way for way in (spin_and_sleep, gap, gil, lock, handover)}
holder = ways[sys.argv[2]](*map(int, sys.argv[3:]))
print(  # noqa: T201 - what the test reads
    json.dumps({"pid": os.getpid(), "tid": threading.get_native_id(), "holder": holder})
)
