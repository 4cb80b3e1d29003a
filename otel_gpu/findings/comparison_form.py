"""A comparison as JSON: what ``compare --json`` prints; ``comparison_schema.json`` beside it is the contract."""

from typing import Any

from otel_gpu.findings.comparison import BYTES, Comparison, Delta, Side

SCHEMA_VERSION = 1


def comparison_document(found: Comparison) -> dict[str, Any]:
    """Return the document; it holds nothing but what JSON can."""
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
    a, b = round(delta.a), round(delta.b)
    written = {"what": delta.what, "kind": str(delta.kind), "a": a, "b": b}
    is_memory = delta.kind in BYTES
    return written | {
        "unit": "bytes" if is_memory else "ns",
        "change_ns": None if is_memory else round(delta.change),
        "change_bytes": round(delta.change) if is_memory else None,
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _rounded_share(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
