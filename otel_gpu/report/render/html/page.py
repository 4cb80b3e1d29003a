"""The page: everything of a document in one file that loads nothing."""

from collections.abc import Iterable
from pathlib import PurePath

import otel_gpu
from otel_gpu.report import causes, headline
from otel_gpu.report.document import Document
from otel_gpu.report.render.html import (
    charts,
    devices,
    flamegraph,
    memory,
    shapes,
    stories,
    tables,
    timeline,
)
from otel_gpu.report.render.html.markup import (
    ENVIRONMENT,
    Id,
    clip,
    hash_of,
    names_for_templates,
    source,
)
from otel_gpu.report.render.html.waterfalls import waterfall
from otel_gpu.report.render.text import collectives
from otel_gpu.report.render.text.stacks import coverage
from otel_gpu.report.render.text.steps import (
    MOST_ROWS_OF_STEPS,
    MOST_SLOW_STEPS,
    step_sentence,
    steps_headline,
)
from otel_gpu.report.render.text.tables import load_lines
from otel_gpu.report.stacks.top_stacks import (
    ALLOCATED,
    CALLED,
    CPU,
    IN_USE,
    OFF_CPU,
    PEAK,
    WAITED,
    WALL,
    StackReport,
)
from otel_gpu.report.time_tree import describe_bound
from otel_gpu.report.timeline.timeline import Timeline
from otel_gpu.report.wording import formats, phrases, sentences
from otel_gpu.report.wording.formats import name_of_device
from otel_gpu.report.wording.sentences import FrameLine

MOST_IN_FULL = 25
MOST_BALANCES = 24
_FLAME_TITLES = {
    CALLED: "CUDA calls",
    WAITED: "Waits of threads",
    CPU: "Threads on CPUs",
    OFF_CPU: "Threads off CPUs",
    WALL: "Threads on and off CPUs",
    IN_USE: "Device memory in use in the end",
    PEAK: "Device memory in use when most was",
    ALLOCATED: "Device memory allocated",
}


def make_page(
    document: Document, *, flames: Iterable[StackReport] = (), drawing: Timeline | None = None
) -> str:
    """Make the page, with flame graphs and a timeline; the same document gives the same bytes."""
    drawn = [report for report in flames if report.total() > 0]
    style, script = source("style.css"), source("script.js")
    if drawn:
        script += flamegraph.FLAME_SCRIPT
    if timeline.is_drawable(drawing):
        script += timeline.TIMELINE_SCRIPT
    # Allow only what is in this page: no request can leave it.
    policy = (
        f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return ENVIRONMENT.get_template("page.html").render(
        document=document,
        flames=drawn,
        timeline=drawing,
        answer=headline.headline_of(document),
        # The folder can be private.
        source_name=PurePath(document.source).name or document.source,
        style=style,
        script=script,
        policy=policy,
    )


# Templates use the names of these modules.
ENVIRONMENT.tests["bar"] = lambda value: isinstance(value, shapes.ShareBar)
ENVIRONMENT.globals |= names_for_templates(
    *(formats, sentences, phrases, causes, headline, stories, shapes, charts, tables, flamegraph),
    *(memory, devices, collectives, timeline),
    more={
        "FLAME_TITLES": _FLAME_TITLES,
        "Id": Id,
        "MOST_BALANCES": MOST_BALANCES,
        "MOST_IN_FULL": MOST_IN_FULL,
        "MOST_ROWS_OF_STEPS": MOST_ROWS_OF_STEPS,
        "MOST_SLOW_STEPS": MOST_SLOW_STEPS,
        "Place": FrameLine,
        "clip": clip,
        "coverage": coverage,
        "load_lines": load_lines,
        "name_of_device": name_of_device,
        "describe_bound": describe_bound,
        "step_sentence": step_sentence,
        "steps_headline": steps_headline,
        "version": otel_gpu.__version__,
        "waterfall_of": waterfall,
    },
)
