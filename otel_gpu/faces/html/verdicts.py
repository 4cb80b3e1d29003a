"""What bounds each process, in words and with its numbers."""

from collections.abc import Mapping, Sequence

from otel_gpu.enrich.activities import ProcessImage
from otel_gpu.explain.chains import Verdict
from otel_gpu.faces.html.bars import Part, legend, stack
from otel_gpu.faces.html.elements import Child, Markup, element, join_with
from otel_gpu.faces.html.names import command_of, name_of, process_of
from otel_gpu.faces.html.phrases import CLASSES, OTHER, STATES, UNKNOWN_VERDICT, VERDICTS
from otel_gpu.findings.model import Report
from otel_gpu.findings.words import format_duration

MOST_PROCESSES = 24
_MOST_NAMED = 12
_SHOWN_SHARE = 0.005

ImageKey = tuple[int, int]


def verdict_cards(report: Report) -> list[Markup]:
    """A card for each process that calls CUDA, and a line about the others."""
    verdicts = {_key_of(verdict.process): verdict for verdict in report.verdicts}
    calls = {_key_of(row.process) for row in report.apis}
    images = {_key_of(image): image for image in report.processes}
    judged = [image for key, image in images.items() if key in verdicts or key in calls]
    others = [image for key, image in images.items() if key not in verdicts | dict.fromkeys(calls)]
    # Who had most to do with the GPU comes first.
    judged.sort(key=lambda image: -_budget_of(verdicts.get(_key_of(image))))
    shown = [_card(image, verdicts.get(_key_of(image))) for image in judged[:MOST_PROCESSES]]
    cards = [element("div", shown, class_="cards")] if shown else []
    rest = judged[MOST_PROCESSES:]
    if rest:
        cards.append(_line(f"{len(rest):,} more that make CUDA calls: ", rest))
    if others:
        cards.append(_line("Watched, and no CUDA call seen: ", others))
    return cards or [element("p", "No CUDA call in this window.")]


def _card(process: ProcessImage, verdict: Verdict | None) -> Markup:
    name = verdict.verdict if verdict else UNKNOWN_VERDICT
    return element(
        "article",
        element(
            "h3",
            process_of(process),
            " ",
            element("span", name_of(name), class_=f"verdict tone-text-{_tone_of(name)}"),
        ),
        element("p", VERDICTS.get(name), class_="lead"),
        _shares(verdict) if verdict else None,
        _budget(verdict) if verdict else None,
        _command(process),
        class_="card",
    )


def _command(process: ProcessImage) -> Child:
    command = command_of(process)
    return element("p", command, class_="command quiet") if command else None


def _shares(verdict: Verdict) -> list[Markup]:
    parts = _parts(verdict.shares, CLASSES)
    return [stack(parts, "What the time was spent on"), legend(parts)]


def _budget(verdict: Verdict) -> Child:
    total_ns = sum(verdict.budget_ns.values())
    if total_ns <= 0:
        return None
    shares = {state: time_ns / total_ns for state, time_ns in verdict.budget_ns.items()}
    parts = [
        part._replace(told=format_duration(part.share * total_ns))
        for part in _parts(shares, STATES)
    ]
    return element(
        "details",
        element(
            "summary",
            f"Where {format_duration(total_ns)} of the threads that feed the GPU went",
        ),
        stack(parts, "Time by state"),
        legend(parts),
    )


def _parts(shares: Mapping[str, float], names: Mapping[str, tuple[str, str]]) -> list[Part]:
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    return [
        Part(*names.get(name, (OTHER, name_of(name))), share)
        for name, share in ranked
        if share >= _SHOWN_SHARE
    ]


def _line(about: str, images: Sequence[ProcessImage]) -> Markup:
    named = images[:_MOST_NAMED]
    more = f", and {len(images) - len(named):,} more" if len(images) > len(named) else None
    return element("p", about, join_with(", ", map(process_of, named)), more, class_="quiet")


def _tone_of(verdict: str) -> str:
    name = verdict.removesuffix("-bound")
    return CLASSES[name][0] if name in CLASSES and name != verdict else OTHER


def _budget_of(verdict: Verdict | None) -> int:
    return sum(verdict.budget_ns.values()) if verdict else -1


def _key_of(process: ProcessImage) -> ImageKey:
    return process.pid, process.image_ktime_ns
