"""``get_comparison``: two captures, or two windows of one: whether it is slower, and where."""

from typing import Annotated

from pydantic import Field

from otel_gpu.mcp.answers import first_of, micros, name_of
from otel_gpu.mcp.arguments import Question, TimeText, rows
from otel_gpu.mcp.captures import ServedCapture
from otel_gpu.mcp.tool import Answer, share, tool
from otel_gpu.report.comparison.comparison import BYTES, Comparison, Delta, DeltaKind, Side

_MAX_DEVICES = 8
_COLUMNS = ("kind", "what", "before", "after", "change", "unit")


@tool("Comparison")
def get_comparison(
    capture: ServedCapture,
    asked: Question,
    before_from: Annotated[
        TimeText, Field(description="Start of the window to compare with; as from.")
    ] = "",
    before_to: Annotated[
        TimeText, Field(description="End of the window to compare with; as from.")
    ] = "",
    limit: Annotated[int, rows(100, "rows of each kind")] = 8,
) -> Answer:
    """
    Whether the capture (or its window from, to) is slower than before, by more than noise, and
    where. It is compared with the server's baseline or, with before_from and before_to, with
    another window of this capture. Check comparable and reasons first: if times cannot be compared
    the answer has no verdict, and changes are only of memory and shares. basis: the unit that times refer
    to (step, window, CUDA call). change and noise are shares of before. changes, the largest first,
    by kind: part (of a step, sums to the change), phase (of the device), state (of threads), cause,
    kernel_kind, kernel, operation, line, memory, memory_line, memory_file, share.
    """
    before = None
    if before_from or before_to:
        before = Question.model_validate(
            {"from": before_from, "to": before_to, "pids": list(asked.pids)}
        )
    found = capture.compare(asked, before)
    names = {*found.a.devices, *found.b.devices, *found.a.programs, *found.b.programs}
    return {
        "before": _side(found.a),
        "after": _side(found.b),
        "comparable": found.comparable,
        "reasons": [_without(reason, names) for reason in found.reasons],
        "verdict": str(found.outcome),
        "basis": str(found.a.basis),
        "change": None if found.change is None else share(found.change),
        "noise": None if found.noise is None else share(found.noise),
        "changes": first_of(_changes(found, limit), limit * len(DeltaKind), _COLUMNS),
    }


def _side(side: Side) -> dict[str, object]:
    return {
        "tool": name_of(side.tool),
        "devices": list(map(name_of, side.devices[:_MAX_DEVICES])),
        "programs": list(map(name_of, sorted(side.programs)[:_MAX_DEVICES])),
        "ranks": side.ranks,
        "times": len(side.times_ns),
        "mean_us": micros(side.mean_ns),
        "median_us": micros(side.median_ns),
        "verdict": side.verdict,
    }


def _changes(found: Comparison, limit: int) -> list[list[object]]:
    of_kind = ([one for one in found.of(kind) if one.change][:limit] for kind in DeltaKind)
    return [_row(one) for ranked in of_kind for one in ranked]


def _row(delta: Delta) -> list[object]:
    figures = (delta.a, delta.b, delta.change)
    named = [str(delta.kind), name_of(delta.what)]
    if delta.kind is DeltaKind.SHARE:
        return [*named, *map(share, figures), "share"]
    if delta.kind in BYTES:
        return [*named, *map(round, figures), "bytes"]
    return [*named, *map(micros, figures), "us"]


def _without(reason: str, names: set[str]) -> str:
    # A traced name is never part of a sentence here: both sides list their names.
    for name in sorted(names, key=lambda one: (-len(one), one)):
        reason = reason.replace(name, "that one") if name else reason
    return reason
