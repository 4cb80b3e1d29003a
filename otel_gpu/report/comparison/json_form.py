"""
A comparison as JSON: the output of ``compare --json``.

``comparison_schema.json``, the contract, is generated from the types here.
"""

from typing import Annotated, TypedDict

from otel_gpu.formatting.field_types import AnyFloat, Signed, one_of
from otel_gpu.report.comparison.comparison import (
    BYTES,
    Basis,
    Comparison,
    ComparisonOutcome,
    Delta,
    DeltaKind,
    Side,
)

SCHEMA_VERSION = 1


class StepTime(TypedDict):
    """
    The mean time of one step, window or call; None: not known.

    Attributes:
        change: As a share of ``a``.
    """

    a: Signed | None
    b: Signed | None
    change: AnyFloat | None


class ComparedSide(TypedDict):
    """
    One side of a comparison.

    Attributes:
        tool: The tool that recorded it.
        devices: The models of its devices; empty: not known.
        ranks: The number of processes of the run; None: not known.
        times_ns: Of each step that counts.
        median_ns: Of the steps; None: not known.
    """

    source: str
    tool: str
    verdict: str
    devices: list[str]
    ranks: int | None
    times_ns: list[Signed]
    median_ns: Signed | None
    notes: list[str]


class ComparedFigure(TypedDict):
    """
    One figure of both sides.

    Attributes:
        a: Per step, window or call; of a share, of the total.
        b: As ``a``.
        change_ns: None: it is not a time.
        change_bytes: None: it is not a size.
    """

    what: str
    kind: DeltaKind
    a: AnyFloat
    b: AnyFloat
    unit: Annotated[str, one_of(("ns", "bytes", "share"))]
    change_ns: Signed | None
    change_bytes: Signed | None


class ComparisonDocument(TypedDict):
    """
    Two captures of one program, compared.

    Attributes:
        schema_version: It grows when a key is removed or changes its meaning.
        comparable: Whether times can be compared.
        reasons: Why they cannot, and further differences of the sides.
        basis: The unit of times of the first.
        step_ns: How long a step, window or call takes.
        noise: The share of ``a`` that a change has to exceed; None: not known.
        deltas: By kind, the largest changes first.
    """

    schema_version: int
    a: ComparedSide
    b: ComparedSide
    comparable: bool
    reasons: list[str]
    basis: Basis
    step_ns: StepTime
    noise: float | None
    verdict: ComparisonOutcome
    deltas: list[ComparedFigure]


def comparison_document(found: Comparison) -> ComparisonDocument:
    """Return the document as plain JSON values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "a": _side(found.a),
        "b": _side(found.b),
        "comparable": found.comparable,
        "reasons": list(found.reasons),
        "basis": found.a.basis,
        "step_ns": {
            "a": _rounded(found.a.mean_ns),
            "b": _rounded(found.b.mean_ns),
            "change": _rounded_share(found.change),
        },
        "noise": _rounded_share(found.noise),
        "verdict": found.outcome,
        "deltas": [_delta(one) for one in found.deltas if one.a or one.b],
    }


def _side(side: Side) -> ComparedSide:
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


def _delta(delta: Delta) -> ComparedFigure:
    if delta.kind is DeltaKind.SHARE:
        return {
            "what": delta.what,
            "kind": delta.kind,
            "a": round(delta.a, 6),
            "b": round(delta.b, 6),
            "unit": "share",
            "change_ns": None,
            "change_bytes": None,
        }
    change, is_memory = round(delta.change), delta.kind in BYTES
    return {
        "what": delta.what,
        "kind": delta.kind,
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
