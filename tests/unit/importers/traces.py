"""Traces as ``torch.profiler`` writes them, small ones."""

import json

from otel_gpu.importers import open_capture
from otel_gpu.options import Config

T0_US = 1_750_000_000_000_000
MAIN, WORKER = 100, 200
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def host(name, start_us, duration_us, category="cpu_op", tid=MAIN, **args):
    """Something that a thread of the host did, so many microseconds after the beginning."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 100, "tid": tid,
        "ts": T0_US + start_us, "dur": duration_us, "args": args,
    }  # fmt: skip


def call(name, start_us, duration_us, correlation=0, tid=MAIN):
    """A call of the CUDA runtime."""
    return host(name, start_us, duration_us, "cuda_runtime", tid, correlation=correlation)


def kernel(start_us, duration_us, correlation=0, name="gemm", stream=7, device=0, **args):
    """Something that a device did."""
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    return {
        "ph": "X", "cat": category, "name": name, "pid": device, "tid": stream,
        "ts": T0_US + start_us, "dur": duration_us,
        "args": {"device": device, "stream": stream, "correlation": correlation, **args},
    }  # fmt: skip


def step(number, start_us, duration_us):
    """A step as the profiler marks it."""
    return host(f"ProfilerStep#{number}", start_us, duration_us, "user_annotation")


def training(steps, *, length_us=1_000, first_us=0, kernels=1):
    """
    Steps of a program that loads for half of each, and then computes.

    Within each: the loader has the first half of the device's time, a batch is copied for a tenth, and
    kernels have the rest, without a gap.
    """
    made, number = [], 1
    for at in range(steps):
        start_us = first_us + at * length_us
        half_us, tenth_us = length_us // 2, length_us // 10
        each_us = (length_us - half_us - tenth_us) // kernels
        made += [
            step(at, start_us, length_us),
            host(LOADER, start_us, half_us - 20, "user_annotation"),
            call("cudaMemcpyAsync", start_us + half_us - 10, 5, number),
            kernel(
                start_us + half_us, tenth_us, number, "Memcpy HtoD (Pinned -> Device)", bytes=4096
            ),
        ]
        for one in range(kernels):
            number += 1
            begin_us = start_us + half_us + tenth_us + one * each_us
            made.append(call("cudaLaunchKernel", start_us + half_us + one, 1, number))
            made.append(kernel(begin_us, each_us, number, f"sgemm_{one}"))
        number += 1
    return made


def trace(events, **head):
    """A whole trace."""
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": list(events), **head}


def write(path, made):
    """Write a trace, or any text, as it is."""
    path.write_text(made if isinstance(made, str) else json.dumps(made, indent=1), "utf-8")
    return path


def read(path):
    """The last trace of a file or folder."""
    with open_capture("torch-trace", path, Config()) as capture:
        *_, found = capture.events()
        return found.trace
