"""``get_time_budget``: what bounds each process, and what its threads waited for."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Verdict
from otel_gpu.faces.mcp.answers import first_of, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Question
from otel_gpu.faces.mcp.captures import Capture, Study
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, share
from otel_gpu.findings.health import STATES
from otel_gpu.findings.model import Blame, OffCpu, Report

_DEFAULT = 25
_MAX_VERDICTS = 50
_STATE = "state_"
_OFF_CPU = ("pid", "service", "threads", "state", "reason", "time_us", "times")
_BLAMES = ("pid", "service", "by_thread", "by_pid", "by_tid", "how", "time_us", "effects")
_IN_CALLS = ("pid", "service", "in_calls_us", "share_of_window")
_CONTEXTS = {
    wire.CONTEXT_GAP: "feeding, between calls",
    wire.CONTEXT_SYNCHRONIZE: "feeding, waiting for the GPU",
    wire.CONTEXT_CALL: "feeding, inside a call",
    wire.CONTEXT_OTHER: "making no calls",
}


def answer(capture: Capture, question: Question) -> Answer:
    """Return verdicts, what threads waited for, and who kept them waiting."""
    study = capture.study(question.begin, question.end, question.pids)
    report = study.report
    limit = question.values.get("limit", _DEFAULT)
    return {
        **about(report),
        "verdicts": first_of([_verdict(verdict) for verdict in report.verdicts], _MAX_VERDICTS),
        "off_cpu": first_of([_off_cpu(row) for row in report.off_cpu], limit, _OFF_CPU),
        "kept_waiting_by": first_of([_blame(row) for row in report.blames], limit, _BLAMES),
        "in_calls": first_of(_in_calls(report), limit, _IN_CALLS),
        "notes": list(_notes(study)),
    }


def _notes(study: Study) -> Iterator[str]:
    if not study.report.verdicts:
        yield (
            "No process has a verdict: there is no account of its threads' time. in_calls says how "
            "much of it was in calls; what was done outside of them is not known."
            if not study.health.seen["Times"]
            else "No thread of this window feeds a GPU, so nothing has a verdict."
        )
    yield from study.health.notes(STATES)


def _in_calls(report: Report) -> list[list[object]]:
    """Time inside calls, those inside other calls not counted again, of all threads together."""
    in_calls_ns: Counter[ProcessImage] = Counter()
    for slot in report.slots:
        if slot.process is not None:
            in_calls_ns[slot.process] += round(slot.call_ns)
    length_ns = max(1, report.end_unix_ns - report.start_unix_ns)
    ranked = sorted(in_calls_ns.items(), key=lambda item: (-item[1], item[0].pid))
    return [
        [image.pid, service(image), micros(time_ns), share(time_ns / length_ns)]
        for image, time_ns in ranked
        if time_ns
    ]


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "pid": verdict.process.pid,
        "service": service(verdict.process),
        "verdict": verdict.verdict,
        "shares": {name: share(part) for name, part in _largest_first(verdict.shares)},
        "budget_us": {name: micros(time) for name, time in _largest_first(verdict.budget_ns)},
    }


def _largest_first(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))


def _off_cpu(row: OffCpu) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        _CONTEXTS.get(row.context, str(row.context)),
        wire.THREAD_STATE_NAMES.get(row.state, str(row.state)).removeprefix(_STATE),
        name_of(row.reason),
        micros(row.time_ns),
        row.times,
    ]


def _blame(row: Blame) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        name_of(row.culprit.comm),
        row.culprit.pid,
        row.culprit.tid,
        row.kind,
        micros(row.time_ns),
        row.effects,
    ]


TOOL = Tool(
    "get_time_budget",
    "Time budget and verdict",
    "What bounds each process (gpu-bound, data-bound, ...): the time of the threads that feed the "
    "GPU by state, and the shares that the verdict compares; then how long threads were off the "
    "CPU and for which reason, and which threads kept them waiting. by_thread is empty or other "
    "where the name is not known. Time off the CPU of threads that make no calls is no fault in itself. in_calls is the time of "
    "all threads inside CUDA calls; it can be more than the window where several call.",
    (*WINDOW, limit_argument(_DEFAULT, 200, "rows of each list")),
    answer,
)
