"""
The training loop of ``scenarios.c`` in Python, made slow by the interpreter lock.

Run as ``gil.py LIBRARY NAME``; prints the same line of JSON. Another thread calls a C
function that keeps the lock while it sleeps, as careless extension modules do.
"""

import contextlib
import ctypes
import json
import os
import statistics
import sys
import threading
import time
from typing import Any

STEPS = 60
FIRST_EFFECT = 24
EFFECT_EVERY = 10
GPU_US = 3_000
INJECTED_US = 40_000


class Holder:
    """A thread that holds the interpreter lock for a while when told to."""

    def __init__(self) -> None:
        self.tid = 0
        self._orders = threading.Semaphore(0)
        self._usleep = ctypes.PyDLL(None).usleep  # which does not let go of the lock
        self._thread = threading.Thread(target=self._run, name="holder", daemon=True)
        self._thread.start()

    def hold(self) -> None:
        """Take the lock as soon as it can be had."""
        self._orders.release()

    def _run(self) -> None:
        self.tid = threading.get_native_id()
        while self._orders.acquire():
            self._usleep(INJECTED_US)


def main() -> None:
    """Train, and say what was injected."""
    with contextlib.suppress(PermissionError):
        # Only what is injected is to be in the way.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    cuda, name = ctypes.CDLL(sys.argv[1]), sys.argv[2]
    # The device is a sleep in C, so that nothing but the holder is in the way.
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    cuda.stub_call_inside(b"cudaStreamSynchronize", sleep, ctypes.c_void_p(GPU_US))
    holder = Holder()
    effects: list[dict[str, Any]] = []
    synchronize_ns: list[int] = []
    for step in range(STEPS):
        slow = step >= FIRST_EFFECT and (step - FIRST_EFFECT) % EFFECT_EVERY == 0
        cuda.cudaLaunchKernel(None)
        waited_ns = run_queue_ns()
        # From here to the call nothing lets go of the lock.
        if slow:
            holder.hold()
        start_ns = time.monotonic_ns()
        cuda.cudaStreamSynchronize(None)
        end_ns, waited_ns = time.monotonic_ns(), run_queue_ns() - waited_ns
        if slow:
            # The call itself was over when it always is; its thread could not go on.
            start_ns += int(statistics.median(synchronize_ns))
            effects.append(effect(start_ns, end_ns, waited_ns, holder))
        else:
            synchronize_ns.append(end_ns - start_ns)
    truth = {
        "scenario": name,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "monotonic_ns": time.monotonic_ns(),
        "unix_ns": time.time_ns(),
        "effects": effects,
    }
    sys.stdout.write(json.dumps(truth) + "\n")


def run_queue_ns() -> int:
    """How long this thread has waited for a CPU so far, by the kernel's own account."""
    with open("/proc/thread-self/schedstat", encoding="ascii") as account:  # noqa: PTH123
        return int(account.read().split()[1])


def effect(start_ns: int, end_ns: int, waited_ns: int, holder: Holder) -> dict[str, Any]:
    """Describe one gap that the holder made long; waiting for a CPU was not its doing."""
    cause = {
        "kind": "gil",
        "time_ns": end_ns - start_ns - waited_ns,
        "pid": os.getpid(),
        "tid": holder.tid,
    }
    return {
        "kind": "slow_gap",
        "api": "cudaLaunchKernel",
        "start_ns": start_ns,
        "end_ns": end_ns,
        "causes": [cause],
    }


main()
