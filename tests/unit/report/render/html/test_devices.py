"""What a page shows of devices: the verdict first, then why, what to do, and what shows it."""

import re

import pytest

from otel_gpu.report.document import Document, Window
from otel_gpu.report.render.html.page import make_page
from otel_gpu.report.render.html.shapes import MOST_ROWS
from otel_gpu.report.timeline.devices import draw_devices
from otel_gpu.report.timeline.timeline import TimelineDrawing
from tests.unit.importers.test_torch_trace import explain
from tests.unit.importers.traces import call, host, kernel, step, trace, write
from tests.unit.report.render.html.pages import Seen
from tests.unit.report.render.html.test_page import HOSTILE

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def starved(steps=4, loader_us=600, name="gemm"):
    """Steps of 1 ms, in which the device waits for the data loader and then computes 200 µs."""
    events = []
    for number in range(steps):
        at = 1_000 * number
        events += [
            step(number, at, 1_000),
            host(LOADER, at + 10, loader_us),
            host("aten::mm", at + loader_us + 50, 100),
            call("cudaLaunchKernel", at + loader_us + 100, 5, number + 1),
            kernel(at + loader_us + 110, 200, number + 1, name),
        ]
    return trace(events)


@pytest.fixture
def document(tmp_path):
    return lambda made: explain(write(tmp_path / "starved.json", made))


@pytest.fixture
def page(document):
    """The page of a trace with its timeline."""

    def of(made, **changed):
        report = document(made)._replace(**changed)
        drawing = TimelineDrawing()
        draw_devices(report, drawing)
        return make_page(report, drawing=drawing.finish())

    return of


def test_the_verdict_is_the_headline(page):
    """With its share and what to do; nothing is said of calls, of which a trace has none."""
    made = page(starved())

    seen = Seen(made)
    heading = Seen(re.search("<h1>.*?</h1>", made)[0]).text
    assert heading == "data-bound: device 0 computed 20 % of the time"
    assert "The data loader runs in the training process (num_workers=0)" in seen.text
    assert "4 ms from 2025-06-15" in seen.text
    figures = Seen(re.search('<dl class="figures">.*?</dl>', made, re.DOTALL)[0]).text
    assert figures == "devices 1 device time 4 ms computing 20 % idle 80 % steps 4 median step 1 ms"
    sections = [value for tag, name, value in seen.values if (tag, name) == ("section", "id")]
    assert sections == ["devices", "timeline", "unknown"]
    assert "CUDA calls" not in seen.text


def test_where_its_time_went_and_why_it_was_idle(page):
    """Each with its share, and a table of what it waited for, its steps, gaps and kernels."""
    text = Seen(page(starved())).text

    assert "Where its time went: 4 ms computing 20 % 800 µs idle 80 % 3.2 ms" in text
    assert re.search(r"Why it was idle data_loader \d+ % [\d.]+ ms", text)
    for heading in (
        "What it waited for: ",
        "Its longest gaps: 5 rows",
        "Steps: 4 rows",
        "What it did, by kind: 1 row",
        "Kernels and copies: 1 row",
        "Operators, own time of device and host: ",
    ):
        assert heading in text


def test_advice_leads_to_what_shows_it(page):
    """Each id that it names is a row of the page, or is said to be nowhere."""
    seen = Seen(page(starved()))

    ids = set(seen.values_of("id"))
    assert len(ids) == len(seen.values_of("id"))
    assert {target[1:] for target in seen.values_of("href")} - ids == set()
    assert "#at-0/gap/0" in seen.values_of("href")


def test_rows_with_a_time_can_be_looked_at(page):
    """Steps and gaps, in nanoseconds after the beginning of the timeline."""
    seen = Seen(page(starved()))

    starts = [(tag, value) for tag, name, value in seen.values if name == "data-start"]
    lengths = seen.values_of("data-length")
    # Gaps are sorted by length, and steps by time. The first and the last gap are at edges of the steps.
    assert {tag for tag, _ in starts} == {"tr"}
    assert len(starts) == len(lengths) == 5 + 4
    assert starts[-4:] == [("tr", f"{n}") for n in (0, 1_000_000, 2_000_000, 3_000_000)]


def test_what_cannot_be_said_is_not_said(page):
    """Launches without work: the causes are unknown, and the page says why."""
    events = [step(0, 0, 2_000)]
    for number in range(10):
        events += [call("cudaLaunchKernel", 100 * number, 5, number + 1)]
    events += [kernel(500, 10, 1), kernel(900, 10, 2)]

    made = page(trace(events))

    heading = Seen(re.search("<h1>.*?</h1>", made)[0]).text
    assert heading == "What bounds device 0 is not known"
    assert (
        "What the trace cannot say nothing was recorded of what 8 of 10 launches did"
        in Seen(made).text
    )
    assert "Why it was idle" not in Seen(made).text


# What an element ends with, what a browser obeys, and what is long.
@pytest.mark.parametrize("name", [HOSTILE[0], HOSTILE[2], *HOSTILE[7:10]])
def test_no_name_changes_the_page(page, name):
    """Kernels, steps and operators are called by whoever wrote the file."""
    texts = {"y": {}, name: {}}
    for text in texts:
        made = trace(
            [
                host(text, 0, 2_000, "user_annotation"),
                host(LOADER + text, 10, 500),
                call("cudaLaunchKernel", 600, 5, 1),
                kernel(610, 200, 1, f"kernel {text}"),
                call("cudaLaunchKernel", 1_600, 5, 2),
                kernel(1_610, 200, 2, f"kernel {text}"),
            ]
        )
        texts[text] = Seen(page(made))

    plain, seen = texts.values()
    assert seen.elements == plain.elements
    assert seen.values_of("href") == plain.values_of("href")
    assert {c for c in "".join(seen.texts) if not c.isprintable()} <= {"\n"}


def test_a_page_of_many_devices_is_bounded(page, document):
    """All are in one table as far as it goes; the first ones have all that is known of them."""
    rows = document(starved(steps=40)).devices * 300
    named = tuple(row._replace(id=f"{n}") for n, row in enumerate(rows))

    made = page(starved(), devices=named)

    assert len(made) < 10_000_000
    text = Seen(made).text
    assert f"{300 - MOST_ROWS:,} more are not shown." in text
    assert "284 more devices are in the table above only." in text


def test_a_document_without_devices_has_no_such_section():
    """What a live capture holds says nothing of device time."""
    assert "devices" not in Seen(make_page(Document("x", Window(1, 2)))).values_of("id")
