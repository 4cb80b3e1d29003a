"""The page: everything of a report in one file that asks nobody for anything."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import otel_gpu
from otel_gpu.faces import flamegraph
from otel_gpu.faces.html.calls import call_table, memory_part
from otel_gpu.faces.html.charts import has_charts, time_charts
from otel_gpu.faces.html.elements import Child, Markup, element, join_with, raw
from otel_gpu.faces.html.header import page_header, source_name
from otel_gpu.faces.html.incidents import incident_cards
from otel_gpu.faces.html.names import name_of
from otel_gpu.faces.html.verdicts import verdict_cards
from otel_gpu.faces.html.waits import blame_table, load_list, off_cpu_table
from otel_gpu.findings.model import Report

MOST_LOSSES = 32
MOST_NOTES = 64
_FOLDER = resources.files(__package__)


class Section(NamedTuple):
    """A part of the page; ``link`` is what the navigation calls it."""

    name: str
    link: str
    title: str
    about: str
    parts: Sequence[Child]


def make_page(report: Report, *, flame_graphs: Sequence[str] = ()) -> str:
    """
    Make the page; the same report gives the same bytes.

    Args:
        report: What to tell.
        flame_graphs: Whole pieces of HTML, safe as they are; see ``flames.flame_graph``. They
            need no script but that of flame graphs, and no style but the page's: its policy
            allows no other.
    """
    style, script = _source("style.css"), _source("script.js")
    if flame_graphs:
        script += flamegraph.SCRIPT
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{source_name(report)}: otel-gpu report"),
        raw("style", style),
    )
    sections = _sections(report, flame_graphs)
    body = element(
        "body",
        page_header(report),
        _navigation(sections),
        element("main", [_section(section) for section in sections]),
        element("footer", _footer()),
        raw("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(report: Report, flame_graphs: Sequence[str]) -> list[Section]:
    """What there is to tell, in the order of a reader's questions."""
    many = len(report.processes) > 1
    incidents: Sequence[Child] = incident_cards(report.incidents, report.start_unix_ns)
    quiet = element("p", "None: no call and no gap was far slower than usual, hung or failed.")
    sections = [
        Section("verdict", "Verdict", "What bounds it", _VERDICT, verdict_cards(report)),
        Section("incidents", "Incidents", "Incidents", _INCIDENTS, incidents or [quiet]),
    ]
    if has_charts(report):
        sections.append(Section("time", "Over time", "Over time", _TIME, time_charts(report)))
    if report.apis:
        table = call_table(report.apis, with_process=many)
        sections.append(Section("calls", "Calls", "Calls", _CALLS, [table]))
    if report.memory:
        balance = memory_part(report.memory, report.apis, with_process=many)
        sections.append(Section("memory", "Memory", "Device memory", _MEMORY, balance))
    if report.off_cpu:
        table = off_cpu_table(report.off_cpu, with_process=many)
        sections.append(Section("off-cpu", "Off the CPU", "Off the CPU", _OFF_CPU, [table]))
    if report.blames:
        table = blame_table(report.blames, with_process=many)
        sections.append(
            Section("culprits", "Culprits", "Who kept them waiting", _CULPRITS, [table])
        )
    if flame_graphs:
        graphs = [Markup(graph) for graph in flame_graphs]
        sections.append(Section("flames", "Flame graphs", "Flame graphs", _FLAMES, graphs))
    if report.load:
        sections.append(
            Section("host", "Host", "The host meanwhile", _HOST, [load_list(report.load)])
        )
    sections.append(
        Section("unknown", "Not known", "Losses, and what is not known", "", _unknown(report))
    )
    return sections


def _unknown(report: Report) -> list[Child]:
    losses: list[Child] = ["Nothing was lost on the way from the kernel."]
    if report.losses:
        counts = sorted(report.losses.items(), key=lambda item: (-item[1], item[0]))
        told = [[name_of(name), f" {count:,}"] for name, count in counts[:MOST_LOSSES]]
        losses = ["Lost, by reason: ", join_with(", ", told)]
        if len(counts) > MOST_LOSSES:
            losses.append(f", {len(counts) - MOST_LOSSES:,} more")
    notes = [element("li", note) for note in report.notes[:MOST_NOTES]]
    if len(report.notes) > MOST_NOTES:
        notes.append(element("li", f"{len(report.notes) - MOST_NOTES:,} more notes."))
    return [element("p", losses), element("ul", notes) if notes else None]


def _section(section: Section) -> Markup:
    return element(
        "section",
        element("h2", section.title),
        element("p", section.about, class_="about") if section.about else None,
        section.parts,
        id=section.name,
    )


def _navigation(sections: Sequence[Section]) -> Markup:
    links = [element("a", section.link, href=f"#{section.name}") for section in sections]
    return element("nav", links, aria_label="Sections")


def _footer() -> Markup:
    return element(
        "p",
        f"Written by otel-gpu {otel_gpu.__version__}. This page is complete in itself: it loads "
        "nothing and sends nothing.",
    )


def _source(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Allow what is in this page, and nothing else: no request can leave it."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


_INCIDENTS = (
    "Slow, hung or failed calls, and slow gaps between calls, grouped by what was behind them. "
    "Lost time is what they took beyond their own usual, as far as it has a cause."
)
_VERDICT = "Where the time of the threads went that feed the GPU."
_TIME = (
    "What happened when. Shares are of the time that passed: of several threads together they can be "
    "more than all of it."
)
_CALLS = "Every call that was counted. Times are host time: from call to return."
_MEMORY = "What successful calls allocated against what they freed."
_OFF_CPU = "How long threads did not run, and why. Those that feed the GPU come first."
_CULPRITS = "Over all effects: who cost whom how much time, and by what."
_FLAMES = (
    "Where in their programs threads spent time: process at the top, each function below its caller, "
    "the wider the longer. From left to right there is no time. A click enlarges a box; one on a box "
    "above goes back."
)
_HOST = "Context: nothing is blamed on it because it happened at the same time."
