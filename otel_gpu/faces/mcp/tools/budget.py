"""``get_time_budget``: what bounds each process, and what its threads waited for."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from otel_gpu.faces.mcp.answers import first_of, micros
from otel_gpu.faces.mcp.arguments import Question, rows
from otel_gpu.faces.mcp.captures import Capture, Study
from otel_gpu.faces.mcp.tool import Answer, about, noun, service, share, table, tool
from otel_gpu.findings.document import Document, Process, ProcessImage
from otel_gpu.findings.health import STATES
from otel_gpu.findings.phrases import CONTEXTS

_MAX_VERDICTS = 50


@tool("Time budget and verdict")
def get_time_budget(
    capture: Capture, asked: Question, limit: Annotated[int, rows(200, "rows of each list")] = 25
) -> Answer:
    """
    What bounds each process (gpu-bound, data-bound, ...): the time of the threads that feed the
    GPU by state, and the shares that the verdict compares; then how long threads were off the
    CPU and for which reason, and which threads kept them waiting. by_thread is empty or other
    where the name is not known. Time off the CPU of threads that make no calls is not a fault in
    itself. in_calls is the time of all threads inside CUDA calls; it can be more than the window
    where several call.
    """
    study = capture.study(asked)
    document = study.document
    return {
        **about(document),
        "verdicts": first_of(list(map(_verdict, document.judged)), _MAX_VERDICTS),
        "off_cpu": table(
            document.off_cpu,
            "pid service threads state reason time_us times",
            limit,
            threads=lambda row: CONTEXTS.get(row.context, row.context),
        ),
        "kept_waiting_by": table(
            document.blames,
            "pid service by_thread by_pid by_tid how time_us effects",
            limit,
            by_thread=lambda row: row.culprit.comm,
            by_pid=lambda row: row.culprit.pid,
            by_tid=lambda row: row.culprit.tid,
            how=lambda row: row.kind,
        ),
        "in_calls": first_of(
            _in_calls(document), limit, ("pid", "service", "in_calls_us", "share_of_window")
        ),
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
    ranked = sorted(in_calls_ns.items(), key=lambda item: (-item[1], item[0].pid))
    return [
        [image.pid, service(image), micros(time_ns), share(time_ns / max(1, document.length_ns))]
        for image, time_ns in ranked
        if time_ns
    ]


def _verdict(judged: Process) -> dict[str, Any]:
    return noun(judged, "pid service verdict") | {
        "shares": {name: share(part) for name, part in _largest_first(judged.verdict_shares)},
        "budget_us": {name: micros(time) for name, time in _largest_first(judged.budget_ns)},
    }


def _largest_first(amounts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
