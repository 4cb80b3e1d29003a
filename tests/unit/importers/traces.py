"""Traces as ``torch.profiler`` writes them, small ones."""

import json

T0_US = 1_750_000_000_000_000
MAIN, WORKER = 100, 200


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


def trace(events, **head):
    """A whole trace."""
    return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": list(events), **head}


def write(path, made):
    """Write a trace, or any text, as it is."""
    path.write_text(made if isinstance(made, str) else json.dumps(made, indent=1), "utf-8")
    return path
