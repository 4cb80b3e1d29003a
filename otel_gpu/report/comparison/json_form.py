"""
A comparison as JSON: the output of ``compare --json``; ``comparison_schema.json`` is the contract.
"""

from typing import Any

from otel_gpu.report.comparison.comparison import BYTES, Comparison, Delta, DeltaKind, Side

SCHEMA_VERSION = 1


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return the document as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": _side(found.a),
        "b": _side(found.b),
        "comparable": found.comparable,
        "reasons": list(found.reasons),
        "basis": str(found.a.basis),
        "step_ns": {
            "a": _rounded(found.a.mean_ns),
            "b": _rounded(found.b.mean_ns),
            "change": _rounded_share(found.change),
        },
        "noise": _rounded_share(found.noise),
        "verdict": str(found.outcome),
        "deltas": [_delta(one) for one in found.deltas if one.a or one.b],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "source": side.source,
        "tool": side.tool,
        "verdict": side.verdict,
        "devices": list(side.devices),
        "ranks": side.ranks,
        "times_ns": [round(time_ns) for time_ns in side.times_ns],
        "median_ns": _rounded(side.median_ns),
        "notes": list(side.notes),
    }


def _delta(delta: Delta) -> dict[str, Any]:
    written: dict[str, Any] = {"what": delta.what, "kind": str(delta.kind)}
    if delta.kind is DeltaKind.SHARE:
        a, b = _rounded_share(delta.a), _rounded_share(delta.b)
        return written | {"a": a, "b": b, "unit": "share", "change_ns": None, "change_bytes": None}
    change, is_memory = round(delta.change), delta.kind in BYTES
    return written | {
        "a": round(delta.a),
        "b": round(delta.b),
        "unit": "bytes" if is_memory else "ns",
        "change_ns": None if is_memory else change,
        "change_bytes": change if is_memory else None,
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _rounded_share(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
