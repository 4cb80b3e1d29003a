"""``get_timeline``: what threads did in a window, to the microsecond."""

from typing import Annotated, Any

from pydantic import Field

from otel_gpu.faces.mcp.answers import Listing, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import LAST_ID, Question, rows
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.tool import Answer, end_of_wait, thread_of, tool
from otel_gpu.findings.document import Document, Window
from otel_gpu.findings.moments import Moment, Moments
from otel_gpu.findings.words import format_time

_NS_PER_US = 1_000
# Around the worst effect, this part of it is shown before and after.
_AROUND = 5
_WORST = "around the costliest effect, since no window was named"
_NAMED = "as named by from and to"
_ALL = "all, since nothing slow was found"


@tool("Timeline")
def get_timeline(
    capture: Capture,
    asked: Question,
    tid: Annotated[int, Field(ge=0, le=LAST_ID, description="Only this thread; 0: all.")] = 0,
    min_us: Annotated[float, Field(ge=0, le=1e12, description="Nothing shorter than this.")] = 0.0,
    limit: Annotated[int, rows(500, "rows")] = 60,
) -> Answer:
    """
    What threads did in a window, to the microsecond: calls, gaps between calls, time blocked and
    in run queues (with who had the CPU and who ended the wait), forks, exits. In order of time;
    of more than fit, the longest. Without from and to: the costliest effect of the capture. Only
    what was kept one by one can be shown, which is not every call. kernel_functions are innermost
    first.
    """
    if asked.begin or asked.end:
        window, chosen = capture.resolve(asked), _NAMED
    else:
        window, chosen = _worst(capture.study(asked).document)
    moments = Moments(
        window,
        pids=asked.pids,
        tid=tid or None,
        least_ns=round(min_us * _NS_PER_US),
        limit=limit,
    )
    capture.play(window, [moments])
    shown = moments.in_order()
    first = shown[0].interval.start_unix_ns if shown else 0
    origin_unix_ns = first if window.start_unix_ns is None else window.start_unix_ns
    end_unix_ns = window.end_unix_ns
    return {
        "source": inert(str(capture.path)),
        "window": {
            "from_utc": format_time(origin_unix_ns),
            "start_unix_ns": origin_unix_ns,
            "length_us": None if end_unix_ns is None else micros(end_unix_ns - origin_unix_ns),
            "chosen": chosen,
        },
        "found": dict(sorted(moments.counts.items())),
        "moments": Listing(
            [_moment(moment, origin_unix_ns) for moment in shown], more=moments.left_out()
        ),
        "note": "" if shown else "Nothing that was kept one by one lies in this window.",
    }


def _worst(document: Document) -> tuple[Window, str]:
    if not document.chains:
        return document.window, _ALL
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
    for name, value in (
        ("span_id", interval.span_id.hex()),
        ("bytes", moment.size_bytes),
        ("error", moment.error),
    ):
        shown |= {name: value} if value else {}
    if interval.kind == "run_queue" and interval.culprit:
        shown["had_the_cpu"] = thread_of(interval.culprit, pid)
    return shown | end_of_wait(interval, pid, interval.stack)
