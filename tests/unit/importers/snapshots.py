"""Snapshots of PyTorch's allocator, made as it makes them."""

import pickle

MIB = 1 << 20
T0_US = 1_750_000_000_000_000
SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False}


def frame(file, line, name="step"):
    """A frame of a stack."""
    return {"name": name, "filename": file, "line": line}


TORCH = frame("/v/lib/python3.12/site-packages/torch/nn/functional.py", 7, "linear")


def stack(file, line, name="step"):
    """A stack: torch, the line, and what called it."""
    return [TORCH, frame(file, line, name), frame("/app/train.py", 1, "<module>")]


BACKWARD = [
    frame("/v/lib/python3.12/site-packages/torch/autograd/graph.py", 841, "_engine_run_backward"),
    frame("/app/train.py", 80, "backward"),
]


def block(address, size, state="active_allocated", frames=(), requested=None):
    """A block of a segment."""
    return {
        "address": address,
        "size": size,
        "requested_size": size if requested is None else requested,
        "state": state,
        "frames": list(frames),
    }


def segment(address, blocks, *, kind="large", **more):
    """A segment that consists of its blocks."""
    used = [one for one in blocks if one["state"] != "inactive"]
    return {
        "device": 0,
        "address": address,
        "total_size": sum(one["size"] for one in blocks),
        "allocated_size": sum(o["size"] for o in used if o["state"] == "active_allocated"),
        "active_size": sum(one["size"] for one in used),
        "requested_size": sum(one["requested_size"] for one in used),
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    } | more


def event(action, address, size, at=0, frames=(), **more):
    """Something that was done, so many microseconds after the beginning."""
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": T0_US + at,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": frames if isinstance(frames, list) else list(frames),
    } | more


def freed(address, size, at=0):
    """The two events of a free."""
    return [event("free_requested", address, size, at), event("free_completed", address, size, at)]


def oom(size, device_free, at=0, frames=()):
    """What PyTorch records when memory runs out."""
    made = event("oom", 0, size, at, frames)
    del made["addr"]
    return made | {"device_free": device_free}


def snapshot(segments, *traces, **more):
    """A snapshot with a trace for each device."""
    return {
        "segments": segments,
        "device_traces": list(traces) or [[]],
        "allocator_settings": dict(SETTINGS),
        "external_annotations": [],
    } | more


def write(path, made, protocol=4):
    """Write it as ``_dump_snapshot`` does."""
    path.write_bytes(pickle.dumps(made, protocol=protocol))
    return path
