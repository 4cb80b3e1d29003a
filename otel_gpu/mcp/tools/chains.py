"""``get_causal_chains``: slow calls and their causes; ``get_timeline``: the events of a window."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from otel_gpu.mcp.answers import Listing, first_of, micros, name_of, present, sanitize
from otel_gpu.mcp.arguments import LAST_ID, Question, rows
from otel_gpu.mcp.captures import ServedCapture, ServedDocument
from otel_gpu.mcp.code_locations import code_of, lines_of
from otel_gpu.mcp.tool import Answer, fields_of, service, share, since, tool
from otel_gpu.report.causes import (
    CauseStep,
    Interval,
    find_intervals,
    in_order_of_time,
    longest_first,
    worst_effect,
    write_tree,
)
from otel_gpu.report.document import (
    COLLECTIVE,
    CallStack,
    Cause,
    Chain,
    Culprit,
    Document,
    Evidence,
    EvidenceKind,
    Incident,
    Severity,
    Window,
    stack_of_cause,
)
from otel_gpu.report.timeline.window_detail import WindowDetail, WindowEvent
from otel_gpu.report.wording.formats import format_time
from otel_gpu.report.wording.shares import largest_first

_MAX_CAUSES = 6
_MAX_EVIDENCE = 3
_MAX_OTHERS = 31
_MAX_LISTED = 10
_MAX_INTERVALS = 60
_MAX_FUNCTIONS = 4
_NS_PER_US = 1_000
# The part of the worst effect's duration that is shown before and after it.
_AROUND = 5
_WORST = "around an example of the worst incident, since no window was given"
_NAMED = "as given by from and to"
_WHOLE = "all, since nothing slow was found"


@tool("Incidents and causal chains")
def get_causal_chains(
    served: ServedDocument,
    id: Annotated[  # noqa: A002 -- as the argument is called
        str, Field(max_length=200, description="One incident or chain, in full.")
    ] = "",
    severity: Annotated[
        Literal[Severity.HIGH, Severity.MEDIUM, Severity.LOW] | SkipJsonSchema[None],
        Field(description="Only these."),
    ] = None,
    limit: Annotated[int, rows(50, "incidents, and chains")] = 5,
) -> Answer:
    """
    What was slow, hung or failed, and why. incidents: effects with the same causes, with lost time,
    causes, culprits and advice; a chronic one is a cause that takes much of the whole time, unusual
    or not. worst_chains: the worst single effects. A cause's share is of the effect's duration (of
    a chronic one: of the launching threads' time). It is measured by intervals of the same thread,
    or of the thread that it waited for (of_which). The rest is unexplained. Evidence ids name
    intervals: give a chain's id to see them, with span ids. code is the line of the program's own
    code, if known: for an effect the line of the call, for a cause the line where its thread spent
    most of it; stack_id is for get_stacks. lines: where a thread worked, or a culprit that had the
    CPU, by share of on-CPU samples; times are measured, not sampled. work is what the frames show.
    at_us is relative to the window; in a chain's intervals it is relative to the effect.
    """
    document = served.document
    if id:
        return _in_full(document, id)
    incidents = [one for one in document.incidents if severity in (None, one.severity)]
    chains = [one for one in document.chains if severity in (None, one.severity)]
    chains.sort(key=lambda chain: (-chain.effect.excess_ns, chain.id))
    return {
        "lost_us": micros(sum(incident.lost_ns for incident in incidents)),
        "incidents": first_of([_incident(one, document) for one in incidents], limit),
        "worst_chains": first_of([_chain(one, document) for one in chains], limit),
        "nothing_found": not document.incidents and not document.chains,
    }


def _in_full(document: Document, wanted: str) -> dict[str, object]:
    for chain in (*document.chains, *document.examples):
        if chain.id == wanted:
            found = longest_first(find_intervals(chain))
            shown = sorted(found[:_MAX_INTERVALS], key=in_order_of_time)
            intervals = [_interval(one, chain) for one in shown]
            listing = Listing(intervals, more=len(found) - len(shown))
            return {"chain": {**_chain(chain, document), "intervals": listing}}
    for incident in document.incidents:
        if incident.id == wanted:
            chains = [_chain(chain, document) for chain in incident.chains]
            return {"incident": {**_incident(incident, document), "chains": Listing(chains)}}
    return {"note": "No incident or chain of this window has this id; ids are in the lists."}


def _incident(incident: Incident, document: Document) -> dict[str, object]:
    kinds = Counter((chain.effect.kind, chain.effect.api) for chain in incident.chains)
    services = {program.pid: program for program in incident.processes}
    return {
        **fields_of(incident, "id severity severity_reason chronic"),
        "services": [
            {"pid": pid, "service": service(program)}
            for pid, program in sorted(services.items())[:_MAX_LISTED]
        ],
        "at_us": since(incident.start_unix_ns, document),
        "until_us": since(incident.end_unix_ns, document),
        "lost_us": micros(incident.lost_ns),
        "effects": incident.effects,
        "effects_seen": [
            {"kind": kind, "api": name_of(api), "count": count}
            for (kind, api), count in largest_first(kinds)
        ][:_MAX_LISTED],
        **_causes(incident.causes, incident.processes[0].pid if incident.processes else 0),
        "unexplained_us": micros(incident.unexplained_ns),
        "advice": [sanitize(text) for text in incident.advice],
        "chain_ids": first_of([chain.id for chain in incident.chains], _MAX_LISTED),
        **present(example_ids=[chain.id for chain in incident.examples]),
    }


def _chain(chain: Chain, document: Document) -> dict[str, object]:
    effect = chain.effect
    return {
        **fields_of(chain, "id severity"),
        "effect": fields_of(
            effect,
            "kind api pid service tid thread at_us start_unix_ns duration_us more_than_usual_us "
            "trace_id span_id",
            thread=lambda effect: effect.comm,
            at_us=lambda effect: since(effect.start_unix_ns, document),
            more_than_usual_us=lambda effect: micros(effect.excess_ns),
            trace_id=lambda effect: effect.trace_id.hex(),
            span_id=lambda effect: effect.span_id.hex(),
        )
        | code_of(effect.stack),
        **_causes(chain.causes, effect.process.pid, effect.stack),
        "unexplained_us": micros(chain.unexplained_ns),
        "unexplained_share": share(chain.unexplained_ns / max(1, effect.duration_ns)),
    }


def _causes(
    causes: Sequence[Cause], pid: int, stack_above: CallStack | None = None
) -> dict[str, object]:
    def write(step: CauseStep, inner: list[dict[str, object]]) -> dict[str, object]:
        cause = step.cause
        ids = [evidence.id for evidence in cause.evidence]
        shown = fields_of(
            cause,
            "kind time_us share by evidence",
            share=lambda cause: share(cause.share),
            by=lambda cause: _thread_of(cause.culprit, pid),
            evidence=lambda _: ids[:_MAX_EVIDENCE],
        )
        more = present(
            others=[_thread_of(one, pid) for one in cause.others[:_MAX_OTHERS]],
            more_others=max(0, len(cause.others) - _MAX_OTHERS),
            collective=_collective_of(cause),
            more_evidence=max(0, len(ids) - _MAX_EVIDENCE),
        )
        # The effect already has its code, so a cause with the same stack does not repeat it.
        code = code_of(_unless(stack_above, stack_of_cause(cause)))
        code |= lines_of(cause.lines)
        return shown | more | code | (_first("of_which", inner) if inner else {})

    return _first("causes", write_tree(causes, write))


def _first(name: str, causes: list[dict[str, object]]) -> dict[str, object]:
    more = present(**{f"more_{name}": max(0, len(causes) - _MAX_CAUSES)})
    return {name: causes[:_MAX_CAUSES]} | more


def _unless(stack_above: CallStack | None, stack: CallStack | None) -> CallStack | None:
    return None if stack and stack_above and stack.id == stack_above.id else stack


def _interval(interval: Interval, chain: Chain) -> dict[str, object]:
    evidence, effect = interval.evidence, chain.effect
    pid = effect.process.pid
    shown = {
        "id": evidence.id,
        "at_us": micros(evidence.start_unix_ns - effect.start_unix_ns),
        "for_us": micros(interval.length_ns),
        "state": evidence.kind,
        "cause": interval.cause.kind,
        "reason": name_of(evidence.reason),
        "span_id": evidence.span_id.hex(),
    }
    shown |= present(of=_thread_of(interval.thread, pid), culprit=_thread_of(evidence.culprit, pid))
    return shown | _end_of_wait(evidence, pid, _unless(effect.stack, evidence.stack))


@tool("Timeline")
def get_timeline(
    capture: ServedCapture,
    asked: Question,
    tid: Annotated[int, Field(ge=0, le=LAST_ID, description="Only this thread; 0: all.")] = 0,
    min_us: Annotated[float, Field(ge=0, le=1e12, description="Nothing shorter than this.")] = 0.0,
    limit: Annotated[int, rows(500, "rows")] = 60,
) -> Answer:
    """
    What threads did in a window, to the microsecond: calls, gaps between calls, time blocked and in
    run queues (with the thread that had the CPU, and the one that ended the wait), forks, exits.
    Rows are in order of time; if there are too many, the longest are kept. Without from and to: an
    example of the worst incident. It shows only what was recorded individually, which is not every
    call. kernel_functions are innermost first.
    """
    if asked.begin or asked.end:
        window, chosen = capture.resolve(asked), _NAMED
    else:
        window, chosen = _around_worst(capture.examine(asked).document)
    events = WindowDetail(
        window, pids=asked.pids, tid=tid or None, least_ns=round(min_us * _NS_PER_US), limit=limit
    )
    capture.play(window, [events])
    shown = events.in_order()
    first = shown[0].interval.start_unix_ns if shown else 0
    origin_unix_ns = first if window.start_unix_ns is None else window.start_unix_ns
    end_unix_ns = window.end_unix_ns
    return {
        "source": sanitize(str(capture.path)),
        "window": {
            "from_utc": format_time(origin_unix_ns),
            "start_unix_ns": origin_unix_ns,
            "length_us": None if end_unix_ns is None else micros(end_unix_ns - origin_unix_ns),
            "chosen": chosen,
        },
        "found": dict(sorted(events.counts.items())),
        "moments": Listing(
            [_event(event, origin_unix_ns) for event in shown], more=events.left_out()
        ),
        "note": "" if shown else "Nothing in this window was recorded individually.",
    }


def _around_worst(document: Document) -> tuple[Window, str]:
    worst = worst_effect(document)
    if worst is None:
        return document.window, _WHOLE
    effect = worst.effect
    around_ns = effect.duration_ns // _AROUND
    end_unix_ns = effect.start_unix_ns + effect.duration_ns
    return Window(effect.start_unix_ns - around_ns, end_unix_ns + around_ns), _WORST


def _event(event: WindowEvent, origin_unix_ns: int) -> dict[str, object]:
    interval, pid = event.interval, event.process.pid
    shown = fields_of(
        event,
        "at_us for_us kind what pid tid thread id",
        at_us=lambda _: micros(interval.start_unix_ns - origin_unix_ns),
        for_us=lambda _: micros(event.length_ns),
        kind=lambda _: interval.kind,
        thread=lambda _: event.comm,
        id=lambda _: interval.id,
    )
    had_the_cpu = interval.culprit if interval.kind == EvidenceKind.RUN_QUEUE else None
    shown |= present(
        span_id=interval.span_id.hex(),
        bytes=event.size_bytes,
        error=event.error,
        had_the_cpu=_thread_of(had_the_cpu, pid),
    )
    return shown | _end_of_wait(interval, pid, interval.stack)


def _thread_of(thread: Culprit | None, pid: int) -> dict[str, object] | None:
    # Also shows whether it belongs to the process that lost the time.
    if thread is None:
        return None
    shown = {"thread": name_of(thread.comm), "pid": thread.pid, "tid": thread.tid}
    return shown | present(own_process=thread.pid == pid)


def _collective_of(cause: Cause) -> str:
    # The ranks' collective and the ranks that did not call it; empty: not such a wait.
    return sanitize(cause.resource.name) if cause.kind in COLLECTIVE and cause.resource else ""


def _end_of_wait(evidence: Evidence, pid: int, stack: CallStack | None) -> dict[str, object]:
    functions = [name_of(function) for function in evidence.functions[:_MAX_FUNCTIONS]]
    woken_by = present(woken_by=_thread_of(evidence.waker, pid))
    return woken_by | code_of(stack) | present(kernel_functions=functions)
