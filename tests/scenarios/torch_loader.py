"""
A training loop that always waits for a worker of torch's DataLoader.

    torch_loader.py LIBCUDART [EXTENSION SECONDS]

Run by a Python that has torch. Each item takes 20 ms of CPU time; or, for so many seconds in all,
five lines take 50, 25, 15, 7 and 3 % of it, each in C code that keeps the GIL. Prints what a
scenario prints.
"""

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 100
STEP_NS = 20_000_000
ITERATIONS = 200_000  # of 1 %
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


class Shares(Dataset):
    """Items of which five lines take known shares."""

    def __init__(self, extension: str, seconds: str) -> None:
        self.extension = ctypes.PyDLL(extension)
        start_s = time.thread_time()
        self[0]
        self.items = round(float(seconds) / (time.thread_time() - start_s))

    def __len__(self):
        return self.items

    def __getitem__(self, index):
        self.extension.work_50(ctypes.c_uint64(50 * ITERATIONS))
        self.extension.work_25(ctypes.c_uint64(25 * ITERATIONS))
        self.extension.work_15(ctypes.c_uint64(15 * ITERATIONS))
        self.extension.work_7(ctypes.c_uint64(7 * ITERATIONS))
        self.extension.work_3(ctypes.c_uint64(3 * ITERATIONS))
        return torch.zeros(1), os.getpid()


def blocked_ns() -> int:
    """Return how long this thread was off the CPU and not ready to run: a batch is work, too."""
    ready_ns = int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1])
    return time.monotonic_ns() - time.thread_time_ns() - ready_ns


def place_of(dataset: Dataset) -> dict[str, object]:
    """Return where items are made, from the first line of what is done to the last."""
    function = type(dataset).__getitem__
    lines = {line for _, _, line in function.__code__.co_lines() if line}
    lines.remove(function.__code__.co_firstlineno)
    file = Path(__file__).name
    place = {"function": function.__qualname__, "file": file}
    return place | {"first_line": min(lines), "last_line": max(lines)}


def main(library: str, *shares: str) -> None:
    cuda = ctypes.CDLL(library)
    wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(GPU_S))
    if not shares:
        # With shares the loop has nothing else to do: what a worker does while nobody waits for
        # it, the first 3 ms of each item, is no part of what the loop waited for.
        cuda.stub_call_inside(b"cudaStreamSynchronize", wait, None)
    cuda.cudaStreamSynchronize(None)
    # One thread, so that the waits are those of the loop.
    torch.set_num_threads(1)
    waited_ns, worker = 0, 0
    dataset = Shares(*shares) if shares else Slow()
    batches = iter(DataLoader(dataset, num_workers=1, prefetch_factor=2))
    for _ in range(len(dataset)):
        start_ns = blocked_ns()
        _, worker = next(batches)
        waited_ns += blocked_ns() - start_ns
        cuda.cudaStreamSynchronize(None)
    via = {"kind": "host_work", "time_ns": waited_ns, "pid": int(worker), "tid": int(worker)}
    via["place"] = place_of(dataset)
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
