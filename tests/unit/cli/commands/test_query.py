"""``otel-gpu query``: questions to a store, and how their answers are written."""

import csv
import io
import json
import os

import pytest
from rich.console import Console

from otel_gpu import cli
from otel_gpu.cli.commands import Output
from otel_gpu.enrich.identity.identities import Program
from tests.activities import SECOND, T0, call, capture
from tests.unit.recorder.stores import write

EVIL = "\x1b]0;owned\x07\n=cmd()\u202e\x9b31m"


@pytest.fixture
def path(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    process = Program(42, 5 * SECOND, "x", T0, {"service.name": EVIL})
    calls = [call(process, "cudaMalloc", n * SECOND, 1_500_000 * n, comm="=a") for n in (1, 2, 3)]
    return write(tmp_path / "store.db", [capture(), *calls])


def query(path, *arguments):
    return cli.main(["query", "--store", str(path), *arguments])


def test_an_answer_is_a_table(path, capsys):
    """In a pipe, one line for each row, and tabs between values."""
    assert query(path, "SELECT api, duration_ms, device FROM v_calls") == 0

    assert capsys.readouterr() == (
        "api\tduration_ms\tdevice\ncudaMalloc\t1.5\t\ncudaMalloc\t3.0\t\ncudaMalloc\t4.5\t\n", "",
    )  # fmt: skip


def test_on_a_terminal_it_has_columns(path, capsys, monkeypatch):
    """Numbers to the right."""
    drawn = io.StringIO()
    console = Console(file=drawn, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(Output, "stdout_console", console)

    assert query(path, "SELECT 'x' AS name, 12345 AS n UNION ALL SELECT 'long', 1") == 0

    assert drawn.getvalue() == "name      n\nx     12345\nlong      1\n"
    assert capsys.readouterr().out == ""


def test_on_a_narrow_terminal_texts_are_folded_and_figures_are_not(path, monkeypatch):
    """Half a figure is a wrong one."""
    drawn = io.StringIO()
    console = Console(file=drawn, width=20, force_terminal=True, color_system=None)
    monkeypatch.setattr(Output, "stdout_console", console)

    assert query(path, "SELECT 'a long text' AS name, 1234567890 AS m, 1234567891 AS n") == 0

    assert "1234567890  1234567891\n" in drawn.getvalue()


@pytest.mark.parametrize("form", [[], ["--csv"], ["--json"]])
def test_names_cannot_command_the_terminal(path, capsys, form):
    """Whatever a process calls itself, and however the answer is written."""
    assert query(path, "SELECT DISTINCT service FROM v_calls", *form) == 0

    text = capsys.readouterr().out
    assert "owned" in text
    assert {c for c in text if not c.isprintable()} <= {"\n"}


def test_csv_is_read_back(path, capsys):
    """Names first; text that a spreadsheet would compute is marked as text."""
    assert query(path, "SELECT comm, -5, 'a,\"b\"', NULL, x'0aff' FROM calls LIMIT 1", "--csv") == 0

    names, row = csv.reader(io.StringIO(capsys.readouterr().out))
    assert names[0] == "comm"
    assert row == ["'=a", "-5", 'a,"b"', "", "0aff"]


def test_json_has_the_values_themselves(path, capsys):
    """One document: names, rows, and whether any are missing."""
    sql = "SELECT service, 9e999, x'0aff' AS blob FROM v_calls"

    assert query(path, sql, "--json", "--row-limit", "1") == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "columns": ["service", "9e999", "blob"],
        "rows": [[EVIL, None, "0aff"]],
        "cut": "only the first 1 rows are shown",
    }
    assert captured.err == ""


def test_what_is_left_out_is_said(path, capsys):
    """On standard error, so that the answer stays one."""
    assert query(path, "SELECT seq FROM calls", "--row-limit", "2") == 0

    assert capsys.readouterr() == ("seq\n2\n3\n", "otel-gpu: only the first 2 rows are shown\n")


def test_without_a_question_it_says_what_can_be_asked(path, capsys):
    """Tables and views, with their meaning."""
    assert query(path) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "table or view\tmeaning"
    assert "v_calls\tRecorded calls, with names." in lines
    assert len(lines) == len({line.split("\t")[0] for line in lines}) > 50


def test_the_schema_has_columns_and_units(path, capsys):
    """For those who write questions, programs included."""
    assert query(path, "--schema", "--json") == 0

    document = json.loads(capsys.readouterr().out)
    assert document["columns"] == ["table or view", "column", "meaning", "unit"]
    assert ["calls", "duration_ns", "duration", "ns"] in document["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELECT 1", "--schema"], "--schema takes no query"),
        (["SELECT 1", "--row-limit", "0"], "--row-limit must be above 0"),
        (["SELECT 1", "--row-limit", "2000000"], "at most 1,000,000"),
        (["SELECT 1", "--time-limit-s", "0"], "--time-limit-s must be above 0"),
        (["SELECT 1", "--time-limit-s", "nan"], "--time-limit-s must be above 0"),
        (["SELECT 1", "--csv", "--json"], "not allowed with"),
    ],
)
def test_what_makes_no_sense_is_refused(path, capsys, arguments, message):
    """Before the store is opened."""
    assert query(path, *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM calls", "error: refused: not authorized"),
        ("SELECT absent", "error: cannot be answered: no such column: absent"),
    ],
)
def test_a_question_that_is_none_has_a_message_and_a_hint(path, capsys, sql, message):
    """And nothing on standard output."""
    assert query(path, sql) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "hint: " in captured.err


def test_a_question_has_its_time(path, capsys):
    """As the operator says."""
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT count(*) FROM r"

    assert query(path, endless, "--time-limit-s", "0.1") == 1

    assert "the answer takes longer than 0.1 s" in capsys.readouterr().err


def test_the_store_is_the_one_of_the_user(path, capsys, monkeypatch, tmp_path):
    """Unless another one is named: by a flag, a variable, or the file."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    path.rename(tmp_path / "state" / "store.db")

    assert cli.main(["query", "SELECT count(*) FROM calls"]) == 0
    monkeypatch.setenv("OTEL_GPU_STORE_PATH", str(tmp_path / "none.db"))
    assert cli.main(["query", "SELECT count(*) FROM calls"]) == 1

    captured = capsys.readouterr()
    assert captured.out == "count(*)\n3\n"
    assert f"{tmp_path / 'none.db'}: no store" in captured.err
