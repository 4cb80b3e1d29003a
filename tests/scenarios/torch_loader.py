"""
A training loop that always waits for a worker of torch's DataLoader.

Run as ``torch_loader.py LIBRARY`` by a Python that has torch. Prints what a scenario prints.
"""

import ctypes
import json
import os
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 60
STEP_NS = 20_000_000
GPU_S = 0.003


class Slow(Dataset):
    """Items that take 20 ms of CPU time each."""

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        end_ns = time.thread_time_ns() + STEP_NS
        while time.thread_time_ns() < end_ns:
            pass
        return torch.zeros(1), os.getpid()


def main(library: str) -> None:
    cuda = ctypes.CDLL(library)
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(GPU_S))
    cuda.stub_call_inside(b"cudaStreamSynchronize", wait, None)
    cuda.cudaStreamSynchronize(None)
    # One thread, so that the waits are those of the loop.
    torch.set_num_threads(1)
    waited_ns, worker = 0, 0
    batches = iter(DataLoader(Slow(), num_workers=1, prefetch_factor=2))
    for _ in range(STEPS):
        start_ns = time.monotonic_ns()
        _, worker = next(batches)
        waited_ns += time.monotonic_ns() - start_ns
        cuda.cudaStreamSynchronize(None)
    via = {"kind": "host_work", "time_ns": waited_ns, "pid": int(worker), "tid": int(worker)}
    loss = {"kind": "ipc", "time_ns": waited_ns, "pid": int(worker), "via": via}
    truth = {
        "scenario": "torch-loader",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "monotonic_ns": time.monotonic_ns(),
        "unix_ns": time.time_ns(),
        "effects": [],
        "losses": [loss],
    }
    print(json.dumps(truth))  # noqa: T201


main(*sys.argv[1:])
