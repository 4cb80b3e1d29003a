"""
The report as one JSON document: what ``explain --json`` prints.

The document is a contract: ``schema.json`` beside this module says what it holds, and
``schema_version`` grows when something is taken away or changes its meaning.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from otel_gpu.enrich.activities import CallStack
from otel_gpu.enrich.stack_text import stack_id_text
from otel_gpu.explain.chains import Cause, Chain, stack_of_cause
from otel_gpu.findings.frames import stack_document
from otel_gpu.findings.model import ApiRow, Report

SCHEMA_VERSION = 1
UNKNOWN = "unknown"


def make_document(report: Report) -> dict[str, Any]:
    """Return the document; it holds nothing but what JSON can."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "source": report.source,
        "window": {"start_unix_ns": report.start_unix_ns, "end_unix_ns": report.end_unix_ns},
        "processes": _processes(report),
        "apis": [_api(row) for row in report.apis],
        "incidents": _incidents(report),
        "chains": [_chain(chain) for chain in report.chains],
        "losses": dict(report.losses),
        "notes": list(report.notes),
    }
    stacks = {stack_id_text(stack.id): stack_document(stack) for stack in _stacks(report)}
    if stacks:
        document["stacks"] = dict(sorted(stacks.items()))
    return document


def to_text(document: dict[str, Any]) -> str:
    """
    Write a document as JSON text.

    Whatever a terminal would obey is escaped, also what JSON itself allows.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def _processes(report: Report) -> list[dict[str, Any]]:
    verdicts = {
        (verdict.process.pid, verdict.process.image_ktime_ns): verdict
        for verdict in report.verdicts
    }
    processes = []
    for image in report.processes:
        verdict = verdicts.get((image.pid, image.image_ktime_ns))
        processes.append(
            {
                "pid": image.pid,
                "service_name": str(image.attributes.get("service.name") or image.comm),
                "command": _command(image.attributes.get("process.command_args"), image.comm),
                "verdict": verdict.verdict if verdict else UNKNOWN,
                "verdict_shares": dict(verdict.shares) if verdict else {},
                "budget_ns": dict(verdict.budget_ns) if verdict else {},
            }
        )
    return processes


def _command(arguments: Sequence[str] | None, comm: str) -> str:
    return " ".join(arguments) if arguments else comm


def _api(row: ApiRow) -> dict[str, Any]:
    return {
        "pid": row.process.pid,
        "api": row.api,
        "layer": row.layer,
        "calls": row.calls,
        "errors": row.errors,
        "p50_ns": None if math.isnan(row.p50_ns) else round(row.p50_ns),
        "p99_ns": None if math.isnan(row.p99_ns) else round(row.p99_ns),
        "max_ns": round(row.max_ns),
        "sum_ns": row.sum_ns,
        "bytes": row.size_bytes,
    }


def _incidents(report: Report) -> list[dict[str, Any]]:
    listed = {chain.id for chain in report.chains}
    return [
        {
            "id": incident.id,
            "severity": incident.severity,
            "start_unix_ns": incident.start_unix_ns,
            "end_unix_ns": incident.end_unix_ns,
            "lost_ns": incident.lost_ns,
            "effects": incident.effects,
            "causes": [_cause(cause) for cause in incident.causes],
            "unexplained_ns": incident.unexplained_ns,
            "advice": list(incident.advice),
            "chains": [chain.id for chain in incident.chains if chain.id in listed],
        }
        for incident in report.incidents
    ]


def _stacks(report: Report) -> Iterator[CallStack]:
    for chain in report.chains:
        if chain.effect.stack is not None:
            yield chain.effect.stack
        yield from _stacks_of(chain.causes)
    for incident in report.incidents:
        yield from _stacks_of(incident.causes)


def _stacks_of(causes: Iterable[Cause]) -> Iterator[CallStack]:
    for cause in causes:
        stack = stack_of_cause(cause)
        if stack is not None:
            yield stack
        yield from _stacks_of(cause.via)


def _chain(chain: Chain) -> dict[str, Any]:
    effect = chain.effect
    return {
        "id": chain.id,
        "effect": _with_stack(effect.stack)
        | {
            "kind": effect.kind,
            "api": effect.api,
            "pid": effect.process.pid,
            "tid": effect.tid,
            "start_unix_ns": effect.start_unix_ns,
            "duration_ns": effect.duration_ns,
            "excess_ns": effect.excess_ns,
            "span_id": effect.span_id.hex(),
        },
        "causes": [_cause(cause) for cause in chain.causes],
        "unexplained_ns": chain.unexplained_ns,
        "severity": chain.severity,
    }


def _cause(cause: Cause) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": cause.kind,
        "time_ns": cause.time_ns,
        "share": cause.share,
        "culprit": cause.culprit._asdict() if cause.culprit else None,
        "evidence": [interval.id for interval in cause.evidence],
    }
    document |= _with_stack(stack_of_cause(cause))
    if cause.via:
        document["via"] = [_cause(inner) for inner in cause.via]
    return document


def _with_stack(stack: CallStack | None) -> dict[str, str]:
    return {} if stack is None else {"stack": stack_id_text(stack.id)}
