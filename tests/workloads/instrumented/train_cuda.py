"""
A training loop that knows nothing of OpenTelemetry, and makes CUDA calls.

    train_cuda.py LIBCUDART

Of its STEPS, SLOW_BATCH waits long for its data, and in SLOW_SYNC the device takes long. Prints one line
of JSON: between which two moments each step ended, by CLOCK_MONOTONIC.
"""

import ctypes
import json
import os
import sys
import time

STEPS, SLOW_BATCH, SLOW_SYNC = 61, 31, 47
SLOW_S = 0.3
LAUNCHES = 7
WAIT_S, DEVICE_NS = 0.003, 4_000_000


def main():
    from torch.optim.optimizer import Optimizer  # noqa: PLC0415 - as programs do
    from torch.utils.data.dataloader import DataLoader  # noqa: PLC0415

    cuda = ctypes.CDLL(sys.argv[1])
    optimizer = Optimizer()
    address, ends_ns = ctypes.c_void_p(), []
    for batch, _ in enumerate(DataLoader(STEPS + 1, WAIT_S, {SLOW_BATCH: SLOW_S})):
        device_ns = int(SLOW_S * 1e9) if batch == SLOW_SYNC else DEVICE_NS
        cuda.stub_set(b"cudaDeviceSynchronize", b"sleep_ns=%d" % device_ns)
        for _ in range(LAUNCHES):
            cuda.cudaLaunchKernel(address, 1, 1, 1, 1, 1, 1, None, ctypes.c_size_t(0), None)
        cuda.cudaDeviceSynchronize()
        before_ns = time.monotonic_ns()
        optimizer.step()
        ends_ns.append((before_ns, time.monotonic_ns()))
    print(json.dumps({"pid": os.getpid(), "ends_ns": ends_ns}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
