"""
Top stacks as one JSON document: what ``stacks --json`` prints.

A contract, as that of ``explain --json`` is: ``stacks_schema.json`` beside this module says
what it holds.
"""

from typing import Any

from otel_gpu.enrich.stack_text import stack_id_text
from otel_gpu.findings.json_form import stack_form
from otel_gpu.findings.top_stacks import StackReport, StackRow

SCHEMA_VERSION = 1


def make_stacks_document(report: StackReport, limit: int) -> dict[str, Any]:
    """
    Return the document; it holds nothing but what JSON can.

    Args:
        report: What to tell.
        limit: How many stacks are listed; the totals are of all.
    """
    listed = report.rows[:limit]
    return {
        "schema_version": SCHEMA_VERSION,
        "source": report.source,
        "window": {"start_unix_ns": report.start_unix_ns, "end_unix_ns": report.end_unix_ns},
        "of": report.kind,
        "by": report.by,
        "coverage": {
            "with_stack": report.seen,
            "without_stack": report.without_stack,
            "stand_for": report.stand_for,
            "counted": report.counted,
        },
        "stacks": [_stack(row) for row in listed],
        "stacks_left_out": len(report.rows) - len(listed),
        "losses": dict(report.losses),
        "notes": list(report.notes),
    }


def _stack(row: StackRow) -> dict[str, Any]:
    name = row.process.attributes.get("service.name") or row.process.comm
    return {
        "id": stack_id_text(row.stack.id),
        "pid": row.process.pid,
        "service_name": str(name),
        "name": row.name,
        "seen": row.seen,
        "stand_for": row.calls,
        "time_ns": row.time_ns,
        "bytes": row.size_bytes,
        **stack_form(row.stack),
    }
