"""The causes of an effect or an incident, as a tree with shares."""

from collections.abc import Sequence

from otel_gpu.enrich.activities import CallStack
from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.faces.html.bars import Part, block, drawing, stack
from otel_gpu.faces.html.elements import Child, Markup, element
from otel_gpu.faces.html.names import code_of
from otel_gpu.faces.html.phrases import OTHER
from otel_gpu.faces.html.sentences import label_of, tone_of, what_happened, what_it_did
from otel_gpu.faces.html.stacks import place_of_cause
from otel_gpu.findings.words import count_of, format_duration, format_share

MOST_CAUSES = 8
_MOST_DEPTH = 6
_SMALL_SHARE = 0.005
_FULL_WIDTH = 100.0


def cause_tree(
    causes: Sequence[Cause], unexplained_ns: int, duration_ns: int, own: CallStack | None = None
) -> Markup:
    """
    List causes, each with where the thread was and what it was due to in turn.

    Args:
        causes: In the order to tell them in.
        unexplained_ns: Time without a cause.
        duration_ns: What shares are of, for the unexplained; 0 if it is not known.
        own: Where the effect was, which is not said of its causes again.
    """
    rest = _unexplained(unexplained_ns, duration_ns) if unexplained_ns > 0 else None
    return element("ul", _items(causes, None, 0, own), rest, class_="causes")


def cause_bar(causes: Sequence[Cause]) -> Markup:
    """Draw the shares of causes in one bar."""
    parts = [Part(tone_of(cause.kind), label_of(cause.kind), cause.share) for cause in causes]
    return stack(parts, "")


def _items(
    causes: Sequence[Cause], subject: Culprit | None, depth: int, own: CallStack | None
) -> list[Markup]:
    shown = [c for c in causes[:MOST_CAUSES] if c.share >= _SMALL_SHARE] or list(causes[:1])
    items = [_item(cause, subject, depth, own) for cause in shown]
    left_out = [cause for cause in causes if not any(cause is one for one in shown)]
    if left_out:
        time_ns = sum(cause.time_ns for cause in left_out)
        told = f"{count_of(len(left_out), 'smaller cause')}: {format_duration(time_ns)} together"
        items.append(element("li", element("p", told, class_="quiet rest")))
    return items


def _item(cause: Cause, subject: Culprit | None, depth: int, own: CallStack | None) -> Markup:
    place = place_of_cause(cause, own)
    told = what_it_did(cause, subject) if depth else what_happened(cause)
    inner: Child = None
    if cause.via and depth < _MOST_DEPTH:
        inner = element("ul", _items(cause.via, cause.culprit, depth + 1, own))
    label = element("span", code_of(cause.kind), class_="label")
    said = [told, [", at ", place] if place else None, " ", label]
    return element("li", _row(tone_of(cause.kind), cause.share, cause.time_ns, said), inner)


def _unexplained(time_ns: int, duration_ns: int) -> Markup:
    share = time_ns / duration_ns if duration_ns > 0 else None
    return element("li", _row(OTHER, share, time_ns, "Not explained"))


def _row(tone: str, share: float | None, time_ns: int, told: Child) -> Markup:
    width = min(max(share or 0.0, 0.0), 1.0) * _FULL_WIDTH
    return element(
        "div",
        element("div", "" if share is None else format_share(share), class_="share"),
        drawing("share-bar", "", block(tone, 0.0, width)),
        element("div", format_duration(time_ns), class_="time"),
        element("div", told, class_="told"),
        class_="cause",
    )
