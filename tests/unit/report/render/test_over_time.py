"""Time that no capture covers has no figures, and a name: in text, in JSON, on the page, for an assistant."""

import json
import re

import pytest

from otel_gpu import cli
from otel_gpu.enrich.activities import CountersActivity
from otel_gpu.report.document import Window
from otel_gpu.report.timeline.activities import ActivityTracks
from tests.activities import SECOND, T0, calls, capture, image, snapshot
from tests.unit.mcp import served
from tests.unit.recorder.stores import write


def run_of(number, start_s):
    """A run of six seconds, with 100 calls in each."""
    process = image(100 + number)
    yield capture(unix_ns=T0 + start_s * SECOND)
    for second in range(1, 7):
        yield snapshot(start_s + second, calls(process, "cudaLaunchKernel", [1_009] * 100 * second))
    yield CountersActivity(T0 + (start_s + 6) * SECOND, {})


@pytest.fixture
def store(tmp_path):
    """Two runs, and 45 s between them."""
    path = tmp_path / "runs.db"
    for number, start_s in ((1, 0), (2, 51)):
        write(path, run_of(number, start_s))
    return path


def test_text_has_one_row_for_what_no_capture_covers(store, capsys):
    """Between the two runs there is no rate, and none is smeared into that time."""
    assert cli.main(["explain", "--store", str(store)]) == 0

    told = capsys.readouterr().out
    lines = told[told.index("Over time") :].split("\n\n")[0].splitlines()[2:]
    rows = [" ".join(line.split()) for line in lines]
    assert [row.split(" s ")[0] for row in rows] == [
        *("+0", "+1", "+2", "+3", "+4", "+5", "+6", "+51", "+52", "+53", "+54", "+55", "+56")
    ]
    assert rows[6] == "+6 s no capture for 45 s"
    assert all(row.endswith("100 1.01 µs steady") for row in rows[:6] + rows[7:])


def test_json_names_it_and_has_no_slot_there(store, capsys):
    """The buckets add up to what was counted."""
    assert cli.main(["explain", "--store", str(store), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    (gap,) = document["uncovered"]
    assert (gap["start_unix_ns"], gap["end_unix_ns"]) == (T0 + 6 * SECOND, T0 + 51 * SECOND)
    for slot in document["time_buckets"]:
        assert (
            slot["end_unix_ns"] <= gap["start_unix_ns"]
            or gap["end_unix_ns"] <= slot["start_unix_ns"]
        )
    shown = [slot["calls"] for slot in document["time_buckets"] if slot["process"] is None]
    assert sum(shown) == pytest.approx(1_200)


def test_the_page_leaves_it_empty_and_says_why(store, tmp_path):
    """In the chart of phases, its key and the figures below."""
    page = tmp_path / "page.html"
    assert cli.main(["report", "--store", str(store), "--html", str(page)]) == 0

    markup = page.read_text(encoding="utf-8")
    assert "Phases: steady, no capture" in markup
    assert markup.count("+6 s: no capture for 45 s") == 1
    assert len(re.findall("<td[^>]*>no capture for 45 s", markup)) == 1


def test_an_assistant_is_told(store):
    """No row of over_time is where no capture was."""
    stats = served.ask(served.capture_of(store), "get_trace_stats")

    assert stats["no_capture"] == [[6_000_000, 51_000_000]]
    rows = served.rows(stats["over_time"])
    assert not [row for row in rows if 6_000_000 <= round(row["at_us"]) < 51_000_000]
    assert sum(row["calls"] for row in rows) == pytest.approx(1_200)


class Levels:
    """A drawing of figures only."""

    def __init__(self):
        self.drawn = []

    def level(self, level):
        self.drawn.append(((level.unix_ns - T0) / SECOND, level.process, level.values))


def test_figures_of_a_timeline_fall_to_nothing_where_a_capture_ends():
    """And begin with the next capture, not where the one before had ended."""
    levels = Levels()
    tracks = ActivityTracks(levels, Window())
    for number, start_s in ((1, 0), (2, 51)):
        for activity in run_of(number, start_s):
            tracks.observe(activity)

    assert [(at, *values.values()) for at, _, values in levels.drawn] == [
        *((second, 100) for second in range(6)),
        (6, 0),
        *((51 + second, 100) for second in range(6)),
    ]
