"""Causal chains and incidents as rows, and back."""

from collections.abc import Iterator, Sequence
from typing import Any

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Cause, Chain, Culprit, Effect, Evidence, Incident
from otel_gpu.store.batch import Row
from otel_gpu.store.directory import Directory
from otel_gpu.store.names import Names
from otel_gpu.store.text import clean, texts_from_json, to_json

MAX_CAUSES = 256
"""Causes of one chain or incident, those of causes included."""

Part = tuple[str, Row]
"""The name of a table, and a row for it."""


def chain_row(seq: int, process: int, chain: Chain, names: Names) -> Row:
    """Return the row of a chain; its causes have rows of their own."""
    effect = chain.effect
    return (
        seq,
        clean(chain.id),
        process,
        effect.kind,
        clean(effect.api),
        effect.tid,
        clean(effect.comm),
        effect.start_unix_ns,
        effect.duration_ns,
        effect.excess_ns,
        effect.trace_id.hex(),
        effect.span_id.hex(),
        chain.unexplained_ns,
        chain.severity,
        names.program_stack(effect.stack),
    )


def incident_row(seq: int, incident: Incident) -> Row:
    """Return the row of an incident; its causes have rows of their own."""
    return (
        seq,
        clean(incident.id),
        incident.severity,
        incident.start_unix_ns,
        incident.end_unix_ns,
        incident.lost_ns,
        incident.unexplained_ns,
        incident.effects,
        to_json(incident.advice) or "[]",
    )


def cause_rows(seq: int, causes: Sequence[Cause], names: Names) -> Iterator[Part]:
    """Yield the rows of causes, of their causes, and of the evidence, with their tables."""
    waiting: list[tuple[int | None, Cause]] = [(None, cause) for cause in causes]
    number = 0
    # Those of the effect itself come first, so that the one that cost most is number 0.
    while waiting and number < MAX_CAUSES:
        parent, cause = waiting.pop(0)
        yield (
            "causes",
            (seq, number, parent, cause.kind, cause.time_ns, cause.share, *_who(cause.culprit)),
        )
        for place, interval in enumerate(cause.evidence[:MAX_CAUSES]):
            yield "evidence", _evidence_row(seq, number, place, interval, names)
        waiting += ((number, inner) for inner in cause.via)
        number += 1


def read_chain(
    row: Row, process: ProcessImage, causes: tuple[Cause, ...], directory: Directory
) -> Chain:
    """
    Return the chain of a row.

    Raises:
        ValueError: An id in it is none.
    """
    _, name, _, kind, api, tid, comm, start, duration, excess, trace, span, *last = row
    rest, severity, stack = last
    ids = bytes.fromhex(trace), bytes.fromhex(span)
    effect = Effect(
        kind, process, api, tid, comm, start, duration, excess, *ids, directory.program_stack(stack)
    )
    return Chain(name, effect, causes, rest, severity)


def read_incident(row: Row, causes: tuple[Cause, ...], chains: tuple[Chain, ...]) -> Incident:
    """
    Return the incident of a row.

    Raises:
        ValueError: The advice in it is no list.
    """
    _, name, severity, start, end, lost_ns, rest, effects, advice = row
    told = texts_from_json(advice)
    return Incident(name, severity, start, end, lost_ns, causes, rest, told, chains, effects)


def read_causes(
    causes: Sequence[Row], evidence: Sequence[Row], directory: Directory
) -> tuple[Cause, ...]:
    """
    Return the causes of one chain or incident from all of their rows.

    Raises:
        ValueError: An id or a stack in them is none.
    """
    intervals: dict[int, list[Evidence]] = {}
    for row in evidence:
        intervals.setdefault(row[1], []).append(_read_evidence(row, directory))
    below: dict[int | None, list[Cause]] = {}
    # A cause comes after the one that it is a part of.
    for row in sorted(causes, reverse=True):
        _, number, parent, kind, time_ns, share, *who = row
        if parent is not None and parent >= number:
            raise ValueError("a cause is a part of a later one")
        via = tuple(reversed(below.pop(number, [])))
        found = tuple(intervals.get(number, ()))
        cause = Cause(kind, time_ns, share, _culprit(who), found, via)
        below.setdefault(parent, []).append(cause)
    return tuple(reversed(below.get(None, [])))


def _evidence_row(seq: int, cause: int, number: int, interval: Evidence, names: Names) -> Row:
    return (
        seq,
        cause,
        number,
        clean(interval.id),
        interval.kind,
        interval.start_unix_ns,
        interval.end_unix_ns,
        *_who(interval.culprit),
        *_who(interval.waker),
        interval.reason,
        to_json(interval.functions) or "[]",
        interval.span_id.hex(),
        names.program_stack(interval.stack),
        int(interval.is_cpu_idle),
    )


def _read_evidence(row: Row, directory: Directory) -> Evidence:
    _, _, _, name, kind, start, end, *rest = row
    reason, functions, span, stack, is_cpu_idle = rest[6:]
    return Evidence(
        name,
        kind,
        start,
        end,
        _culprit(rest[:3]),
        _culprit(rest[3:6]),
        reason,
        texts_from_json(functions),
        bytes.fromhex(span),
        directory.program_stack(stack),
        bool(is_cpu_idle),
    )


def _who(culprit: Culprit | None) -> tuple[Any, ...]:
    if culprit is None:
        return (None, None, None)
    return culprit.pid, culprit.tid, clean(culprit.comm)


def _culprit(values: Sequence[Any]) -> Culprit | None:
    if None in values:
        return None
    return Culprit(*values)
