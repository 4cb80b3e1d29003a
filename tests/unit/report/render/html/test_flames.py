"""Flame graphs in a page: what they are of, what they leave out, and that names are text."""

import re

import pytest

from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.html.stories import MOST_LISTED
from otel_gpu.report.stacks.top_stacks import WAITED
from otel_gpu.wire.frames import Frame
from tests.activities import SECOND, call, call_stack, stall
from tests.unit.report.render.html.pages import Seen, part, report_named, text_of
from tests.unit.report.stack_samples import EVIL, MALLOC, MS, TRAINER, report_of

HARMLESS = "f"


def flame_graph(report):
    return part("flame_graph", report)


def read(markup):
    """The text of a piece of a page, with a plain letter for the sign of times."""
    return text_of(markup).replace("\N{MULTIPLICATION SIGN}", "x")


def calls_at(names):
    """A call from each of many places, each a millisecond longer than the one before."""
    return [
        call(
            TRAINER,
            "cudaMalloc",
            n * SECOND,
            n * MS,
            stack=call_stack(n, (Frame("cpython", name, f"/app/{name}.py", n),)),
        )
        for n, name in enumerate(names, 1)
    ]


def test_calls_are_drawn_by_time():
    """With how many there are, of how many, and how many the sampled ones stand for."""
    markup = flame_graph(report_of())

    text = text_of(markup)
    assert text.startswith(
        "CUDA calls Of calls that became spans: 4 with a stack, 1 without; sampled ones count as often "
        "as they were sampled from, so these stand for 1,003 calls. Counted: 1,503 calls."
    )
    assert 'aria-label="Flame graph by time"' in markup
    assert "<title>cudaMalloc (libcudart.so.12)\n7 ms (53.8%)</title>" in markup
    assert [text_of(key) for key in re.findall("<li><svg.*?</li>", markup)] == [
        "process",
        "Python",
        "native",
        "CUDA",
    ]


def test_waits_are_drawn_as_such():
    """What they were for is said in words below."""
    waits = [
        stall(TRAINER, 1 * SECOND, 3 * SECOND, 4 * SECOND, reason="lock", stack=MALLOC),
        stall(TRAINER, 5 * SECOND, 6 * SECOND, 6 * SECOND, reason="io"),
    ]

    text = read(flame_graph(report_of(*waits, kind=WAITED)))

    assert text.startswith(
        "Waits of threads Of waits that became spans: 1 with a stack, 1 without. Shorter waits are "
        "not listed, and threads that had nothing to do waited too."
    )
    assert "100 % 2 s in 1 x lock of trainer (42) at train.py:74 fragmentation_pattern" in text


def test_the_heaviest_are_told_in_words():
    """For who cannot see the picture, and for who wants to copy a name; the rest is added up."""
    report = report_of(*calls_at([f"g{n}" for n in range(MOST_LISTED + 3)]))

    text = read(flame_graph(report))

    told = re.findall(r"(\d+) % \S+ ms in 1 x cudaMalloc of trainer \(42\) at (\S+) ", text)
    assert len(told) == MOST_LISTED
    assert told[0] == ("14", f"g{MOST_LISTED + 2}.py:{MOST_LISTED + 3}")
    assert "3 more stacks: 7 % of the time." in text


@pytest.mark.parametrize("kind", ["calls", "waits"])
def test_without_weight_there_is_no_picture(kind):
    """An empty frame would look like a fault of ours."""
    report = report_of(call(TRAINER, "cudaMalloc", SECOND, MS), kind=kind)

    assert "flamegraph" not in make_page(report_named("x"), flames=[report]).split("<body>")[1]


@pytest.mark.parametrize("name", EVIL)
def test_a_name_is_text_and_nothing_else(name):
    """Whatever a program calls its functions, the page has the same elements, and no style."""
    evil, harmless = (Seen(flame_graph(report_of(*calls_at([text])))) for text in (name, HARMLESS))

    assert evil.elements == harmless.elements
    assert evil.values_of("class") == harmless.values_of("class")
    assert {name for _, names in evil.elements for name in names}.isdisjoint(
        {"style", "href", "src", "onclick", "onload", "onerror"}
    )


def test_a_graph_is_bounded():
    """As many stacks as there may be, with the longest names: a page stays one that can be sent."""
    names = [f"{n}" + "<&>" * 170 for n in range(3_000)]

    assert len(flame_graph(report_of(*calls_at(names)))) < 6_000_000
