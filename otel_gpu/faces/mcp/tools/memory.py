"""``get_memory_balance``: what was allocated and freed, and whether that got slower."""

from collections.abc import Sequence
from typing import Any

from otel_gpu.faces.mcp.answers import first_of, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Question
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, since
from otel_gpu.findings.document import Api, Balance, Document, Slot
from otel_gpu.findings.memory import ROLES

_DEFAULT = 30
_BALANCE = (
    *("pid", "service", "allocations", "frees", "allocations_not_freed"),
    *("allocated_bytes", "freed_bytes", "bytes_in_use_more_at_end"),
)
_APIS = ("pid", "api", "does", "calls", "errors", "p50_us", "p99_us", "max_us", "bytes")
# Fewer points have no first and last third.
_LEAST = 3
_POINTS = ("at_us", "calls", "mean_us")


def answer(capture: Capture, question: Question) -> Answer:
    """Return the balance per process, the calls per API, and latency over time."""
    document = capture.study(question.begin, question.end, question.pids).document
    limit = question.values.get("limit", _DEFAULT)
    apis = [_api(row) for row in document.apis if row.api in ROLES]
    note = ""
    if apis and not document.balances:
        note = "What was freed is not known in this capture, or no call succeeded: no balance."
    elif not apis:
        note = "No allocating or freeing call was counted."
    return {
        **about(document),
        "balance": first_of([_balance(row) for row in document.balances], limit, _BALANCE),
        "apis": first_of(apis, limit, _APIS),
        "latency": first_of(list(_growth(document)), limit),
        "note": note,
    }


def _balance(row: Balance) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        row.allocations,
        row.frees,
        row.allocations - row.frees,
        row.allocated_bytes,
        row.freed_bytes,
        row.allocated_bytes - row.freed_bytes,
    ]


def _api(row: Api) -> list[object]:
    return [
        row.process.pid,
        name_of(row.api),
        ROLES[row.api],
        row.calls,
        row.errors,
        micros(row.p50_ns),
        micros(row.p99_ns),
        micros(row.max_ns),
        row.size_bytes,
    ]


def _growth(document: Document) -> list[dict[str, Any]]:
    rows = []
    for image in (one.process for one in document.processes):
        slots = [slot for slot in document.slots_of(image) if slot.allocate_calls]
        if not slots:
            continue
        third = max(1, len(slots) // 3)
        first, last = _mean_ns(slots[:third]), _mean_ns(slots[-third:])
        points = [
            [
                since(slot.start_unix_ns, document),
                round(slot.allocate_calls, 1),
                micros(slot.allocate_ns / slot.allocate_calls),
            ]
            for slot in slots
        ]
        rows.append(
            {
                "pid": image.pid,
                "service": service(image),
                "first_third_mean_us": micros(first),
                "last_third_mean_us": micros(last),
                "growth": round(last / first, 2) if first and len(slots) >= _LEAST else None,
                "over_time": first_of(points, len(points), _POINTS),
            }
        )
    return sorted(rows, key=lambda row: (-(row["growth"] or 0), row["pid"]))


def _mean_ns(slots: Sequence[Slot]) -> float:
    calls = sum(slot.allocate_calls for slot in slots)
    return sum(slot.allocate_ns for slot in slots) / calls if calls else 0.0


TOOL = Tool(
    "get_memory_balance",
    "Device memory balance",
    "Allocations against frees of device memory, per process: successful calls, bytes, and what is "
    "held more at the end of the window than at its beginning; per API, with latency; and whether "
    "allocating and freeing got slower over time (growth: mean of the last third over mean of the "
    "first; also what a change from allocating to freeing looks like: see the APIs). More allocations than frees can be a cache that is meant: it is a leak only where it "
    "goes on growing.",
    (*WINDOW, limit_argument(_DEFAULT, 200, "rows of each list")),
    answer,
)
