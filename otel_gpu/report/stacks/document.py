"""
Top stacks as one JSON document: the output of ``stacks --json``.

A contract, as that of ``explain --json``: ``stacks_schema.json`` describes it, and
``stacks_diff_schema.json`` describes a difference. Both are generated from ``json_types``.
"""

from typing import TypedDict

from otel_gpu.enrich.stack_text import stack_id_text
from otel_gpu.report.json_form import stack_form
from otel_gpu.report.stacks.diff import Change, DiffStack, StackDiff
from otel_gpu.report.stacks.json_types import (
    ChangedFrame,
    ChangedStack,
    CoverageForm,
    DiffDocument,
    DiffSide,
    ListedStack,
    StacksDocument,
    ThreadForm,
)
from otel_gpu.report.stacks.top_stacks import CPU, GRAPHS, WALL, StackReport, StackRow

SCHEMA_VERSION = 1


class _NamedKeys(TypedDict, total=False):
    thread: ThreadForm
    device: int


def make_stacks_document(report: StackReport, limit: int) -> StacksDocument:
    """
    Return the document as plain JSON values.

    Args:
        report: The report.
        limit: Count of listed stacks; the totals are of all.
    """
    listed = report.rows[:limit]
    return {
        "schema_version": SCHEMA_VERSION,
        "source": report.source,
        "window": {"start_unix_ns": report.start_unix_ns, "end_unix_ns": report.end_unix_ns},
        "of": report.kind,
        "by": report.by,
        "coverage": coverage_form(report),
        "stacks": [_stack(row) for row in listed],
        "stacks_left_out": len(report.rows) - len(listed),
        "losses": dict(report.losses),
        "notes": list(report.notes),
    }


def make_diff_document(diff: StackDiff, limit: int) -> DiffDocument:
    """Return a difference as plain JSON values; ``limit``: listed stacks and frames."""
    changes, frames = diff.changes(), diff.by_frame()
    return {
        "schema_version": SCHEMA_VERSION,
        "of": diff.after.kind,
        "by": diff.after.by,
        "before": _side(diff.before),
        "after": _side(diff.after),
        "frames": [_changed_frame(change) for change in frames[:limit]],
        "frames_left_out": len(frames[limit:]),
        "stacks": [
            _changed_stack(change, stack)
            for change, stack in zip(changes[:limit], diff.stacks[:limit], strict=True)
        ],
        "stacks_left_out": len(changes[limit:]),
    }


def coverage_form(report: StackReport) -> CoverageForm:
    """Return the counts of what the stacks cover."""
    counts: CoverageForm = {
        # Graphs of time include what has no stack.
        "with_stack": report.seen - (report.without_stack if report.kind in GRAPHS else 0),
        "without_stack": report.without_stack,
        "stand_for": report.stand_for,
        "counted": report.counted,
    }
    if report.kind in (CPU, WALL):
        counts["samples"] = report.samples
        counts["on_cpu_ns"] = report.on_cpu_ns
        counts["counted_on_cpu_ns"] = report.counted_on_cpu_ns
    return counts


def _side(report: StackReport) -> DiffSide:
    return {
        "source": report.source,
        "window": {"start_unix_ns": report.start_unix_ns, "end_unix_ns": report.end_unix_ns},
        "total": report.total(),
        "coverage": coverage_form(report),
        "losses": dict(report.losses),
        "notes": list(report.notes),
    }


def _changed_frame(change: Change) -> ChangedFrame:
    return {
        "before_share": change.before,
        "after_share": change.after,
        "change": change.change,
        "frame": change.frames[0].text,
    }


def _changed_stack(change: Change, stack: DiffStack) -> ChangedStack:
    return {
        "before_share": change.before,
        "after_share": change.after,
        "change": change.change,
        "before": stack.before,
        "after": stack.after,
        "frames": [frame.text for frame in stack.frames],
    }


def _stack(row: StackRow) -> ListedStack:
    name = row.process.attributes.get("service.name") or row.process.comm
    thread = row.thread
    named: _NamedKeys = {}
    if thread is not None:
        named["thread"] = {"tid": thread.tid, "name": thread.comm}
    if row.device is not None:
        named["device"] = row.device
    return {
        "id": stack_id_text(row.stack.id),
        "pid": row.process.pid,
        "service_name": str(name),
        **named,
        "name": row.name,
        "seen": row.seen,
        "stand_for": row.calls,
        "time_ns": row.time_ns,
        "bytes": row.size_bytes,
        **stack_form(row.stack),
    }
