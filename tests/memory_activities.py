"""Activities about device memory, as ``enrich`` makes them, from the values that matter to a test."""

from otel_gpu.decode.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.enrich.activities import BlocksActivity, OutOfMemoryActivity
from otel_gpu.enrich.stack_table import find_place
from otel_gpu.stacks.frames import Frame
from tests.activities import H100, SECOND, T0, call_stack

MIB = 1 << 20
WEIGHTS, CACHE, STEP = (("build", 12), ("remember", 61), ("forward", 40))


def stack_at(function, line):
    """A stack whose line is in train.py; its id is the line's."""
    frames = (
        Frame("cpython", function, "/app/train.py", line),
        Frame("cpython", "<module>", "/app/train.py", 1),
    )
    return call_stack(line, frames)._replace(place=find_place(frames))


def totals(allocated, **values):
    """Totals of a device, of which all was seen, if not said otherwise."""
    known = dict.fromkeys(MemoryTotals._fields, 0) | {
        "allocated_bytes": allocated,
        "reserved_bytes": allocated,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": values.get("reserved_bytes", allocated),
        "handed_out_bytes": allocated,
    }
    return MemoryTotals(**{**known, **values})


def held(place, live, allocated=None, blocks=1):
    """A holder: its key, what it holds, and where that was allocated."""
    function, line = place
    known = Holder(live, blocks if live else 0, allocated or live, blocks, live)
    return line, known, stack_at(function, line)


def blocks(process, at_s, *holders, device=0, identity=H100, **values):
    """A reading of one device; what it allocated is what holders hold, if not said otherwise."""
    allocated = values.pop("allocated_bytes", sum(holder.live_bytes for _, holder, _ in holders))
    last = {"last_ktime_ns": round(at_s * SECOND)}
    return BlocksActivity(
        T0 + round(at_s * SECOND),
        process,
        device,
        identity,
        totals(allocated, **last, **values),
        holders,
    )


def out_of_memory(process, at_s, asked, place=STEP, *, holders=(), segments=(), api=None, **values):
    """A request that failed; ``segments`` are (address, size), ``holders`` as those of ``blocks``."""
    ktime_ns = round(at_s * SECOND)
    known = dict.fromkeys(OutOfMemory._fields, 0) | {
        "ktime_ns": ktime_ns,
        "image_ktime_ns": process.image_ktime_ns,
        "pid": process.pid,
        "tid": process.pid,
        "asked_bytes": asked,
        "source": 1,
        "comm": process.comm,
    }
    stack = stack_at(*place)
    event = OutOfMemory(**{**known, **values, "user_stack": stack.id})
    found = [(key, holder, one) for key, holder, one in holders]
    memory_map = {
        "segments": [list(one) for one in segments],
        "blocks": [
            [number, holder.live_bytes, key] for number, (key, holder, _) in enumerate(found)
        ],
        "left_out": 0,
        "smallest_bytes": 0,
    }
    span = (ktime_ns.to_bytes(16, "big"), ktime_ns.to_bytes(8, "big"), b"")
    stacks = {key: one for key, _, one in found}
    return OutOfMemoryActivity(
        T0 + ktime_ns, process, event, H100, api, stack, memory_map, stacks, *span
    )
