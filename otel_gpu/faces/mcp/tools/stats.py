"""``get_trace_stats``: which calls there were, and what happened when."""

from typing import Annotated

from otel_gpu.faces.mcp.answers import micros
from otel_gpu.faces.mcp.arguments import Question, rows
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.tool import Answer, about, since, table, tool
from otel_gpu.findings.document import Api, Slot
from otel_gpu.findings.health import DISTRIBUTIONS, STATES
from otel_gpu.findings.phases import phase_of


@tool("Calls per API")
def get_trace_stats(
    capture: Capture, asked: Question, limit: Annotated[int, rows(500, "rows of APIs")] = 30
) -> Answer:
    """
    How a run went: for each process and CUDA API the number of calls and errors (exact, also of
    calls that were not kept one by one), median, 99th percentile, maximum and sum of host time in
    microseconds, and bytes; then the same over time, with a word for each phase. A launch returns
    when the kernel is queued, so its time is never the kernel's. lost_us counts what has a cause;
    over_time, also what has none.
    """
    study = capture.study(asked)
    document, health = study.document, study.health
    knows_states = not health.lacks(STATES)
    return {
        **about(document),
        "calls": sum(row.calls for row in document.apis),
        "errors": sum(row.errors for row in document.apis),
        "lost_us": micros(sum(incident.lost_ns for incident in document.incidents)),
        "incidents": len(document.incidents),
        "apis": table(
            document.apis,
            "pid service api layer calls errors p50_us p99_us p99_to_p50 max_us sum_us bytes",
            limit,
            p99_to_p50=_tail,
        ),
        "over_time": table(
            document.slots_of(None),
            "at_us calls mean_us allocating_calls allocating_mean_us run_queue_us lost_us phase",
            at_us=lambda slot: since(slot.start_unix_ns, document),
            calls=lambda slot: round(slot.calls, 1),
            mean_us=_mean_us,
            allocating_calls=lambda slot: round(slot.allocate_calls, 1),
            allocating_mean_us=allocating_mean_us,
            run_queue_us=lambda slot: micros(slot.run_queue_ns) if knows_states else None,
            phase=lambda slot: str(phase_of(slot)),
        ),
        "losses": dict(document.losses) if health.counters or document.losses else None,
        "notes": list(health.notes(DISTRIBUTIONS)),
    }


def allocating_mean_us(slot: Slot) -> float | None:
    """Return how long a call that allocates or frees took; None without any."""
    return micros(slot.allocate_ns / slot.allocate_calls) if slot.allocate_calls else None


def _mean_us(slot: Slot) -> float | None:
    return micros(slot.call_ns / slot.calls) if slot.calls else None


def _tail(row: Api) -> float | None:
    return round(row.p99_ns / row.p50_ns, 1) if row.p50_ns > 0 else None
