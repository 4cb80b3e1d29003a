"""The page: everything of a document in one file that asks nobody for anything."""

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import NamedTuple

import otel_gpu
from otel_gpu.faces.html import charts, flamegraph, shapes, stories, tables
from otel_gpu.faces.html.markup import ENVIRONMENT, Id, Place, clip, hash_of, source
from otel_gpu.faces.html.waterfalls import waterfall
from otel_gpu.faces.tables import load_lines
from otel_gpu.findings import causes, phrases, sentences, words
from otel_gpu.findings.document import Document
from otel_gpu.findings.top_stacks import StackReport

MOST_IN_FULL = 25
MOST_BALANCES = 24


class Section(NamedTuple):
    """A part of the page; ``link`` is what the navigation calls it."""

    name: str
    link: str
    title: str
    about: str = ""


def make_page(document: Document, *, flames: Iterable[StackReport] = ()) -> str:
    """
    Make the page; the same document gives the same bytes.

    Args:
        document: What to show.
        flames: By time; drawn are those that hold anything.
    """
    drawn = [report for report in flames if report.total() > 0]
    style, script = source("style.css"), source("script.js")
    if drawn:
        script += flamegraph.SCRIPT
    # Allow what is in this page, and nothing else: no request can leave it.
    policy = (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return ENVIRONMENT.get_template("page.html").render(
        document=document,
        flames=drawn,
        sections=list(_sections(document, drawn)),
        leading=stories.leading_incident(document),
        # The folder that it is in is nobody else's concern.
        source_name=PurePath(document.source).name or document.source,
        style=style,
        script=script,
        policy=policy,
    )


def _sections(document: Document, flames: Sequence[StackReport]) -> Iterable[Section]:
    """Yield what there is to show, in the order of a reader's questions."""
    is_there = {
        "time": charts.is_busy(document.slots_of(None)),
        "calls": document.apis,
        "memory": document.balances,
        "off-cpu": document.off_cpu,
        "culprits": document.blames,
        "flames": flames,
        "host": document.load,
    }
    return (section for section in _SECTIONS if is_there.get(section.name, True))


_SECTIONS = (
    Section(
        "verdict",
        "Verdict",
        "What bounds it",
        "Where the time of the threads went that feed the GPU.",
    ),
    Section(
        "incidents",
        "Incidents",
        "Incidents",
        "Slow, hung or failed calls, and slow gaps between calls, grouped by what was behind them. "
        "Lost time is what they took beyond their own usual, as far as it has a cause.",
    ),
    Section(
        "time",
        "Over time",
        "Over time",
        "What happened when. Shares are of the time that passed: of several threads together they "
        "can be more than all of it.",
    ),
    Section(
        "calls",
        "Calls",
        "Calls",
        "Every call that was counted. Times are host time: from call to return.",
    ),
    Section(
        "memory",
        "Memory",
        "Device memory",
        "What successful calls allocated against what they freed.",
    ),
    Section(
        "off-cpu",
        "Off the CPU",
        "Off the CPU",
        "How long threads did not run, and why. Those that feed the GPU come first.",
    ),
    Section(
        "culprits",
        "Culprits",
        "Who kept them waiting",
        "Over all effects: who cost whom how much time, and by what.",
    ),
    Section(
        "flames",
        "Flame graphs",
        "Flame graphs",
        "Where in their programs threads spent time: process at the top, each function below its "
        "caller, the wider the longer. From left to right there is no time. A click enlarges a box; "
        "one on a box above goes back.",
    ),
    Section(
        "host",
        "Host",
        "The host meanwhile",
        "Context: nothing is blamed on it because it happened at the same time.",
    ),
    Section("unknown", "Not known", "Losses, and what is not known"),
)

# What the templates ask for is what these modules offer, by its own name.
ENVIRONMENT.tests["bar"] = lambda value: isinstance(value, shapes.Bar)
for _module in (words, sentences, phrases, causes, stories, shapes, charts, tables, flamegraph):
    ENVIRONMENT.globals |= {name: value for name, value in vars(_module).items() if name[0] != "_"}
ENVIRONMENT.globals |= {
    "Id": Id,
    "MOST_BALANCES": MOST_BALANCES,
    "MOST_IN_FULL": MOST_IN_FULL,
    "Place": Place,
    "clip": clip,
    "load_lines": load_lines,
    "version": otel_gpu.__version__,
    "waterfall_of": waterfall,
}
