"""Flame graphs: where boxes are, and that names are text."""

import base64
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_gpu.report.render.html import flamegraph
from otel_gpu.report.render.html.flamegraph import draw_flamegraph, flamegraph_page
from otel_gpu.report.stacks.folding import FoldedFrame, FoldedStack
from tests.unit.report.stack_samples import EVIL

SVG = "{http://www.w3.org/2000/svg}"


def parse(svg):
    """The picture as a tree of elements."""
    return ET.fromstring(svg)  # noqa: S314 - it is our own


def boxes_of(svg):
    """Text, left edge, width and row of each box."""
    root = parse(svg)
    return {
        (box.find(f"{SVG}title").text.split("\n")[0]): (
            float(box.find(f"{SVG}rect").get("x")),
            float(box.find(f"{SVG}rect").get("width")),
            int(box.get("data-d")),
        )
        for box in root.iter(f"{SVG}g")
    }


def folded(weight, *names):
    return FoldedStack(tuple(FoldedFrame(name, "cpython") for name in names), weight)


def test_a_box_is_as_wide_as_what_runs_through_it():
    """All stacks at the top, each call below its caller, side by side in alphabetical order."""
    svg = draw_flamegraph(
        [folded(30, "main", "b"), folded(60, "main", "a"), folded(10, "m")], "time"
    )

    assert boxes_of(svg) == {
        "all": (0, 1200, 0),
        "m": (0, 120, 1),
        "main": (120, 1080, 1),
        "a": (120, 720, 2),
        "b": (840, 360, 2),
    }
    assert "<title>a\n60 ns (60.0%)</title>" in svg


def test_the_same_stacks_give_the_same_picture():
    """In whatever order they come."""
    some = [folded(n, "main", f"f{n}") for n in range(1, 20)]

    assert draw_flamegraph(some, "bytes") == draw_flamegraph(reversed(some), "bytes")


def test_what_is_too_narrow_is_left_out_and_said():
    """A picture of ten thousand boxes is no picture."""
    many = [folded(1, "main", f"f{n:05}", "inner") for n in range(5_000)]
    svg, note = str(draw_flamegraph(many, "calls")).split("</svg>")

    assert set(boxes_of(svg + "</svg>")) == {"all", "main"}
    assert note == "<p>Too narrow to be drawn: 5,000, and all below them.</p>"


def test_a_picture_has_a_bounded_number_of_boxes():
    """However many there are; the widest stay, and what is above them."""
    many = [folded(100 - n, f"f{n}", f"g{n}") for n in range(20)]

    boxes = boxes_of(draw_flamegraph(many, "calls", most=5).split("<p>")[0])
    assert set(boxes) == {"all", "f0", "g0", "f1", "g1"}


def test_a_long_name_loses_its_middle():
    """The names of templates can fill a page; what they end in is often what tells them apart."""
    (name,) = set(boxes_of(draw_flamegraph([folded(1, "f" * 10_000 + "end")], "calls"))) - {"all"}

    assert len(name) == flamegraph.MAX_CHARACTERS
    assert name.startswith("ffff")
    assert name.endswith("fend")
    assert "…" in name


def test_a_deep_stack_is_no_recursion():
    """Depth costs rows, and nothing else."""
    svg = draw_flamegraph([folded(1, *(f"f{n}" for n in range(5_000)))], "calls")

    assert len(boxes_of(svg)) == 5_001


class Tags(HTMLParser):
    """What a browser would make of a page: its tags, attributes and links."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes = [], set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.mark.parametrize("name", EVIL)
def test_a_name_is_text_and_nothing_else(name):
    """Whatever a program calls its functions, the page has the same tags and one script."""
    harmless, evil = (
        flamegraph_page([folded(1, "main", text)], "time", text) for text in ("f", name)
    )

    assert Tags(evil).tags == Tags(harmless).tags
    assert Tags(evil).tags.count("script") == 1
    assert not {"onclick", "onerror", "onload", "src", "href"} & Tags(evil).attributes
    parse(re.search("<svg xmlns.*</svg>", evil, re.DOTALL).group())
    assert evil.encode()


@given(
    st.lists(st.tuples(st.lists(st.text(max_size=8), max_size=5), st.integers(1, 99)), max_size=6)
)
def test_any_names_make_a_picture(some):
    """That parses, and holds as many boxes as there are different beginnings of stacks."""
    svg = draw_flamegraph([folded(weight, *names) for names, weight in some], "bytes")
    beginnings = {tuple(names[: n + 1]) for names, _ in some for n in range(len(names))}

    root = parse(svg.split("<p>")[0])
    assert len(list(root.iter(f"{SVG}g"))) == (1 + len(beginnings) if some else 0)


def test_the_page_needs_nothing_from_elsewhere():
    """Its policy lets the browser run the one script that it knows, and load nothing."""
    page = flamegraph_page([folded(1, "main")], "time", "train.otelgpu: calls by time")

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
    style, script = (
        base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        for source in re.search(
            "<style>(.*?)</style>.*<script>(.*?)</script>", page, re.DOTALL
        ).groups()
    )
    assert unescape(policy) == (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    )
    assert "style" not in Tags(page).attributes
    assert re.findall(r"innerHTML|eval|fetch|import\b", page) == []
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "<h1>train.otelgpu: calls by time</h1>" in page
