"""``get_trace_stats``: which calls there were, and what happened when."""

from otel_gpu.faces.mcp.answers import first_of, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Question
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, since
from otel_gpu.findings.document import Api, Document, Slot
from otel_gpu.findings.health import DISTRIBUTIONS, STATES
from otel_gpu.findings.phases import phase_of

_DEFAULT = 30
_APIS = (
    *("pid", "service", "api", "layer", "calls", "errors"),
    *("p50_us", "p99_us", "p99_to_p50", "max_us", "sum_us", "bytes"),
)
_SLOTS = (
    *("at_us", "calls", "mean_us", "allocating_calls", "allocating_mean_us"),
    *("run_queue_us", "lost_us", "phase"),
)


def answer(capture: Capture, question: Question) -> Answer:
    """Return calls per API and process, and what happened when."""
    study = capture.study(question.begin, question.end, question.pids)
    document, health = study.document, study.health
    limit = question.values.get("limit", _DEFAULT)
    return {
        **about(document),
        "calls": sum(row.calls for row in document.apis),
        "errors": sum(row.errors for row in document.apis),
        "lost_us": micros(sum(incident.lost_ns for incident in document.incidents)),
        "incidents": len(document.incidents),
        "apis": first_of([_api(row) for row in document.apis], limit, _APIS),
        "over_time": first_of(
            [
                _slot(slot, document, knows_states=not health.lacks(STATES))
                for slot in document.slots_of(None)
            ],
            len(document.slots),
            _SLOTS,
        ),
        "losses": dict(document.losses) if health.counters or document.losses else None,
        "notes": list(health.notes(DISTRIBUTIONS)),
    }


def _api(row: Api) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        name_of(row.api),
        row.layer,
        row.calls,
        row.errors,
        micros(row.p50_ns),
        micros(row.p99_ns),
        round(row.p99_ns / row.p50_ns, 1) if row.p50_ns > 0 else None,
        micros(row.max_ns),
        micros(row.sum_ns),
        row.size_bytes,
    ]


def _slot(slot: Slot, document: Document, *, knows_states: bool) -> list[object]:
    return [
        since(slot.start_unix_ns, document),
        round(slot.calls, 1),
        micros(slot.call_ns / slot.calls) if slot.calls else None,
        round(slot.allocate_calls, 1),
        micros(slot.allocate_ns / slot.allocate_calls) if slot.allocate_calls else None,
        micros(slot.run_queue_ns) if knows_states else None,
        micros(slot.lost_ns),
        str(phase_of(slot)),
    ]


TOOL = Tool(
    "get_trace_stats",
    "Calls per API",
    "How a run went: for each process and CUDA API the number of calls and errors (exact, also of "
    "calls that were not kept one by one), median, 99th percentile, maximum and sum of host time in "
    "microseconds, and bytes; then the same over time, with a word for each phase. A launch returns "
    "when the kernel is queued, so its time is never the kernel's. lost_us counts what has a cause; "
    "over_time, also what has none.",
    (*WINDOW, limit_argument(_DEFAULT, 500, "rows of APIs")),
    answer,
)
