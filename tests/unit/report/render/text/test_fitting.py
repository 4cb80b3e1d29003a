"""Tables in terminals of any width: columns go and names are cut, but a figure never is."""

import re

import pytest
from rich.text import Text

from otel_gpu import cli
from otel_gpu.report.render.text.fitting import FittedTable, TextColumn
from tests.scenarios.all_scenarios import SCENARIOS
from tests.unit.importers.traces import call, host, step, trace, write
from tests.unit.report.devices.test_builder import launched
from tests.unit.report.wording.test_short_names import PRODUCTS

SHOWN = ("busy-loader", "memory-fragmentation", "memory-leak", "two-causes", "gpu-wait")
WIDTHS = (40, 60, 80, 100)


def table(*columns):
    return FittedTable(
        [
            TextColumn(heading, [Text(cell) for cell in cells], is_text, rank)
            for heading, cells, is_text, rank in columns
        ]
    )


NAMES = ("name", ["a_rather_long_name_of_a_kernel_one", "a_rather_long_name_of_a_kernel_two"], True, 1)  # fmt: skip
TIMES = ("time", ["66.6 ms", "671 µs"], False, 1)
SHARES = ("share", ["100 %", "<1 %"], False, 1)
SELDOM = ("longest", ["12.5 ms", "123 µs"], False, 2)
EMPTY = ("bytes", ["", ""], False, 1)


def shown(made, width):
    return [line.plain for line in made.lines(width)]


def test_there_is_room_for_all():
    """Also for a column that is empty."""
    assert shown(table(NAMES, TIMES, EMPTY), 100) == [
        "name                                   time  bytes",
        "a_rather_long_name_of_a_kernel_one  66.6 ms",
        "a_rather_long_name_of_a_kernel_two   671 µs",
    ]


def test_what_is_empty_goes_first_and_then_names_become_shorter():
    """Those that differ still do."""
    assert shown(table(NAMES, TIMES, EMPTY), 30) == [
        "name                      time",
        "a_rathe…_a_kernel_one  66.6 ms",
        "a_rathe…_a_kernel_two   671 µs",
    ]


def test_figures_go_whole():
    """That of the highest rank first, then the last one; never what names the row."""
    made = table(NAMES, TIMES, SHARES, SELDOM)

    kept = {width: [column.heading for column in made.fitted(width)] for width in (45, 40, 30, 12)}

    assert kept == {
        45: ["name", "time", "share", "longest"],
        40: ["name", "time", "share"],
        30: ["name", "time"],
        12: ["name"],
    }


def ranks(folder):
    """Traces of five ranks, with long names of everything."""
    folder.mkdir()
    for number in range(5):
        events = [
            step(1, 0, 2_600), host("aten::a_rather_long_name_of_an_operator", 10, 900, **{"Input Dims": [[4096] * 9]}),
            *launched((1_000, 300 + number), name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
            *launched((1_400, 400), name=PRODUCTS[0], first=2), *launched((1_900, 400), name=PRODUCTS[1], first=3),
            *launched((2_310, 50), name="Memcpy HtoD (Pageable -> Device)", first=4, bytes=123_456_789),
            call("cudaStreamSynchronize", 2_400, 100),
        ]  # fmt: skip
        write(folder / f"rank{number}.json", trace(events, distributedInfo={"rank": number, "world_size": 5}))  # fmt: skip
    return folder


@pytest.fixture
def tables(monkeypatch, tmp_path, capsys):
    """All tables that commands draw."""
    made = []
    keep = FittedTable.__init__

    def init(self, columns):
        keep(self, columns)
        made.append(self)

    monkeypatch.setattr(FittedTable, "__init__", init)
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    folder = ranks(tmp_path / "ranks")
    assert cli.main(["import", "torch-trace", str(folder)]) == 0
    files = [str(folder / f"rank{number}.json") for number in (0, 4)]
    assert cli.main(["compare", *files]) == 0
    for name in SHOWN:
        assert cli.main(["explain", str(SCENARIOS[name].recording)]) == 0
    capsys.readouterr()
    return made


def headed(column, heading):
    """Whether a heading is that of a column, or was cut from it."""
    is_cut = column.is_text and heading.endswith("…")
    return column.heading.startswith(heading[:-1]) if is_cut else column.heading == heading


def test_no_table_cuts_a_figure_or_is_too_wide(tables):
    """Of a report of ranks, a comparison, and recordings of calls and of memory."""
    assert len(tables) > 30
    whole = 0
    for made in tables:
        for width in WIDTHS:
            lines = shown(made, width)
            columns = made.fitted(width)
            figures = [column for column in columns if not column.is_text]
            assert all(len(line) <= width for line in lines) or len(columns) == 1
            assert made.columns[0].heading.startswith(columns[0].heading.rstrip("…"))
            original = {column.heading: column for column in made.columns}
            assert all(column == original[column.heading] for column in figures)
            for number, line in enumerate(lines[1:]):
                parts = re.split(r"\s{2,}", line.strip())
                for column in figures:
                    assert column.cells[number].plain in ("", *parts)
                    whole += 1
    assert whole > 1_000
    # What a report is about is there in the narrowest one, too.
    assert all(len(made.fitted(60)) > 1 for made in tables if len(made.columns) > 1)


def test_names_that_differ_read_differently_at_any_width(tables):
    """In each column."""
    for made in tables:
        for width in WIDTHS:
            for column in made.fitted(width):
                (of,) = [one for one in made.columns if headed(one, column.heading)]
                before = [cell.plain for cell in of.cells]
                after = [cell.plain for cell in column.cells]
                assert len(set(after)) == len(set(before)), (column.heading, width)


def test_a_report_of_ranks_begins_with_one_table_of_them(monkeypatch, tmp_path, capsys):
    """All of them are in it; of the two that computed least there is more."""
    monkeypatch.setenv("COLUMNS", "100")

    assert cli.main(["import", "torch-trace", str(ranks(tmp_path / "ranks"))]) == 0

    text = capsys.readouterr().out
    heading, *rows = text[text.index("\n5 ranks") :].splitlines()[1:8]
    assert heading == "5 ranks"
    assert rows[0].split()[:3] == ["rank", "device", "verdict"]
    assert [row.split()[0] for row in rows[1:6]] == ["0", "1", "2", "3", "4"]
    assert sum(line.startswith("Verdict for rank") for line in text.splitlines()) == 2
    assert len(text.splitlines()) < 150
    # Advice names the rank that it is of.
    said = [line for line in text.splitlines() if line.strip().startswith("do: ")]
    assert said
    assert all(re.match(r"  do: (?:rank \d+(?: and \d+ more)?: |Look at rank)", line) for line in said)  # fmt: skip
