"""How far a capture can be trusted, and who was watched."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from otel_gpu.mcp.answers import first_of, inert, micros, name_of
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedCapture, ServedDocument
from otel_gpu.mcp.tool import Answer, noun, since, tool
from otel_gpu.report.document import Document, ProcessKey, ProcessReport, key_of
from otel_gpu.report.health import Health
from otel_gpu.report.render.text.tables import load_lines

_MAX_NOTES = 50
_PROBES = ("library", "symbols", "failed")
_SHOWN = 40
_COMMAND = 300


@tool("Health of the capture")
def get_check(capture: ServedCapture, study: ServedDocument) -> Answer:
    """
    How far the capture can be trusted, to be read first: what was lost, what is not known, how
    many calls were counted and how many kept one by one, which libraries carry probes, what the
    agent itself cost, and the load of the host, which is context and never a cause.
    """
    document, health = study.document, study.health
    return {
        "kind": capture.kind,
        # Who counted no losses does not know of any.
        "nothing_was_lost": False
        if document.losses or study.error
        else bool(health.counters) or None,
        "losses": dict(document.losses),
        "damaged": inert(study.error),
        "not_known": first_of(_not_known(study), _MAX_NOTES),
        "covered": _covered(document, health),
        "probes": first_of(list(map(_library, health.probes.values())), _SHOWN, _PROBES),
        "capture": _made(health.capture),
        "agent": _agent(health),
        "host": list(map(inert, load_lines(document.load)[:_SHOWN])) if document.load else [],
    }


def _not_known(study: ServedDocument) -> list[str]:
    notes = [*study.document.notes]
    if study.health.is_foreign:
        notes.append("The capture was made by another tool: what that lost is not known.")
    elif not study.health.counters:
        notes.append("The counters of losses were never read: what was lost is not known.")
    return [inert(note) for note in notes]


def _covered(document: Document, health: Health) -> dict[str, Any]:
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


def _library(info: Mapping[str, Any]) -> list[object]:
    failed = info.get("failed")
    return [
        name_of(info.get("library", "")),
        _number(info.get("symbols")),
        len(failed) if isinstance(failed, list | tuple) else 0,
    ]


def _made(info: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"mode": name_of(info.get("mode", "unknown"))}
    for part in ("agent", "host", "settings", "source"):
        values = info.get(part)
        if isinstance(values, Mapping):
            found[part] = {
                name_of(name): value if isinstance(value, int | float | bool) else name_of(value)
                for name, value in list(values.items())[:_SHOWN]
            }
    unknown = info.get("unknown")
    if isinstance(unknown, list | tuple):
        found["cannot_tell"] = [name_of(what) for what in unknown[:_SHOWN]]
    return found


def _agent(health: Health) -> dict[str, Any] | None:
    if not health.status:
        return None
    cpu_ns = _number(health.status.get("cpu_ns"))
    used_ns = cpu_ns - _number(health.first_status.get("cpu_ns"))
    length_ns = health.last_unix_ns - health.first_unix_ns
    dropped = health.status.get("dropped")
    return {
        "cpu_us": micros(cpu_ns),
        "cpu_share_of_a_core": round(used_ns / length_ns, 4) if length_ns > 0 else None,
        "rss_bytes": _number(health.status.get("rss_bytes")),
        "dropped": {name_of(k): _number(v) for k, v in list(dropped.items())[:_SHOWN]}
        if isinstance(dropped, Mapping)
        else {},
    }


def _number(value: Any) -> int:  # noqa: ANN401 -- whatever JSON held
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value) if is_number and abs(value) < 1e18 else 0  # noqa: PLR2004


@tool("Processes")
def get_processes(
    study: ServedDocument, limit: Annotated[int, rows(500, "processes")] = 50
) -> Answer:
    """
    Which processes were watched, those with most CUDA calls first: name, command line, container,
    number of calls, time lost, verdict. A process that makes no calls (a data loader's worker) is
    listed where it was followed. began_us is relative to the window, null where it is not known.
    lost_us is what slow calls and gaps took beyond what is usual, explained or not.
    """
    document = study.document
    calls: Counter[ProcessKey] = Counter()
    lost_ns: Counter[ProcessKey] = Counter()
    for row in document.apis:
        calls[key_of(row.process)] += row.calls
    for slot in document.slots:
        if slot.process is not None:
            lost_ns[key_of(slot.process)] += round(slot.lost_ns)
    processes = {key_of(process.process): process for process in document.processes}
    shown = [
        {
            **_identity(process, study),
            "calls": calls[key],
            "lost_us": micros(lost_ns[key]),
            "verdict": process.verdict,
        }
        for key, process in sorted(processes.items(), key=lambda item: (-calls[item[0]], item[0]))
    ]
    return {"processes": first_of(shown, limit)}


def _identity(process: ProcessReport, study: ServedDocument) -> dict[str, Any]:
    health = study.health
    # Another tool does not say when what it found running began.
    has_begun = not health.is_foreign or process.start_unix_ns > health.capture_unix_ns
    has_command = process.command != process.process.comm
    return {
        **noun(process, "pid service"),
        "thread": name_of(process.process.comm),
        "command": inert(process.command, _COMMAND) if has_command else "",
        "began_us": since(process.start_unix_ns, study.document) if has_begun else None,
        **{name: name_of(value) for name, value in process.places.items()},
    }
