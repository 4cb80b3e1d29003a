"""The page of a report in a real browser: it runs, it fits, and it asks nobody for anything."""

import html
import json
import re
import struct

import pytest

from otel_gpu import cli
from otel_gpu.demo.scenarios import SCENARIOS
from otel_gpu.faces.html.page import make_page
from tests.browser.chromium import LAPTOP, PHONE, visit
from tests.torch_allocator import EXAMPLES
from tests.unit.commands import busy
from tests.unit.faces.html.pages import Seen, report_named

pytestmark = pytest.mark.browser

NAMES = ("two-causes", "starved-loader", "allocator-churn")
# Run in a copy of the page, which stands in a frame: a window is never as narrow as a phone.
MEASURE = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script></body>"
FRAMES = """<!DOCTYPE html><title>none</title>
<script>
const told = [];
onmessage = (event) => {
  told[[...document.querySelectorAll("iframe")].findIndex(
    (frame) => frame.contentWindow === event.source)] = event.data;
  document.title = "told:" + JSON.stringify(told);
};
</script>
"""
FRAME = '<iframe src="{}" width="{}" height="{}" style="border: 0"></iframe>\n'
SIZES = (LAPTOP, PHONE)
# Says how wide a flame graph and its boxes are, and whether a text is wider than its box;
# then the same of what a click on the box of cudaLaunchKernel leaves.
TAP = """<script>
const svg = document.querySelector("svg.flamegraph");
const told = () => {
  const boxes = [...svg.querySelectorAll("g[visibility=visible]")];
  const width = (box) => Math.round(box.querySelector("rect").getAttribute("width"));
  const text = (box) => box.querySelector("text");
  return [
    svg.viewBox.baseVal.width === svg.clientWidth,
    boxes.every((box) => width(box) <= svg.clientWidth),
    boxes.some((box) => text(box).getComputedTextLength() > width(box)),
    boxes.filter((box) => width(box) === svg.clientWidth).length, boxes.length,
  ];
};
const before = told();
const box = [...svg.querySelectorAll("g")].find(
  (one) => one.querySelector("title").textContent.startsWith("cudaLaunchKernel"));
box.dispatchEvent(new MouseEvent("click"));
parent.postMessage([...before, ...told(), svg.nextElementSibling.textContent].join(" "), "*");
</script></body>"""


@pytest.fixture
def page_of(tmp_path):
    def write(name):
        path = tmp_path / f"{name}.html"
        assert cli.main(["report", str(SCENARIOS[name].recording), "--html", str(path)]) == 0
        return path

    return write


def pixels_of(picture):
    """Width and height, from the header of a PNG."""
    assert picture.startswith(b"\x89PNG")
    return struct.unpack(">II", picture[16:24])


def told_by(pages, script, folder):
    """What a script at the end of each page says of it, in windows of all sizes, one after the other."""
    frames = FRAMES
    for number, page in enumerate(pages):
        free = re.sub("<meta http-equiv[^>]*>", "", page).replace("</body>", script)
        inner = folder / f"inner{number}.html"
        inner.write_text(free, encoding="utf-8")
        frames += "".join(FRAME.format(inner.name, *size) for size in SIZES)
    path = folder / "frames.html"
    path.write_text(frames, encoding="utf-8")
    (told,) = re.findall("<title>told:(.*)</title>", visit(path, folder).document)
    return json.loads(html.unescape(told))


def test_a_page_about_memory_fits(tmp_path):
    """What a snapshot holds: nothing on the console, no request, and nothing beyond the edge."""
    path = tmp_path / "memory.html"
    assert cli.main(["report", str(EXAMPLES / "fragmentation.pickle"), "--html", str(path)]) == 0
    seen = visit(path, tmp_path, fragment="#holders")

    assert (seen.console, seen.requests) == ([], [])
    widths = [width for width, _ in SIZES]
    assert told_by([path.read_text(encoding="utf-8")], MEASURE, tmp_path) == widths


