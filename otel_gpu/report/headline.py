"""
The answer to "why is it slow", which opens every report.

It is the worst incident, or what a device or an allocator recorded if no calls were counted. The
renderers only lay it out.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from otel_gpu.report.causes import rank_of, ranked_places
from otel_gpu.report.document import Document, Incident, key_of
from otel_gpu.report.notes import reason_without_calls
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_share,
    name_of_device,
)
from otel_gpu.report.wording.sentences import (
    TIMES,
    FrameLine,
    Sentence,
    because,
    fault,
    loss_of,
    sentence_of,
)
from otel_gpu.report.wording.shares import describe_shares

FAULT = "Whose fault"
PLACE = "Where"
ADVICE = "What to do"
BESIDES = "Besides"

_MOST_PLACES = 3
_MOST_SHARES = 3
_ALSO_SHARE = 0.2


class HeadlineLine(NamedTuple):
    """One part of the answer: the question that it answers, in a word or two, and the answer."""

    label: str
    sentence: Sentence


class Headline(NamedTuple):
    """
    The answer.

    Attributes:
        title: What happened.
        loss: Which program lost how much time; empty: none did.
        incident: The incident that it is about; None: it is about none.
        lines: The details, the most important ones first.
    """

    title: Sentence
    loss: Sentence = ()
    incident: Incident | None = None
    lines: tuple[HeadlineLine, ...] = ()


def headline_of(document: Document) -> Headline:
    """Return the answer of a document."""
    if (lead := leading_incident(document)) is not None:
        return Headline(
            sentence_of(lead), loss_of(lead), incident=lead, lines=tuple(_lines(document, lead))
        )
    if alarmed := [row for row in document.memory if row.alarms]:
        return Headline((alarmed[0].alarms[0],), lines=_to_do(alarmed[0].advice[:1]))
    if document.devices:
        return _of_devices(document)
    why = reason_without_calls(document.notes)
    lines: tuple[HeadlineLine, ...] = ()
    if document.apis:
        title = "Nothing went wrong: no call was far slower than usual, hung or failed"
    elif document.processes or document.load or why is not None:
        title = "No CUDA call was counted"
        lines = (HeadlineLine("Why", (why,)),) if why else ()
    elif document.memory:
        title = "No request for memory failed"
    else:
        title, lines = "No activity of a device was recorded", _note(document)
    return Headline((title,), lines=lines)


def leading_incident(document: Document) -> Incident | None:
    """Return the incident to show first: the worst, and of those the one that lost most time."""

    def rank(incident: Incident) -> tuple[int, bool, int, str]:
        # A failed request took no time, and is worse than slowness.
        is_slow = not any(chain.failure for chain in incident.chains)
        return rank_of(incident.severity), is_slow, -incident.lost_ns, incident.id

    return min(document.incidents, key=rank, default=None)


def places_of(incident: Incident) -> Sentence:
    """Return the code locations of an incident's effects, or else of their waits."""
    ranked = ranked_places(incident)
    if len(ranked) == 1:
        return (FrameLine(ranked[0][0]),)
    shown: list[Sentence] = [
        (FrameLine(frame), f" {count:,} {TIMES}") for frame, count in ranked[:_MOST_PLACES]
    ]
    if len(ranked) > _MOST_PLACES:
        shown.append((count_of(len(ranked) - _MOST_PLACES, "other place"),))
    return tuple(part for one in shown for part in (", ", *one))[1:]


def _lines(document: Document, lead: Incident) -> Iterator[HeadlineLine]:
    causes = lead.causes
    if causes and lead.processes:
        yield HeadlineLine(FAULT, fault(causes[0], lead.processes[0].pid))
    if places := places_of(lead):
        yield HeadlineLine(PLACE, places)
    yield from _to_do(map(_action_of, lead.advice[:1]))
    if not lead.chronic and causes[1:2] and causes[1].share >= _ALSO_SHARE:
        also = (f"{format_share(causes[1].share)} of it: ", *because(causes[1]))
        yield HeadlineLine("Also", also)
    if bound := [
        one for one in document.judged if key_of(one.process) in map(key_of, lead.processes)
    ]:
        shares = describe_shares(bound[0].verdict_shares, _MOST_SHARES)
        yield HeadlineLine("Verdict", (bound[0].verdict, shares))
    if others := [one for one in document.incidents if one is not lead]:
        yield HeadlineLine(BESIDES, _others(others, lead))


def _action_of(advice: str) -> str:
    # The first sentence of an advice describes the cause, as the title does.
    _, _, action = advice.partition(". ")
    return action or advice


def _others(others: list[Incident], lead: Incident) -> Sentence:
    lost_ns = sum(one.lost_ns for one in others)
    lost = f", {format_duration(lost_ns)} lost" if lost_ns else ""
    counted = f"{count_of(len(others), 'more incident')}{lost}"
    longest = max(others, key=lambda one: one.lost_ns)
    if longest.lost_ns <= lead.lost_ns:
        return (counted,)
    return (f"{counted}; most, {format_duration(longest.lost_ns)}: ", *sentence_of(longest))


def _to_do(advice: Iterable[str]) -> tuple[HeadlineLine, ...]:
    return tuple(HeadlineLine(ADVICE, (one,)) for one in advice)


def _note(document: Document) -> tuple[HeadlineLine, ...]:
    return tuple(HeadlineLine("Note", (note,)) for note in document.notes[:1])


def _of_devices(document: Document) -> Headline:
    worst = min(document.devices, key=lambda row: 1.0 if row.useful is None else row.useful)
    if worst.useful is None:
        why = "; ".join(worst.gate[:1])
        lines = (HeadlineLine("Why", (why,)),) if why else ()
        return Headline((f"What bounds {name_of_device(worst)} is not known",), lines=lines)
    among = len(document.devices)
    which = f", the least of {among:,} devices" if among > 1 else ""
    title = f"{worst.verdict}: {name_of_device(worst)} computed {format_share(worst.useful)} of the time{which}"
    return Headline((title,), lines=_to_do(one.text for one in document.advice[:1]))
