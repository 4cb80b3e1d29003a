"""Draws chains and incidents, with arrows from culprits to waits."""

from typing import NamedTuple

from otel_gpu.report.causes import find_intervals
from otel_gpu.report.document import Chain, Culprit, Document, EvidenceKind, Incident
from otel_gpu.report.timeline.activities import HOST, stack_lines, track_of
from otel_gpu.report.timeline.tracks import (
    Arrow,
    ArrowEnd,
    Drawing,
    Instant,
    Slice,
    SliceCategory,
    Track,
)
from otel_gpu.report.wording.formats import describe_kind, describe_thread, format_duration
from otel_gpu.report.wording.sentences import because, label_of, plain, sentence_of

WHY, KEPT = "why", "kept others waiting"
"""Roles of rows: causes of an effect's time, and culprits' slices."""


# What is drawn already, or is not an interval of a thread.
_NOT_DRAWN = frozenset(
    {
        EvidenceKind.ACCOUNT,
        EvidenceKind.CALL,
        EvidenceKind.DEVICE,
        EvidenceKind.GAP,
        EvidenceKind.COUNTERS,
    }
)


class _Kept(NamedTuple):
    # Indices of two slices: a wait and its culprit's.

    waited: int
    culprit: int


def draw_document(document: Document, drawing: Drawing) -> None:
    """Draw the chains and the incidents of a document."""
    names = {program.pid: program for program in document.programs}
    slices: list[Slice] = []
    kept: list[_Kept] = []
    for chain in document.chains:
        _add_chain(
            chain=chain,
            slices=slices,
            kept=kept,
            names={pid: program.comm for pid, program in names.items()},
        )
    places: dict[int, ArrowEnd | None] = {}
    # Of slices with the same start, the longer one contains the other.
    for number in sorted(range(len(slices)), key=lambda at: _order(slices[at])):
        places[number] = drawing.began(slices[number])
    for pair in kept:
        source, target = places[pair.culprit], places[pair.waited]
        if source and target:
            begin, end = slices[pair.culprit], slices[pair.waited]
            # The arrow ends with the wait, since its length is the result.
            last_ns = max(begin.start_unix_ns, end.end_unix_ns - 1)
            drawing.arrow(
                Arrow(
                    name="kept waiting",
                    category=SliceCategory.CAUSE,
                    source=source,
                    source_unix_ns=begin.start_unix_ns,
                    target=target,
                    target_unix_ns=last_ns,
                )
            )
    for incident in document.incidents:
        drawing.instant(_instant(incident))


def _add_chain(chain: Chain, slices: list[Slice], kept: list[_Kept], names: dict[int, str]) -> None:
    effect = chain.effect
    track = track_of(process=effect.process, tid=effect.tid, comm=effect.comm, role=WHY)
    end_unix_ns = effect.start_unix_ns + effect.duration_ns
    texts = [plain(because(cause)) for cause in chain.causes[:3]]
    details: dict[str, object] = {
        "severity": str(chain.severity),
        "excess": format_duration(effect.excess_ns),
        "causes": [
            f"{text}: {format_duration(cause.time_ns)}"
            for text, cause in zip(texts, chain.causes, strict=False)
        ],
        "unexplained": format_duration(chain.unexplained_ns),
        "stack": stack_lines(effect.stack),
        "chain": chain.id,
    }
    slices.append(
        Slice(
            track=track,
            name=describe_kind(effect),
            category=SliceCategory.EFFECT,
            start_unix_ns=effect.start_unix_ns,
            end_unix_ns=end_unix_ns,
            details=details,
        )
    )
    for interval in find_intervals(chain):
        evidence = interval.evidence
        start_ns = evidence.start_unix_ns
        end_ns = evidence.end_unix_ns
        if not interval.depth:
            start_ns, end_ns = max(start_ns, effect.start_unix_ns), min(end_ns, end_unix_ns)
        if end_ns <= start_ns or evidence.kind in _NOT_DRAWN:
            continue
        thread = interval.thread
        on = _track_of(thread, names, WHY) if thread else track
        reason = {"reason": evidence.reason} if evidence.reason else {}
        slices.append(
            Slice(
                track=on,
                name=label_of(interval.cause.kind),
                category=SliceCategory.WAIT,
                start_unix_ns=start_ns,
                end_unix_ns=end_ns,
                details=reason,
            )
        )
        culprit = evidence.culprit or evidence.waker
        if culprit is None or culprit == thread or not culprit.tid:
            continue
        waits = describe_thread(thread) if thread else f"{effect.comm} ({effect.tid})"
        slices.append(
            Slice(
                track=_track_of(culprit, names, KEPT),
                name=f"kept {waits} waiting",
                category=SliceCategory.CULPRIT,
                start_unix_ns=start_ns,
                end_unix_ns=end_ns,
            )
        )
        kept.append(_Kept(len(slices) - 2, len(slices) - 1))


def _track_of(thread: Culprit, names: dict[int, str], role: str) -> Track:
    name = names.get(thread.pid, thread.comm)
    return Track(
        process=thread.pid, process_name=name, thread=thread.tid, thread_name=thread.comm, role=role
    )


def _instant(incident: Incident) -> Instant:
    process = next(iter(incident.processes), None)
    track = (
        Track(process=HOST, process_name="host", thread=0, thread_name="host")
        if process is None
        else track_of(process, process.pid, process.comm)
    )
    details = {
        "lost": format_duration(incident.lost_ns),
        "until": format_duration(incident.end_unix_ns - incident.start_unix_ns) + " later",
        "effects": incident.effects,
        "chronic": incident.chronic,
        "do": list(incident.advice),
        "incident": incident.id,
    }
    name = f"{incident.severity}: {plain(sentence_of(incident))}"
    return Instant(
        track=track,
        name=name,
        category=SliceCategory.INCIDENT,
        unix_ns=incident.start_unix_ns,
        details=details,
    )


def _order(drawn: Slice) -> tuple[int, int]:
    return drawn.start_unix_ns, -drawn.end_unix_ns
