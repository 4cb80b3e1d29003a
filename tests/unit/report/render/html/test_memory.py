"""The page says what holds the memory of devices, and why it ran out."""

import pytest

from otel_gpu import cli
from otel_gpu.report.document import Document, Window
from otel_gpu.report.memory.types import GrowingLine, Holding, MemoryReading
from otel_gpu.report.render.html.memory import MOST_HELD, memory_charts, memory_shares
from otel_gpu.report.render.html.page import make_page
from otel_gpu.state.memory.allocations import AllocationWindow
from otel_gpu.state.memory.history import MAX_READINGS
from tests.activities import SECOND, T0
from tests.torch_allocator import SCENARIOS, fragmentation, healthy
from tests.unit.importers.snapshots import write
from tests.unit.importers.test_torch_memory import explain
from tests.unit.report.render.html.pages import Seen

MIB = 1 << 20


@pytest.fixture(scope="module")
def row(tmp_path_factory):
    (found,) = explain(
        write(tmp_path_factory.mktemp("s") / "s.pickle", fragmentation().snapshot())
    ).memory
    return found


def page_with(*rows):
    window = Window(T0, T0 + SECOND)
    return make_page(Document("a snapshot", window, memory=rows))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_snapshot_is_a_page(tmp_path, name):
    """What failed is its title; a program that is well has none."""
    snapshot, page = write(tmp_path / "s.pickle", SCENARIOS[name]().snapshot()), tmp_path / "p.html"
    assert cli.main(["report", str(snapshot), "--html", str(page)]) == 0
    seen = Seen(page.read_text(encoding="utf-8"))

    assert "Who holds device memory" in seen.text
    assert "Device 0, as its framework says" in seen.text
    assert ("A request for" in seen.text) == (name not in {"healthy", "empty-cache"})
    assert "Device memory in use when most was" in seen.text


def test_why_it_ran_out_is_on_the_page(row):
    """What was asked for, what was there, who keeps the holes apart, and what to do."""
    text = Seen(page_with(row)).text

    assert "train.py:74 step asked for 268 MB: fragmentation" in text
    assert "2.02 GB, the largest piece 193 MB" in text
    assert "train.py:61 step 2.02 GB 162 7.71 GB" in text
    assert (
        "To do: Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which is off: 2.02 GB" in text
    )
    assert "Who held it at the peak" in text


def test_parts_are_all_of_what_is_reserved(row):
    """None of them is drawn twice, and none is left out."""
    shares = memory_shares(row)

    assert sum(part.share for part in shares) == pytest.approx(1)
    assert [part.name for part in shares] == [
        "asked for",
        "rounding",
        "free between blocks (stuck)",
    ]


def test_time_is_drawn_to_scale(row):
    """Some hundred readings become few columns, of which none is higher than what was reserved."""
    readings = tuple(
        MemoryReading(T0 + n * SECOND, (n % 10) * MIB, 10 * MIB) for n in range(MAX_READINGS)
    )
    used, reserved, *marks = memory_charts(row._replace(readings=readings, peak_bytes=9 * MIB))

    assert (used.note, reserved.note) == ("up to 9.44 MB", "up to 10.5 MB")
    assert not marks
    assert len(used.blocks) <= 200
    assert {round(block.height, 3) for block in reserved.blocks} == {10.0}
    assert max(block.height for block in used.blocks) == pytest.approx(9)
    assert used.blocks[0].left == 0
    last = used.blocks[-1]
    assert last.left + last.width == pytest.approx(100, abs=0.5)


def test_a_request_that_failed_is_marked_when_it_did(row):
    """At the end of the chart: it was the last thing that happened."""
    *_, marks = memory_charts(row)

    assert marks.label == "Out of memory"
    assert [round(block.left) for block in marks.blocks] == [100]


def test_what_is_not_known_is_said(row):
    """Of a live capture: older blocks, blocks without a stack, and totals that did not agree."""
    live = row._replace(
        pid=42, blocks="large", before_bytes=7_000_000, unknown_bytes=5_000_000, coverage=0.987,
        growth=(GrowingLine("step", "/app/train.py", 61, 48e6, 0.998, 30, 90.0),),
    )  # fmt: skip
    text = Seen(page_with(live)).text

    assert "process 42, device 0, as its framework says" in text
    assert "7 MB is in use since before the attach." in text
    assert "Where 5 MB in use was allocated is not known." in text
    assert "In 98.7% of its reports the allocator's total was what had been seen." in text
    assert "train.py:61 step 48 MB 0.998 30 90 s" in text


def test_a_name_is_text_and_lists_are_bounded(row):
    """A stranger's file names functions, as many as it likes."""
    evil = "</script><img src=x>"
    holders = tuple(Holding(f"{evil}{n}", "/a.py", 1, 10, 1) for n in range(1_000))
    page = page_with(row._replace(end_holders=holders, ooms=()))

    assert "<img" not in page
    assert page.count("&lt;img") <= 2 * MOST_HELD
    assert f"{1_000 - MOST_HELD:,} more are not shown." in page


def test_what_is_well_has_no_alarm(tmp_path):
    """Holes alone are nothing: they are there in healthy programs too."""
    (well,) = explain(write(tmp_path / "s.pickle", healthy().snapshot())).memory
    text = Seen(page_with(well)).text

    assert "To do:" not in text
    assert "Nothing went wrong" in text or "No request for memory failed" in text


def test_what_failed_after_the_last_reading_is_in_the_chart(row):
    """The chart reaches up to it."""
    late = row.readings[-1].unix_ns + 2 * SECOND
    shown = row._replace(ooms=(row.ooms[0]._replace(unix_ns=late),))
    used, _, marks = memory_charts(shown)

    assert [round(block.left) for block in marks.blocks] == [100]
    assert used.blocks[-1].left < 90


def test_calls_that_allocate_are_told_by_window(row):
    """Those of a runtime; what lies in its segments it does not know."""
    windows = tuple(
        AllocationWindow(
            T0 + n * 30 * SECOND, T0 + (n + 1) * 30 * SECOND, 300 + n, 1_000, 9_000, MIB, n
        )
        for n in range(3)
    )
    text = Seen(page_with(row._replace(layer="runtime", windows=windows, ooms=()))).text

    assert "Calls that allocate, over time" in text
    assert "+30.000 s 301 1 µs 9 µs 1.05 MB 1" in text
    assert "What the reserved memory is used for" not in text
