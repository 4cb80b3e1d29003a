"""``get_check``: how far a capture can be trusted; ``get_processes``: the watched processes."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated

from otel_gpu.mcp.answers import first_of, micros, name_of, sanitize
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedCapture, ServedDocument
from otel_gpu.mcp.tool import Answer, fields_of, since, tool
from otel_gpu.report.document import Document, ProcessKey, ProcessReport, key_of
from otel_gpu.report.health import Health
from otel_gpu.report.json_form import answer_form
from otel_gpu.report.render.text.tables import load_lines
from otel_gpu.wire.bodies import CaptureFacts, ProbedLibrary

_MAX_NOTES = 50
_PROBES = ("library", "symbols", "failed")
_SHOWN = 40
_COMMAND = 300


@tool("Health of the capture")
def get_check(capture: ServedCapture, served: ServedDocument) -> Answer:
    """
    The answer in short, and how far the capture can be trusted; read this first. What was lost, what is not known, how many
    calls were counted and how many recorded individually, which libraries have probes, what the
    agent itself cost, and the load of the host, which is context and never a cause.
    """
    document, health = served.document, served.health
    return {
        "kind": capture.kind,
        "answer": answer_form(document),
        # Without counters of losses the answer is unknown.
        "nothing_was_lost": False
        if document.losses or served.error
        else bool(health.counters) or None,
        "losses": dict(document.losses),
        "damaged": sanitize(served.error),
        "not_known": first_of(_not_known(served), _MAX_NOTES),
        "covered": _covered(document, health),
        "probes": first_of(list(map(_library, health.probes.values())), _SHOWN, _PROBES),
        "capture": _made(health.capture) if health.capture else {"mode": "unknown"},
        "agent": _agent(health),
        "host": list(map(sanitize, load_lines(document.load)[:_SHOWN])) if document.load else [],
    }


def _not_known(served: ServedDocument) -> list[str]:
    notes = [*served.document.notes]
    if served.health.is_foreign:
        notes.append("Another tool made the capture: its losses are not known.")
    elif not served.health.counters:
        notes.append("The counters of losses were never read: losses are not known.")
    return [sanitize(note) for note in notes]


def _covered(document: Document, health: Health) -> dict[str, object]:
    return {
        "processes": len(document.processes),
        "calls_counted": sum(row.calls for row in document.apis),
        "calls_kept_one_by_one": health.seen["Call"],
        "calls_rate_limited": _counted(health, "counter_spans_rate_limited"),
        "stacks_rate_limited": _counted(health, "counter_samples_rate_limited"),
        "stalls_kept": health.seen["Stall"],
        "gaps_kept": health.seen["Gap"],
        "readings_of_counters": health.seen["Aggregates"],
        "has_time_account": bool(health.seen["Times"]),
        "incidents": len(document.incidents),
    }


def _counted(health: Health, name: str) -> int | None:
    return health.counters.get(name, 0) if health.counters else None


def _library(info: ProbedLibrary) -> list[object]:
    return [name_of(info["library"]), info.get("symbols", 0), len(info.get("failed", ()))]


def _made(info: CaptureFacts) -> dict[str, object]:
    found: dict[str, object] = {"mode": name_of(info.get("mode", "unknown"))}
    parts: tuple[tuple[str, Mapping[str, object] | None], ...] = (
        ("agent", info.get("agent")),
        ("host", info.get("host")),
        ("settings", info.get("settings")),
        ("source", info.get("source")),
    )
    for part, values in parts:
        if values is not None:
            found[part] = {
                name_of(name): value if isinstance(value, int | float | bool) else name_of(value)
                for name, value in list(values.items())[:_SHOWN]
            }
    if "unknown" in info:
        found["cannot_tell"] = [name_of(what) for what in info["unknown"][:_SHOWN]]
    return found


def _agent(health: Health) -> dict[str, object] | None:
    if not health.status:
        return None
    cpu_ns = health.status.get("cpu_ns", 0)
    used_ns = cpu_ns - health.first_status.get("cpu_ns", 0)
    length_ns = health.last_unix_ns - health.first_unix_ns
    return {
        "cpu_us": micros(cpu_ns),
        "cpu_share_of_a_core": round(used_ns / length_ns, 4) if length_ns > 0 else None,
        "rss_bytes": health.status.get("rss_bytes", 0),
        "dropped": {
            name_of(reason): count
            for reason, count in list(health.status.get("dropped", {}).items())[:_SHOWN]
        },
    }


@tool("Processes")
def get_processes(
    served: ServedDocument, limit: Annotated[int, rows(500, "processes")] = 50
) -> Answer:
    """
    The watched processes, those with most CUDA calls first: name, command line, container, number
    of calls, lost time, verdict. A process without calls (a data loader's worker) is listed if it
    was followed. began_us is relative to the window, null if not known. lost_us is what slow calls
    and gaps took beyond their usual time, explained or not.
    """
    document = served.document
    calls: Counter[ProcessKey] = Counter()
    lost_ns: Counter[ProcessKey] = Counter()
    for row in document.apis:
        calls[key_of(row.process)] += row.calls
    for bucket in document.time_buckets:
        if bucket.process is not None:
            lost_ns[key_of(bucket.process)] += round(bucket.lost_ns)
    processes = {key_of(process.process): process for process in document.processes}
    shown = [
        {
            **_identity(process, served),
            "calls": calls[key],
            "lost_us": micros(lost_ns[key]),
            "verdict": process.verdict,
        }
        for key, process in sorted(processes.items(), key=lambda item: (-calls[item[0]], item[0]))
    ]
    return {"processes": first_of(shown, limit)}


def _identity(process: ProcessReport, served: ServedDocument) -> dict[str, object]:
    health = served.health
    # Another tool does not record when processes that were already running began.
    has_begun = not health.is_foreign or process.start_unix_ns > health.capture_unix_ns
    has_command = process.command != process.process.comm
    return {
        **fields_of(process, "pid service"),
        "thread": name_of(process.process.comm),
        "command": sanitize(process.command, _COMMAND) if has_command else "",
        "began_us": since(process.start_unix_ns, served.document) if has_begun else None,
        **{name: name_of(value) for name, value in process.places.items()},
    }