@pytest.mark.parametrize("size", SIZES, ids=["laptop", "phone"])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_shown_without_a_complaint(page_of, tmp_path, name, size):
    """Nothing on the console, no request, and the script ran: tables can be sorted."""
    seen = visit(page_of(name), tmp_path, size)

    assert seen.console == []
    assert seen.requests == []
    assert pixels_of(seen.picture) == size
    assert '<button type="button">calls</button>' in seen.document


def test_a_complaint_would_be_seen(tmp_path):
    """The checks above can fail: a page that breaks its policy or asks for something is noticed."""
    page = make_page(report_named("x"))
    path = tmp_path / "bad.html"
    path.write_text(page.replace("</body>", "<script>1</script></body>"), encoding="utf-8")
    assert "Content Security Policy" in " ".join(visit(path, tmp_path).console)

    path.write_text("<img src='http://127.0.0.2/picture.png'>", encoding="utf-8")
    assert visit(path, tmp_path).requests == ["http://127.0.0.2/picture.png"]


def test_a_page_is_as_wide_as_its_window(page_of, tmp_path):
    """
    What is too wide scrolls by itself, also with everything open and with names without a space.
    """
    pages = [page_of(name).read_text(encoding="utf-8") for name in NAMES]
    pages.append(make_page(report_named("W" * 10_000)))
    opened = [page.replace("<details", "<details open") for page in pages]

    assert told_by(opened, MEASURE, tmp_path) == [width for width, _ in SIZES] * len(pages)


def test_a_flame_graph_fits_the_screen_and_can_be_looked_into(page_of, tmp_path):
    """
    Its letters are as large as others on either, and stay in their boxes. A click makes a box
    as wide as the picture, with those above it, hides the others, and says what it is.
    """
    page = page_of("preemption").read_text(encoding="utf-8")

    told = told_by([page], TAP, tmp_path)

    assert len(told) == len(SIZES)
    for one in told:
        # all, process, _start, two of libc, main, train; then launch and two calls below those.
        assert one.startswith(
            "true true false 7 10 true true false 9 9 cudaLaunchKernel (libcudart.so.12): "
        )
        assert one.endswith("%)")


@pytest.mark.parametrize("asked", [[], ["--diff", "..+1.095s", "+1.095s.."]])
def test_the_page_of_a_graph_is_shown_without_a_complaint(tmp_path, asked):
    """Of one capture, and of what differs between two parts of it."""
    recording, page = busy.write(tmp_path / "busy.otelgpu"), tmp_path / "page.html"
    drawn = ["--by", "wall", "--flamegraph", str(page), "--output", str(tmp_path / "text")]
    assert cli.main(["stacks", str(recording), *drawn, *asked]) == 0

    seen = visit(page, tmp_path)

    assert (seen.console, seen.requests) == ([], [])
    assert 'visibility="visible"' in seen.document


def test_hostile_names_run_nothing(tmp_path):
    """The document that the browser made of the page has the elements that we wrote."""
    path = tmp_path / "hostile.html"
    name = "\"'></title></style></script><img src=//127.0.0.2/x onerror=document.title='owned'>"
    page = make_page(report_named(name))
    path.write_text(page, encoding="utf-8")

    seen = visit(path, tmp_path)

    tags = sorted(tag for tag, _ in Seen(page).elements)
    made = sorted(tag for tag, _ in Seen(seen.document).elements)
    assert seen.console == []
    assert seen.requests == []
    assert {tag for tag in made if made.count(tag) != tags.count(tag)} == {"button"}


def test_a_link_opens_what_it_leads_to(page_of, tmp_path):
    """The page of an incident can be pointed at, although it is closed at first."""
    path = page_of("memory-limit")

    plain = visit(path, tmp_path).document
    linked = visit(path, tmp_path, fragment="#incident-2").document

    closed = r'<details class="card incident frame-\w+" id="incident-2">'
    opened = r'<details class="card incident frame-\w+" id="incident-2" open="">'
    assert (bool(re.search(closed, plain)), bool(re.search(opened, plain))) == (True, False)
    assert (bool(re.search(closed, linked)), bool(re.search(opened, linked))) == (False, True)
