"""``get_causal_chains``: what was slow, and whose doing that was."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from otel_gpu.faces.mcp.answers import Listing, first_of, inert, micros, name_of
from otel_gpu.faces.mcp.arguments import Question, rows
from otel_gpu.faces.mcp.captures import Capture
from otel_gpu.faces.mcp.code import code_of
from otel_gpu.faces.mcp.tool import (
    Answer,
    about,
    end_of_wait,
    noun,
    service,
    share,
    since,
    thread_of,
    tool,
)
from otel_gpu.findings.causes import (
    Interval,
    Step,
    find_intervals,
    in_order_of_time,
    longest_first,
    write_tree,
)
from otel_gpu.findings.document import (
    CallStack,
    Cause,
    Chain,
    Document,
    Incident,
    stack_of_cause,
)
from otel_gpu.findings.health import DISTRIBUTIONS, STATES

_MAX_CAUSES = 6
_MAX_EVIDENCE = 3
_MAX_LISTED = 10
_MAX_INTERVALS = 60


@tool("Incidents and causal chains")
def get_causal_chains(
    capture: Capture,
    asked: Question,
    id: Annotated[  # noqa: A002 -- as the argument is called
        str, Field(max_length=200, description="One incident or chain, in full.")
    ] = "",
    severity: Annotated[
        Literal["high", "medium", "low"] | SkipJsonSchema[None], Field(description="Only these.")
    ] = None,
    limit: Annotated[int, rows(50, "incidents, and chains")] = 5,
) -> Answer:
    """
    What was slow, hung or failed, and why: incidents (effects of the same causes) with lost time,
    causes, who did it, advice; and the worst single effects. A cause's share is of the effect's
    duration and is measured by intervals of the same thread, or of the thread that it waited for
    (of_which). What no cause accounts for is unexplained. Evidence ids name intervals: give a
    chain's id to see them, with span ids. code is the line of the program's own code, where that
    is known: of an effect where it was called, of a cause where its thread was for most of it;
    stack_id is for get_stacks. at_us is relative to the window; in a chain's intervals it is
    relative to the effect.
    """
    study = capture.study(asked)
    document = study.document
    if id:
        return {**about(document), **_in_full(document, id)}
    incidents = [one for one in document.incidents if severity in (None, one.severity)]
    chains = [one for one in document.chains if severity in (None, one.severity)]
    chains.sort(key=lambda chain: (-chain.effect.excess_ns, chain.id))
    return {
        **about(document),
        "lost_us": micros(sum(incident.lost_ns for incident in incidents)),
        "incidents": first_of([_incident(one, document) for one in incidents], limit),
        "worst_chains": first_of([_chain(one, document) for one in chains], limit),
        "nothing_found": not document.incidents and not document.chains,
        "notes": list(study.health.notes(STATES, DISTRIBUTIONS)),
    }


def _in_full(document: Document, wanted: str) -> dict[str, Any]:
    for chain in document.chains:
        if chain.id == wanted:
            return {"chain": {**_chain(chain, document), "intervals": _intervals(chain)}}
    for incident in document.incidents:
        if incident.id == wanted:
            chains = [_chain(chain, document) for chain in incident.chains]
            return {"incident": {**_incident(incident, document), "chains": Listing(chains)}}
    return {"note": "No incident or chain of this window has this id; ids are in the lists."}


def _incident(incident: Incident, document: Document) -> dict[str, Any]:
    kinds = Counter((chain.effect.kind, chain.effect.api) for chain in incident.chains)
    services = {chain.effect.process.pid: chain.effect.process for chain in incident.chains}
    return {
        **noun(incident, "id severity"),
        "services": [
            {"pid": pid, "service": service(image)}
            for pid, image in sorted(services.items())[:_MAX_LISTED]
        ],
        "at_us": since(incident.start_unix_ns, document),
        "until_us": since(incident.end_unix_ns, document),
        "lost_us": micros(incident.lost_ns),
        "effects": incident.effects,
        "effects_seen": [
            {"kind": kind, "api": name_of(api), "count": count}
            for (kind, api), count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[
                :_MAX_LISTED
            ]
        ],
        **_causes(incident.causes, _pid_of(incident.chains)),
        "unexplained_us": micros(incident.unexplained_ns),
        "advice": [inert(text) for text in incident.advice],
        "chain_ids": first_of([chain.id for chain in incident.chains], _MAX_LISTED),
    }


def _pid_of(chains: Sequence[Chain]) -> int:
    return chains[0].effect.process.pid if chains else 0


def _chain(chain: Chain, document: Document) -> dict[str, Any]:
    effect = chain.effect
    length_ns = max(1, effect.duration_ns)
    return {
        **noun(chain, "id severity"),
        "effect": noun(
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
        "unexplained_share": share(chain.unexplained_ns / length_ns),
    }


def _causes(
    causes: Sequence[Cause], pid: int, shown_above: CallStack | None = None
) -> dict[str, Any]:
    def write(step: Step, inner: list[dict[str, Any]]) -> dict[str, Any]:
        cause = step.cause
        ids = [evidence.id for evidence in cause.evidence]
        shown: dict[str, Any] = {
            "kind": cause.kind,
            "time_us": micros(cause.time_ns),
            "share": share(cause.share),
            "by": thread_of(cause.culprit, pid),
            "evidence": ids[:_MAX_EVIDENCE],
        }
        if len(ids) > _MAX_EVIDENCE:
            shown["more_evidence"] = len(ids) - _MAX_EVIDENCE
        # Where the effect was is said of it, and once.
        shown |= code_of(_unless(shown_above, stack_of_cause(cause)))
        return shown | (_first("of_which", inner) if inner else {})

    return _first("causes", write_tree(causes, write))


def _first(name: str, causes: list[dict[str, Any]]) -> dict[str, Any]:
    shown: dict[str, Any] = {name: causes[:_MAX_CAUSES]}
    if len(causes) > _MAX_CAUSES:
        shown[f"more_{name}"] = len(causes) - _MAX_CAUSES
    return shown


def _unless(shown_above: CallStack | None, stack: CallStack | None) -> CallStack | None:
    return None if stack and shown_above and stack.id == shown_above.id else stack


def _intervals(chain: Chain) -> Listing:
    intervals = find_intervals(chain)
    shown = sorted(longest_first(intervals)[:_MAX_INTERVALS], key=in_order_of_time)
    return Listing([_interval(one, chain) for one in shown], more=len(intervals) - len(shown))


def _interval(interval: Interval, chain: Chain) -> dict[str, Any]:
    evidence, effect = interval.evidence, chain.effect
    pid = effect.process.pid
    shown: dict[str, Any] = {
        "id": evidence.id,
        "at_us": micros(evidence.start_unix_ns - effect.start_unix_ns),
        "for_us": micros(interval.length_ns),
        "state": evidence.kind,
        "cause": interval.cause.kind,
        "reason": name_of(evidence.reason),
        "span_id": evidence.span_id.hex(),
    }
    for name, thread in (("of", interval.thread), ("culprit", evidence.culprit)):
        if thread is not None:
            shown[name] = thread_of(thread, pid)
    return shown | end_of_wait(evidence, pid, _unless(effect.stack, evidence.stack))
