"""``get_device_memory``: what holds the memory of devices, and why it ran out."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from otel_gpu.mcp.answers import Listing, micros, present, sanitize
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedDocument
from otel_gpu.mcp.code_locations import MAX_FUNCTION
from otel_gpu.mcp.tool import Answer, since, tool
from otel_gpu.report.document import Document
from otel_gpu.report.memory.snapshot import kept_for, place_text
from otel_gpu.report.memory.types import (
    DeviceMemory,
    GrowingLine,
    Holding,
    KeptMemory,
    Layer,
    OutOfMemoryRow,
    PinnedBy,
)

# Only their lists can be cut, so few of them are written.
_MAX_DEVICES, _MAX_FAILURES, _MAX_ADVICE = 4, 2, 4
_MAX_POINTS = 60
_MAX_KEPT = 8
_SIZES = (
    *("live_bytes", "peak_bytes", "reserved_bytes", "peak_reserved_bytes", "capacity_bytes"),
    *("requested_bytes", "rounding_bytes", "pending_bytes", "stuck_bytes", "whole_free_bytes"),
    "pooled_bytes",
    *("largest_hole_bytes", "before_bytes", "unknown_bytes", "coverage", "blocks"),
    *("allocations", "frees", "segment_allocations", "segment_frees", "expandable_segments"),
)
_FAILURE = (
    *("asked_bytes", "cause", "free_bytes", "reserved_bytes", "live_bytes", "hole_bytes"),
    *("largest_hole_bytes", "elsewhere_bytes", "outside_bytes"),
)
_HOLDING = ("function", "file", "line", "bytes", "blocks")
_PIN = ("function", "file", "line", "hole_bytes", "bytes", "blocks")
_GROWTH = ("function", "file", "line", "bytes_per_s", "r_squared", "readings", "full_in_s")
_WINDOW = ("at_us", "calls", "mean_us", "max_us", "bytes", "frees")
_POINT = ("at_us", "in_use_bytes", "reserved_bytes")
_NOTHING = (
    "This capture has no allocator of a framework, and no memory snapshot. "
    "get_memory_balance has the allocations and frees of CUDA calls."
)


@tool("Device memory")
def get_device_memory(
    served: ServedDocument, limit: Annotated[int, rows(100, "lines in each list")] = 10
) -> Answer:
    """
    What holds the memory of each device, as reported by the allocator of each process (PyTorch's):
    in use, reserved, peak, and the uses of reserved memory (requested, rounding, pending: waits for
    a stream, stuck: free between blocks, pooled: free in private pools, which keep it, whole_free:
    can be released); holders by line of the program at the peak and at the end; growth: lines that
    hold more and more, with R² and the time when the device would be full; failures: failed
    requests, with cause (exhausted, fragmentation, other_process, leak, fitting_hole: a hole that
    fits was not used, private_pool, other_stream and kept_cache: enough is free, but kept by
    these), free memory, kept (and for what), pins (lines whose blocks keep holes apart) and holders
    at that time; calls_over_time: the allocating calls of a runtime or driver; to_do, where "that
    line" is the one that requested, keeps or holds most. Layers (driver, runtime, framework) hold
    the same memory: never add them up. A large share of free memory in small holes is usual, and
    not a problem without a failure. A function in brackets stands for unknown code. null: not
    known.
    """
    document = served.document
    shown = document.memory[:_MAX_DEVICES]
    return {
        "devices": [_device(row, document, limit) for row in shown],
        **present(more_devices=len(document.memory) - len(shown)),
        "note": "" if any(row.layer == Layer.FRAMEWORK for row in shown) else _NOTHING,
    }


def _device(row: DeviceMemory, document: Document, limit: int) -> dict[str, object]:
    service = next(
        (one.service_name for one in document.processes if one.process.pid == row.pid), ""
    )
    peak_at = None if row.peak_unix_ns is None else since(row.peak_unix_ns, document)
    return {
        **present(service=sanitize(service, MAX_FUNCTION)),
        "pid": row.pid,
        "device": row.device,
        "layer": row.layer,
        **{name: getattr(row, name) for name in _SIZES},
        "peak_at_us": peak_at,
        "failures": [_failure(oom, document, limit) for oom in row.ooms[-_MAX_FAILURES:]],
        **present(failures_before=len(row.ooms[:-_MAX_FAILURES])),
        "to_do": _advice(row),
        "growth": _table(row.growth, _GROWTH, limit),
        "holders_at_peak": _table(row.holders, _HOLDING, limit),
        "holders_in_the_end": _table(row.end_holders, _HOLDING, limit),
        "kept_by_every_phase": _table(row.leaks, _HOLDING, limit),
        "allocated_most": _table(row.churn, _HOLDING, limit),
        "over_time": _points(row, document),
        "calls_over_time": _windows(row, document),
    }


def _failure(oom: OutOfMemoryRow, document: Document, limit: int) -> dict[str, object]:
    return {
        "at_us": None if oom.unix_ns is None else since(oom.unix_ns, document),
        **_line(oom),
        **{name: getattr(oom, name) for name in _FAILURE},
        "pins": _table(oom.pins, _PIN, limit),
        "holders": _table(oom.holders, _HOLDING, limit),
        "kept_by_every_phase": _table(oom.leaks, _HOLDING, limit),
        **present(kept=[_kept(one) for one in oom.kept[:_MAX_KEPT]]),
    }


def _kept(one: KeptMemory) -> dict[str, object]:
    sizes = ("free_bytes", "whole_bytes", "largest_hole_bytes")
    return {
        "for": sanitize(kept_for(one), MAX_FUNCTION),
        **{name: getattr(one, name) for name in sizes},
    }


def _line(row: Holding | PinnedBy | GrowingLine | OutOfMemoryRow) -> dict[str, object]:
    names = {name: sanitize(getattr(row, name), MAX_FUNCTION) for name in ("function", "file")}
    return {**names, "line": row.line or None}


def _table(
    found: Sequence[Holding | PinnedBy | GrowingLine], columns: tuple[str, ...], limit: int
) -> Listing:
    def values(row: Holding | PinnedBy | GrowingLine) -> Iterator[object]:
        line = _line(row)
        for name in columns:
            value = getattr(row, "size_bytes" if name == "bytes" else name)
            yield line[name] if name in line else round(value, 4) if type(value) is float else value

    return Listing([[*values(row)] for row in found[:limit]], columns, len(found[limit:]))


def _points(row: DeviceMemory, document: Document) -> Listing:
    # The peak of each of _MAX_POINTS intervals.
    readings, step = row.readings, -(-len(row.readings) // _MAX_POINTS) or 1
    parts = (readings[first : first + step] for first in range(0, len(readings), step))
    most = (max(part, key=lambda one: one.live_bytes) for part in parts)
    points = [[since(one.unix_ns, document), one.live_bytes, one.reserved_bytes] for one in most]
    return Listing(points, _POINT)


def _windows(row: DeviceMemory, document: Document) -> Listing:
    windows = [
        [
            *(since(one.start_unix_ns, document), one.calls),
            *(micros(one.mean_ns), micros(one.max_ns), one.size_bytes, one.frees),
        ]
        for one in row.windows
    ]
    return Listing(windows[:_MAX_POINTS], _WINDOW, len(windows[_MAX_POINTS:]))


def _advice(row: DeviceMemory) -> list[str]:
    # Advice about calls names lines that are nowhere else in the row: see get_causal_chains.
    found = row.advice if row.layer == Layer.FRAMEWORK else ()
    return [_without_names(text, row) for text in found[:_MAX_ADVICE]]


def _without_names(text: str, row: DeviceMemory) -> str:
    # A traced name is never part of a sentence here.
    named: list[Holding | PinnedBy | GrowingLine | OutOfMemoryRow] = [*row.growth, *row.leaks[:1]]
    named += row.end_holders[:1]
    for oom in row.ooms:
        named += (oom, *oom.holders[:1], *oom.leaks[:1])
    for place in sorted({place_text(one) for one in named}, key=len, reverse=True):
        text = text.replace(place, "that line")
    return text
