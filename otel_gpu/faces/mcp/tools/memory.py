"""``get_memory_balance``: what was allocated and freed, and whether that got slower."""

from collections.abc import Sequence
from typing import Annotated, Any

from otel_gpu.faces.mcp.answers import first_of, micros
from otel_gpu.faces.mcp.arguments import Question, rows
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.tool import Answer, about, service, since, table, tool
from otel_gpu.faces.mcp.tools.stats import allocating_mean_us
from otel_gpu.findings.document import Document, Slot
from otel_gpu.findings.memory import ROLES

# Fewer points have no first and last third.
_LEAST = 3


@tool("Device memory balance")
def get_memory_balance(
    capture: Capture, asked: Question, limit: Annotated[int, rows(200, "rows of each list")] = 30
) -> Answer:
    """
    Allocations against frees of device memory, per process: successful calls, bytes, and what is
    held more at the end of the window than at its beginning; per API, with latency; and whether
    allocating and freeing got slower over time (growth: mean of the last third over mean of the
    first; also what a change from allocating to freeing looks like: see the APIs). More
    allocations than frees can be a cache that is meant: it is a leak only where it goes on
    growing.
    """
    document = capture.study(asked).document
    apis = [row for row in document.apis if row.api in ROLES]
    note = ""
    if apis and not document.balances:
        note = "What was freed is not known in this capture, or no call succeeded: no balance."
    elif not apis:
        note = "No allocating or freeing call was counted."
    return {
        **about(document),
        "balance": table(
            document.balances,
            "pid service allocations frees allocations_not_freed allocated_bytes freed_bytes "
            "bytes_in_use_more_at_end",
            limit,
            allocations_not_freed=lambda row: row.allocations - row.frees,
            bytes_in_use_more_at_end=lambda row: row.allocated_bytes - row.freed_bytes,
        ),
        "apis": table(
            apis,
            "pid api does calls errors p50_us p99_us max_us bytes",
            limit,
            does=lambda row: ROLES[row.api],
        ),
        "latency": first_of(_growth(document), limit),
        "note": note,
    }


def _growth(document: Document) -> list[dict[str, Any]]:
    found = []
    for image in document.images:
        slots = [slot for slot in document.slots_of(image) if slot.allocate_calls]
        if not slots:
            continue
        third = max(1, len(slots) // 3)
        first, last = _mean_ns(slots[:third]), _mean_ns(slots[-third:])
        points = table(
            slots,
            "at_us calls mean_us",
            at_us=lambda slot: since(slot.start_unix_ns, document),
            calls=lambda slot: round(slot.allocate_calls, 1),
            mean_us=allocating_mean_us,
        )
        found.append(
            {
                "pid": image.pid,
                "service": service(image),
                "first_third_mean_us": micros(first),
                "last_third_mean_us": micros(last),
                "growth": round(last / first, 2) if first and len(slots) >= _LEAST else None,
                "over_time": points,
            }
        )
    return sorted(found, key=lambda row: (-(row["growth"] or 0), row["pid"]))


def _mean_ns(slots: Sequence[Slot]) -> float:
    calls = sum(slot.allocate_calls for slot in slots)
    return sum(slot.allocate_ns for slot in slots) / calls if calls else 0.0
