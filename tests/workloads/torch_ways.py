"""
A PyTorch program that reaches the device in one of the ways that programs do.

Usage: torch_ways.py WAY TIMES. "graph" replays a captured graph of two kernels, "triton" launches a kernel of
its own, "nccl" makes collectives in a group of one. Prints its pid.
"""

import json
import os
import sys

import torch


def replay(times: int) -> None:
    """Replay a graph whose memory is allocated while it is captured."""
    values = torch.zeros(1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        values.add_(1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.copy_(values * 2.0)
    for _ in range(times):
        graph.replay()
    torch.cuda.synchronize()


def launch(times: int) -> None:
    """Launch a kernel that Triton compiles, which calls the driver by itself."""
    from triton_kernel import add_one  # noqa: PLC0415 -- not every PyTorch has Triton

    values = torch.zeros(1024, device="cuda")
    for _ in range(times):
        add_one[(1,)](values, BLOCK=1024)
    torch.cuda.synchronize()
    assert float(values[0]) == times


def collect(times: int) -> None:
    """Reduce over a group that has one rank, and learn each time that it is done."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
    values = torch.zeros(1024, device="cuda")
    for _ in range(times):
        torch.distributed.all_reduce(values)
        torch.cuda.synchronize()
    torch.distributed.destroy_process_group()


{"graph": replay, "triton": launch, "nccl": collect}[sys.argv[1]](int(sys.argv[2]))
json.dump({"pid": os.getpid()}, sys.stdout)
sys.stdout.write("\n")
