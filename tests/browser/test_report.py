"""The page of a report in a real browser: it runs, it fits, and it asks nobody for anything."""

import html
import json
import re
import struct

import pytest

from otel_gpu import cli
from otel_gpu.demo.scenarios import SCENARIOS
from otel_gpu.report.render.html.page import make_page
from tests.browser.chromium import LAPTOP, PHONE, visit
from tests.torch_allocator import EXAMPLES
from tests.unit.cli.commands import busy
from tests.unit.importers.traces import kernel
from tests.unit.importers.traces import write as write_trace
from tests.unit.report.render.html.pages import Seen, report_named
from tests.unit.report.render.html.test_devices import starved as starved_device

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
        # all, process, _start, two of libc, <module>, main, preemption. Then train, in two lines:
        # 8 boxes with launch and what leads to its call, 15 with that of launch and synchronize.
        assert one.startswith(
            "true true false 8 31 true true false 16 16 cudaLaunchKernel (libcudart.so.12): "
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


# Says what a timeline shows: from when to when, how many boxes, and whether anything is drawn.
SHOWN = """
const figure = document.querySelector(".timeline"), canvas = figure.querySelector("canvas");
const shown = () => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const { from, to, drawn } = figure.dataset;
  return [from, to, drawn].map(Number).concat(data.some((one) => one));
};
const after = (act) => { act(); return shown(); };
const press = (key) => after(() => figure.querySelector(".view").dispatchEvent(
  new KeyboardEvent("keydown", { key, cancelable: true })));
const { left, top, width } = canvas.getBoundingClientRect();
const room = width - Math.min(Math.max(width * 0.16, 70), 190);
const at = (x, y, more) => ({ clientX: left + x, clientY: top + y, bubbles: true, cancelable: true, ...more });
"""
# Shows all, zooms in by a key, moves, shows all again, zooms by the wheel where the pointer is, turns the
# wheel alone, and clicks on a row of a table.
ZOOM = """
const middle = width - room / 2, told = [press("0"), press("+"), press("ArrowRight"), press("0")];
const wheel = (ctrlKey) => after(() => canvas.dispatchEvent(new WheelEvent("wheel", at(middle, 60, { ctrlKey, deltaY: -1 }))));
told.push(wheel(true), wheel(false));
told.push(after(() => document.getElementById("at-0/step/2").querySelector("button").click()));
return told;
"""
# Clicks into the first row, which has the steps.
POINT = """
press("0");
canvas.dispatchEvent(new MouseEvent("click", at(width - room * 0.6, 53)));
return figure.querySelector(".told").textContent;
"""


# Headless, nothing waits for the next picture: it is drawn at once.
AT_ONCE = "<script>window.requestAnimationFrame = (draw) => draw();</script></head>"


def ran(page, script, folder):
    """What a script returns that is run in a page with a timeline."""
    told = f"document.title = `told:${{JSON.stringify((() => {{{SHOWN}{script}}})())}}`"
    free = re.sub("<meta http-equiv[^>]*>", "", page).replace("</head>", AT_ONCE, 1)
    path = folder / "run.html"
    path.write_text(free.replace("</body>", f"<script>{told}</script></body>"), encoding="utf-8")
    (found,) = re.findall("<title>told:(.*?)</title>", visit(path, folder).document)
    return json.loads(html.unescape(found))


def page_of_trace(folder, made):
    path, page = folder / "trace.json", folder / "trace.html"
    write_trace(path, made)
    assert cli.main(["report", str(path), "--html", str(page)]) == 0
    return page


@pytest.mark.parametrize("size", SIZES, ids=["laptop", "phone"])
def test_a_page_about_devices_is_shown_without_a_complaint(tmp_path, size):
    """Nothing on the console, no request, nothing beyond the edge, and the timeline is drawn."""
    path = page_of_trace(tmp_path, starved_device())

    seen = visit(path, tmp_path, size)

    assert (seen.console, seen.requests) == ([], [])
    # As long as its steps, of which the device waits in the first as well.
    timeline = 'class="card timeline" data-from="0" data-to="4000000" data-drawn="[1-9]'
    assert re.search(timeline, seen.document)
    assert '<p class="needs-script">' not in seen.document
    opened = path.read_text(encoding="utf-8").replace("<details", "<details open")
    assert told_by([opened], MEASURE, tmp_path) == [width for width, _ in SIZES]


def test_a_timeline_can_be_zoomed(tmp_path):
    """
    Closer by a key, later by a quarter, all of it again; closer to where the pointer is, but only
    with Ctrl, as the wheel alone scrolls the page; and to the step whose row is clicked.
    """
    page = page_of_trace(tmp_path, starved_device()).read_text(encoding="utf-8")

    told = ran(page, ZOOM, tmp_path)

    whole, closer, later, again, wheel, scrolled, step = told
    assert all(one[3] for one in told)
    assert whole[:2] == again[:2] == [0, 4_000_000]
    assert closer[:2] == [750_000, 3_250_000]
    assert later[:2] == [1_375_000, 3_875_000]
    assert wheel[:2] == pytest.approx(closer[:2], rel=0.01)
    assert scrolled == wheel
    assert step[:2] == [2_000_000 - 100_000, 3_000_000 + 100_000]


def test_what_is_pointed_at_is_said(tmp_path):
    """What it is, how long it took, when that was and where."""
    page = page_of_trace(tmp_path, starved_device()).read_text(encoding="utf-8")

    assert ran(page, POINT, tmp_path) == (
        "ProfilerStep#1 (step): 1 ms, at +1.0000 ms, steps of device 0 (trace.json)"
    )


def test_however_much_there_is_so_much_is_drawn(tmp_path):
    """Seventy thousand kernels on eight streams: a bounded page, and boxes in a bounded number."""
    made = starved_device()
    made["traceEvents"] += [
        kernel(n % 8_750 * 0.3, 0.2, name=f"kernel {n % 50}", stream=10 + n // 8_750)
        for n in range(70_000)
    ]
    page = page_of_trace(tmp_path, made).read_text(encoding="utf-8")

    assert len(page) < 3_000_000
    told = ran(page, ZOOM, tmp_path)
    assert all(1_000 < one[2] <= 20_000 for one in told)
