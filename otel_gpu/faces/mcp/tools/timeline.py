"""``get_timeline``: what threads did in a window, to the microsecond."""

from typing import Any

from otel_gpu.faces.mcp.answers import Listing, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import WINDOW, Argument, Question
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.code import code_of
from otel_gpu.faces.mcp.tool import Answer, Tool, thread_of
from otel_gpu.findings.document import Document, Window
from otel_gpu.findings.moments import Moment, Moments
from otel_gpu.findings.words import format_time

_DEFAULT = 60
_MAX_LIMIT = 500
_NS_PER_US = 1_000
_MAX_FUNCTIONS = 3
# Around the worst effect, this part of it is shown before and after.
_AROUND = 5
_WORST = "around the costliest effect, since no window was named"
_NAMED = "as named by from and to"


def answer(capture: Capture, question: Question) -> Answer:
    """Return the longest moments of a window, in order of time."""
    window, chosen = _find_window(capture, question)
    values = question.values
    moments = Moments(
        window,
        pids=question.pids,
        tid=values.get("tid"),
        least_ns=round(values.get("min_us", 0) * _NS_PER_US),
        limit=values.get("limit", _DEFAULT),
    )
    capture.play(window, [moments.observe])
    shown = moments.in_order()
    first = shown[0].interval.start_unix_ns if shown else 0
    origin_unix_ns = first if window.start_unix_ns is None else window.start_unix_ns
    return {
        "source": inert(str(capture.path)),
        "window": {
            "from_utc": format_time(origin_unix_ns),
            "start_unix_ns": origin_unix_ns,
            "length_us": None
            if window.end_unix_ns is None
            else micros(window.end_unix_ns - origin_unix_ns),
            "chosen": chosen,
        },
        "found": dict(sorted(moments.counts.items())),
        "moments": Listing(
            [_moment(moment, origin_unix_ns) for moment in shown], more=moments.left_out()
        ),
        "note": "" if shown else "Nothing that was kept one by one lies in this window.",
    }


def _find_window(capture: Capture, question: Question) -> tuple[Window, str]:
    if question.begin is not None or question.end is not None:
        return capture.resolve(question.begin, question.end), _NAMED
    document = capture.study(pids=question.pids).document
    return _worst(document)


def _worst(document: Document) -> tuple[Window, str]:
    if not document.chains:
        return Window(
            document.start_unix_ns, document.end_unix_ns
        ), "all, since nothing slow was found"
    effect = min(document.chains, key=lambda chain: (-chain.effect.excess_ns, chain.id)).effect
    around_ns = effect.duration_ns // _AROUND
    end_unix_ns = effect.start_unix_ns + effect.duration_ns
    return Window(effect.start_unix_ns - around_ns, end_unix_ns + around_ns), _WORST


def _moment(moment: Moment, origin_unix_ns: int) -> dict[str, Any]:
    interval, pid = moment.interval, moment.process.pid
    shown: dict[str, Any] = {
        "at_us": micros(interval.start_unix_ns - origin_unix_ns),
        "for_us": micros(moment.length_ns),
        "kind": interval.kind,
        "what": name_of(moment.what),
        "pid": pid,
        "tid": moment.tid,
        "thread": name_of(moment.comm),
        "id": interval.id,
    }
    if interval.span_id:
        shown["span_id"] = interval.span_id.hex()
    if moment.size_bytes:
        shown["bytes"] = moment.size_bytes
    if moment.error:
        shown["error"] = moment.error
    if interval.kind == "run_queue" and interval.culprit:
        shown["had_the_cpu"] = thread_of(interval.culprit, pid)
    if interval.waker:
        shown["woken_by"] = thread_of(interval.waker, pid)
    shown |= code_of(interval.stack)
    if interval.functions:
        shown["kernel_functions"] = [name_of(f) for f in interval.functions[:_MAX_FUNCTIONS]]
    return shown


TOOL = Tool(
    "get_timeline",
    "Timeline",
    "What threads did in a window, to the microsecond: calls, gaps between calls, time blocked and "
    "in run queues (with who had the CPU and who ended the wait), forks, exits. In order of time; "
    "of more than fit, the longest. Without from and to: the costliest effect of the capture. Only "
    "what was kept one by one can be shown, which is not every call. kernel_functions are innermost "
    "first.",
    (
        *WINDOW,
        Argument("tid", "integer", "Only this thread.", least=0, most=(1 << 32) - 1),
        Argument("min_us", "number", "Nothing shorter than this.", least=0, most=1e12),
        Argument(
            "limit", "integer", f"Rows at most. Default: {_DEFAULT}.", least=1, most=_MAX_LIMIT
        ),
    ),
    answer,
)
