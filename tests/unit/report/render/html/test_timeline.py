"""The timeline of a page: what a script reads of it is what was drawn, and no name gets out of it."""

import json
import re

import pytest

from otel_gpu.report.document import Document, Window
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.html.timeline import timeline_json, timeline_legend, timeline_notes
from otel_gpu.report.timeline.timeline import TimelineDrawing
from otel_gpu.report.timeline.tracks import Instant, Slice, Track
from tests.unit.report.render.html.pages import Seen, report_named
from tests.unit.report.render.html.test_page import HOSTILE

T0 = 1_750_000_000_123_456_789
THREAD = Track(4242, "trainer", 4243, "python")
STREAM = Track(1 << 30, "device 0 (x.json)", 7, "stream 7", is_device=True)
EMPTY = Document("x.json", Window(T0, T0))


def timeline_of(*slices, marks=(), most=1_000):
    drawing = TimelineDrawing(most)
    for one in slices:
        drawing.began(one)
    for one in marks:
        drawing.instant(one)
    return drawing.finish()


def unpacked(timeline, document=EMPTY):
    """The figures as the script has them, with each item as start, end, name, kind, times, busy."""
    data = json.loads(timeline_json(timeline, document))
    found = []
    for group in data["groups"]:
        for row in group["rows"]:
            for lane in row["lanes"]:
                at, numbers = 0, iter(lane)
                for since in numbers:
                    at += since
                    length, name, kind = next(numbers), next(numbers), next(numbers)
                    times, busy = (next(numbers), next(numbers)) if kind < 0 else (1, length)
                    kind = ~kind if kind < 0 else kind
                    said = data["names"][name], data["kinds"][kind][1]
                    found.append((row["name"], at, at + length, *said, times, busy))
    return data, found


def test_the_script_reads_what_was_drawn():
    """Times count from the first, in nanoseconds."""
    timeline = timeline_of(
        Slice(STREAM, "gemm", "kernel", T0 + 7, T0 + 1_007),
        Slice(STREAM, "ncclDevKernel", "communication", T0 + 2_000, T0 + 2_001),
        Slice(THREAD, "aten::mm", "operation", T0, T0 + 500),
        marks=[Instant(THREAD, "high: it slept", "incident", T0 + 9)],
    )

    data, found = unpacked(timeline)

    assert found == [
        ("stream 7", 7, 1_007, "gemm", "kernel", 1, 1_000),
        ("stream 7", 2_000, 2_001, "ncclDevKernel", "communication", 1, 1),
        ("python (4243)", 0, 500, "aten::mm", "operator", 1, 500),
    ]
    assert [group["name"] for group in data["groups"]] == ["device 0 (x.json)", "trainer (4242)"]
    assert (data["length"], data["view"], data["marks"]) == (
        2_001,
        [0, 2_001],
        [[9, "high: it slept"]],
    )


def test_several_that_were_added_up_say_how_many():
    """And how long they took together; the page says that there are such."""
    made = [Slice(STREAM, "k", "kernel", T0 + n * 500, T0 + n * 500 + 100) for n in range(10_000)]
    timeline = timeline_of(*made, most=100)

    _, found = unpacked(timeline)

    assert len(found) <= 100
    assert sum(one[5] for one in found) == 10_000
    assert sum(one[6] for one in found) == 1_000_000
    (said,) = timeline_notes(timeline)
    assert re.match(r"What took less than [\d.]+ µs of devices may be drawn together", said)


@pytest.mark.parametrize(
    ("name", "category", "expected"),
    [
        ("run queue", "wait", ("cpu", "waited for a CPU")),
        ("blocked: ipc", "wait", ("data", "waited for data")),
        ("blocked: gil", "wait", ("lock", "waited for the GIL")),
        ("blocked: mystery", "wait", ("other", "wait")),
        ("waited for a lock", "wait", ("lock", "waited for a lock")),
        ("data_loader: next", "idle: data_loader", ("data", "idle: data_loader")),
        ("python: step", "idle: python", ("work", "idle: python")),
        ("x", "of tomorrow", ("other", "of tomorrow")),
    ],
)
def test_one_colour_means_one_thing(name, category, expected):
    """The same as on the rest of the page."""
    timeline = timeline_of(Slice(THREAD, name, category, T0, T0 + 5))

    assert timeline_legend(timeline) == [expected]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_gets_out(name):
    """Whatever everything is called, a browser sees the elements of a page about "x"."""

    def page(text):
        track = THREAD._replace(process_name=text, thread_name=text, role=text)
        timeline = timeline_of(
            Slice(track, text, text, T0, T0 + 5), marks=[Instant(track, text, "incident", T0)]
        )
        return make_page(report_named("x"), drawing=timeline)

    seen, plain = Seen(page(name)), Seen(page("x"))

    assert seen.elements == plain.elements
    assert seen.sources["style"] == plain.sources["style"]
    assert seen.values_of("class") == plain.values_of("class")
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page(name), re.DOTALL)
    assert set(data) & set("<>&\u2028\u2029") == set()
    assert json.loads(data)["length"] == 5


def test_names_are_bounded():
    """One of 10 kB, and more of 80 letters than there is room for: the others have none."""
    made = [
        Slice(THREAD, f"{n:<80}" if n else "W" * 10_000, "cuda", T0 + n * 9, T0 + n * 9 + 5)
        for n in range(20_000)
    ]

    data, found = unpacked(timeline_of(*made, most=60_000))

    assert sum(map(len, data["names"])) <= 1 << 20
    assert max(map(len, data["names"])) == 80
    assert [one[3] for one in found[-2:]] == ["", ""]


def test_without_a_timeline_there_is_no_script_of_it():
    """Nor a section that would be empty."""
    page = make_page(report_named("x"), drawing=TimelineDrawing().finish())

    assert page == make_page(report_named("x"))
    assert "canvas" not in Seen(page).sources["script"]


def test_its_script_is_allowed_and_loads_nothing():
    """The policy knows it by its hash, as any other."""
    page = make_page(report_named("x"), drawing=timeline_of(Slice(THREAD, "x", "cuda", T0, T0 + 5)))

    script = Seen(page).sources["script"]
    assert "canvas" in script
    assert re.findall(r"url\(|@import|https?:|fetch|XMLHttp|innerHTML|eval|import\b", script) == []
