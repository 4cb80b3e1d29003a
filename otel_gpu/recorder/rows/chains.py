"""Causal chains and incidents as rows."""

from collections.abc import Iterator, Sequence

from otel_gpu.explain.chains import Cause, Chain, Evidence, Incident
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.rows.waits import who_columns
from otel_gpu.recorder.storable_text import clean, to_json
from otel_gpu.recorder.tables.columns import Row

MAX_CAUSES = 256
"""Maximum causes of one chain or incident, including causes of causes."""

Part = tuple[str, Row]
"""The name of a table, and a row for it."""


def chain_row(seq: int, chain: Chain, names: StoredNames) -> Row:
    """Return the row of a chain, without its causes."""
    effect = chain.effect
    return (
        seq,
        clean(chain.id),
        names.process(effect.process),
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
    """Return the row of an incident, without its causes."""
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
        int(incident.chronic),
        incident.process.pid if incident.process else None,
    )


def cause_rows(seq: int, causes: Sequence[Cause], names: StoredNames) -> Iterator[Part]:
    """Yield tables and rows of causes, of their causes, and of the evidence."""
    waiting: list[tuple[int | None, Cause]] = [(None, cause) for cause in causes]
    number = 0
    # Direct causes come first, so the most expensive one is number 0.
    while waiting and number < MAX_CAUSES:
        parent, cause = waiting.pop(0)
        yield (
            "causes",
            (
                seq,
                number,
                parent,
                cause.kind,
                cause.time_ns,
                cause.share,
                *who_columns(cause.culprit),
            ),
        )
        for place, interval in enumerate(cause.evidence[:MAX_CAUSES]):
            yield (
                "evidence",
                _evidence_row(seq=seq, cause=number, number=place, interval=interval, names=names),
            )
        waiting += ((number, inner) for inner in cause.via)
        number += 1


def _evidence_row(seq: int, cause: int, number: int, interval: Evidence, names: StoredNames) -> Row:
    return (
        seq,
        cause,
        number,
        clean(interval.id),
        interval.kind,
        interval.start_unix_ns,
        interval.end_unix_ns,
        *who_columns(interval.culprit),
        *who_columns(interval.waker),
        interval.reason,
        to_json(interval.functions) or "[]",
        interval.span_id.hex(),
        names.program_stack(interval.stack),
        int(interval.is_cpu_idle),
    )
