"""The top of the page: the answer in a sentence, and the figures that put it in proportion."""

from collections import Counter
from pathlib import PurePath

from otel_gpu.explain.chains import Culprit, Incident
from otel_gpu.faces.html.bars import Part, legend, stack
from otel_gpu.faces.html.elements import Child, Markup, element
from otel_gpu.faces.html.incidents import loss_of, sentence_of, severity_badge
from otel_gpu.faces.html.names import code_of, name_of, thread_of
from otel_gpu.faces.html.sentences import because, fault, label_of, tone_of
from otel_gpu.faces.html.stacks import places_of
from otel_gpu.findings.model import Report
from otel_gpu.findings.words import count_of, format_duration, format_share, format_time

_RANK = {"high": 0, "medium": 1, "low": 2}
_SHOWN_SHARE = 0.02
_MOST_CAUSES = 5
_ALSO_SHARE = 0.2


def source_name(report: Report) -> str:
    """What was explained; the folder that it is in is nobody else's concern."""
    return PurePath(report.source).name or report.source


def page_header(report: Report) -> Markup:
    """Say what happened; whoever reads no further knows that."""
    length_ns = report.end_unix_ns - report.start_unix_ns
    return element(
        "header",
        element(
            "p",
            element("b", name_of(source_name(report))),
            f": {format_duration(length_ns)} from ",
            element("time", f"{format_time(report.start_unix_ns)} UTC"),
            class_="source quiet",
        ),
        _answer(report),
        _errors(report),
        _figures(report),
    )


def leading_incident(report: Report) -> Incident | None:
    """The one to tell of first: the worst, and of those the one that lost most time."""
    return min(
        report.incidents,
        key=lambda incident: (_RANK.get(incident.severity, 3), -incident.lost_ns, incident.id),
        default=None,
    )


def _answer(report: Report) -> Child:
    incident = leading_incident(report)
    if incident is None:
        told = "Nothing went wrong: no call was far slower than usual, hung or failed"
        return element("h1", told if report.apis else "No CUDA call was counted")
    parts = [
        Part(tone_of(cause.kind), [label_of(cause.kind), _by(cause.culprit)], cause.share)
        for cause in incident.causes
        if cause.share >= _SHOWN_SHARE
    ][:_MOST_CAUSES]
    number = report.incidents.index(incident) + 1
    link = element("a", "why, and what to do", href=f"#incident-{number}")
    return element(
        "div",
        element("p", severity_badge(incident.severity), " ", loss_of(incident), class_="lead"),
        element("h1", sentence_of(incident)),
        _also(incident),
        _fault(incident),
        _where(incident),
        stack(parts, "Causes of the worst incident"),
        legend(parts),
        element("p", link, _others(report), class_="more"),
        _longest(report, incident),
        class_="answer",
    )


def _longest(report: Report, told: Incident) -> Child:
    """What cost most, where something worse was told of: a long wait for the GPU may be usual."""
    longest = report.incidents[0]
    if longest is told:
        return None
    return element(
        "p",
        element("a", "Most time", href="#incident-1"),
        " was lost to something else: ",
        loss_of(longest),
        ". ",
        sentence_of(longest),
        ".",
        class_="longest",
    )


def _errors(report: Report) -> Child:
    """What a program may have let pass unnoticed."""
    failing: Counter[str] = Counter()
    for row in report.apis:
        failing[row.api] += row.errors
    errors = failing.total()
    if not errors:
        return None
    api, most = min(failing.items(), key=lambda item: (-item[1], item[0]))
    among = ": " if most == errors else f", {most:,} of them "
    return element(
        "p",
        element("a", f"{count_of(errors, 'call')} returned an error", href="#calls"),
        among,
        code_of(api),
        class_="errors",
    )


def _also(incident: Incident) -> Child:
    """What else is behind much of it."""
    second = incident.causes[1:2]
    if not second or second[0].share < _ALSO_SHARE:
        return None
    cause = second[0]
    return element("p", f"{format_share(cause.share)} of it: ", because(cause), class_="also")


def _by(culprit: Culprit | None) -> Child:
    return [": ", thread_of(culprit)] if culprit else None


def _fault(incident: Incident) -> Child:
    if not incident.causes or not incident.chains:
        return None
    told = fault(incident.causes[0], incident.chains[0].effect.process.pid)
    return element("p", element("span", "Whose fault: ", class_="quiet"), told, class_="fault")


def _where(incident: Incident) -> Child:
    places = places_of(incident)
    if places is None:
        return None
    return element("p", element("span", "Where: ", class_="quiet"), places, class_="where")


def _others(report: Report) -> Child:
    count = len(report.incidents) - 1
    return (
        [" · ", element("a", count_of(count, "more incident"), href="#incidents")]
        if count
        else None
    )


def _figures(report: Report) -> Markup:
    calls = sum(slot.calls for slot in report.slots if slot.process is None)
    errors = sum(row.errors for row in report.apis)
    lost_ns = sum(incident.lost_ns for incident in report.incidents)
    lost = sum(report.losses.values())
    severe = sum(incident.severity == "high" for incident in report.incidents)
    return element(
        "dl",
        _figure("CUDA calls", f"{round(calls):,}"),
        _figure("returned an error", f"{errors:,}", is_bad=errors > 0),
        _figure("lost time", format_duration(lost_ns) if lost_ns else "none"),
        _figure(f"incidents, {severe:,} high", f"{len(report.incidents):,}"),
        _figure("processes", f"{len(report.processes):,}"),
        _figure("records lost", f"{lost:,}", is_bad=lost > 0),
        class_="figures",
    )


def _figure(name: str, value: str, *, is_bad: bool = False) -> Markup:
    return element(
        "div", element("dt", name), element("dd", value, class_="bad" if is_bad else None)
    )
