"""``get_time_budget``: what bounds each process, and what its threads waited for."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu.faces.mcp.answers import first_of, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Question
from otel_gpu.faces.mcp.captures import Capture, Study
from otel_gpu.faces.mcp.tool import Answer, Tool, about, limit_argument, service, share
from otel_gpu.findings.document import Blame, Document, OffCpu, Process, ProcessImage
from otel_gpu.findings.health import STATES
from otel_gpu.findings.phrases import CONTEXTS

_DEFAULT = 25
_MAX_VERDICTS = 50
_OFF_CPU = ("pid", "service", "threads", "state", "reason", "time_us", "times")
_BLAMES = ("pid", "service", "by_thread", "by_pid", "by_tid", "how", "time_us", "effects")
_IN_CALLS = ("pid", "service", "in_calls_us", "share_of_window")


def answer(capture: Capture, question: Question) -> Answer:
    """Return verdicts, what threads waited for, and who kept them waiting."""
    study = capture.study(question.begin, question.end, question.pids)
    document = study.document
    limit = question.values.get("limit", _DEFAULT)
    return {
        **about(document),
        "verdicts": first_of(list(map(_verdict, document.judged)), _MAX_VERDICTS),
        "off_cpu": first_of([_off_cpu(row) for row in document.off_cpu], limit, _OFF_CPU),
        "kept_waiting_by": first_of([_blame(row) for row in document.blames], limit, _BLAMES),
        "in_calls": first_of(_in_calls(document), limit, _IN_CALLS),
        "notes": list(_notes(study)),
    }


def _notes(study: Study) -> Iterator[str]:
    if not study.document.judged:
        yield (
            "No process has a verdict: there is no account of its threads' time. in_calls says how "
            "much of it was in calls; what was done outside of them is not known."
            if not study.health.seen["Times"]
            else "No thread of this window feeds a GPU, so nothing has a verdict."
        )
    yield from study.health.notes(STATES)


def _in_calls(document: Document) -> list[list[object]]:
    """Time inside calls, those inside other calls not counted again, of all threads together."""
    in_calls_ns: Counter[ProcessImage] = Counter()
    for slot in document.slots:
        if slot.process is not None:
            in_calls_ns[slot.process] += round(slot.call_ns)
    length_ns = max(1, document.end_unix_ns - document.start_unix_ns)
    ranked = sorted(in_calls_ns.items(), key=lambda item: (-item[1], item[0].pid))
    return [
        [image.pid, service(image), micros(time_ns), share(time_ns / length_ns)]
        for image, time_ns in ranked
        if time_ns
    ]


def _verdict(judged: Process) -> dict[str, Any]:
    return {
        "pid": judged.process.pid,
        "service": service(judged.process),
        "verdict": judged.verdict,
        "shares": {name: share(part) for name, part in _largest_first(judged.verdict_shares)},
        "budget_us": {name: micros(time) for name, time in _largest_first(judged.budget_ns)},
    }


def _largest_first(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))


def _off_cpu(row: OffCpu) -> list[object]:
    return [
        row.process.pid,
        service(row.process),
        CONTEXTS.get(row.context, row.context),
        row.state,
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
