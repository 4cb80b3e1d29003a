"""
A PyTorch program with a known number of launches, copies and synchronizations a step.

Usage: torch_steps.py STEPS. Each step makes three elementwise kernels, one copy to the
host of 4096 bytes and one device synchronization. Prints what the allocator says.
"""

import json
import os
import sys

import torch

WARM_UP_STEPS = 5


def main() -> None:
    """Make the warm-up steps and STEPS more."""
    device = torch.device("cuda", 0)
    torch.cuda.get_device_properties(device)
    values = torch.zeros(1024, dtype=torch.float32, device=device)
    host = torch.empty(1024, dtype=torch.float32, pin_memory=True)
    for _ in range(WARM_UP_STEPS + int(sys.argv[1])):
        values.add_(1.0)
        values.mul_(1.0)
        values.sub_(0.5)
        host.copy_(values, non_blocking=True)
        torch.cuda.synchronize(device)
    statistics = torch.cuda.memory_stats(device)
    line = {
        "pid": os.getpid(),
        "device_allocations": statistics["num_device_alloc"],
        "device_frees": statistics["num_device_free"],
        "value": float(host[0]),
    }
    json.dump(line, sys.stdout)
    sys.stdout.write("\n")


main()
