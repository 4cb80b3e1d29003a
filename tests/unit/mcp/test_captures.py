"""A capture that is served: a store that grows, and one that is too large to be told at once."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from otel_gpu.errors import StoreError
from otel_gpu.mcp import captures
from otel_gpu.mcp.server import answer
from tests.unit.cli.commands import starved
from tests.unit.mcp import served


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return served.store_of(served.CHURN, tmp_path_factory.mktemp("whole") / "store.db")


@pytest.fixture
def store(whole, tmp_path):
    """A copy of a store, which nobody writes."""
    return Path(shutil.copy(whole, tmp_path))


@pytest.mark.parametrize(
    "name", ["get_processes", "get_trace_stats", "get_time_budget", "get_causal_chains",
             "get_memory_balance", "get_timeline", "get_stacks"],
)  # fmt: skip
def test_a_store_answers_as_its_recording_does(name, store):
    """What was kept is what was captured."""
    from_store = served.ask(served.capture_of(None, store), name)
    from_recording = served.ask(served.capture_of(served.CHURN), name)

    assert from_store | {"source": ""} == from_recording | {"source": ""}


@pytest.fixture
def stories(tmp_path):
    """Two captures of one host, the later one ten minutes after the other."""
    return [
        served.write_story(tmp_path / f"{later_s}.otelgpu", later_s=later_s) for later_s in (0, 600)
    ]


def test_a_store_that_grows_is_told_as_it_is_now(stories, tmp_path):
    """What was written since the last answer is in the next one."""
    capture = served.capture_of(None, served.store_of(stories[0], tmp_path / "store.db"))
    later = {"from_": str(starved.BEGIN_UNIX_NS // 10**9 + 600)}
    before = served.ask(capture, "get_trace_stats", **later)

    served.store_of(stories[1], tmp_path / "store.db")

    assert before["calls"] == 0
    # So many launches does the story tell.
    assert served.ask(capture, "get_trace_stats", **later)["calls"] == 2_001


@pytest.mark.parametrize(
    "moment",
    [f"+{'9' * 55}s", f"-{'9' * 55}h", "9" * 40, "9223372036854775807", "9999-12-31", "0001-01-01"],
)
def test_a_moment_beyond_any_clock_is_answered(store, moment):
    """No file has a number for it, and nothing lies there."""
    for capture in (served.capture_of(None, store), served.capture_of(served.CHURN)):
        for window in ({"from": moment}, {"to": moment}):
            for name in ("get_check", "get_timeline", "get_stacks"):
                text, _ = answer(capture, name, window)
                assert "this answer failed" not in text


def test_a_report_is_made_once_while_nothing_changes(store, monkeypatch):
    """Six questions about one window cost what one does."""
    capture = served.capture_of(None, store)
    made = []
    study = capture._examine
    monkeypatch.setattr(
        capture, "_examine", lambda *of, **named: made.append(of) or study(*of, **named)
    )

    for name in ("get_check", "get_trace_stats", "get_time_budget", "get_causal_chains"):
        served.ask(capture, name)
    served.ask(capture, "get_check", pids=[1])

    assert len(made) == 2


def test_no_more_reports_are_kept_than_fit(store):
    """A long investigation does not grow."""
    capture = served.capture_of(None, store)

    for pid in range(20):
        served.ask(capture, "get_check", pids=[pid])

    assert len(capture._kept) == 8


def test_a_large_store_is_told_from_its_end(stories, tmp_path, monkeypatch):
    """An answer is made of so many rows at most, and says what it leaves out."""
    path = tmp_path / "store.db"
    for story in stories:
        served.store_of(story, path)
    with closing(sqlite3.connect(path)) as connection:
        chunks = connection.execute("SELECT start_unix_ns, rows FROM chunks").fetchall()
    start_unix_ns, rows = max(chunks)
    monkeypatch.setattr(captures, "MAX_ROWS", rows)

    check = served.ask(served.capture_of(None, path), "get_check")

    assert len(chunks) >= 2
    assert check["window"]["start_unix_ns"] == start_unix_ns
    assert any(f"more than the {rows:,} rows" in note for note in check["not_known"]["rows"])


def test_a_store_that_is_not_there_yet_is_an_error_in_words(tmp_path):
    """The server may be started before the agent."""
    capture = served.capture_of(None, tmp_path / "store.db")

    text, is_error = answer(capture, "get_check", {})

    assert is_error
    assert str(tmp_path / "store.db") in json.loads(text)["error"]
    served.store_of(served.CHURN, tmp_path / "store.db")
    assert served.ask(capture, "get_check")["kind"] == "store"


def test_what_is_no_recording_is_said_at_once(tmp_path):
    """To the operator, and not to an assistant."""
    path = tmp_path / "no.otelgpu"
    path.write_text("hello")

    with pytest.raises(Exception, match="recording"):
        served.capture_of(path)


def test_sql_answers_with_what_is_there(store):
    """True counts beside stored counts, and what there is to be asked about."""
    capture = served.capture_of(None, store)

    counts = served.ask(
        capture, "run_sql", sql="SELECT api, calls, stored FROM v_counts ORDER BY calls, api"
    )
    schema = served.ask(capture, "run_sql")

    assert served.rows(counts["answer"]) == [
        {"api": api, "calls": 120, "stored": 120}
        for api in ("cudaFree", "cudaLaunchKernel", "cudaMalloc", "cudaStreamSynchronize")
    ]
    described = served.rows(schema["tables_and_views"])
    assert {"v_counts", "v_calls", "schema_info"} <= {row["name"] for row in described}
    views = {row["view"]: row["columns"] for row in served.rows(schema["columns_of_views"])}
    assert "max_ms ms" in views["v_counts"]


def test_more_rows_than_wanted_are_cut_and_said(store):
    """The limit is the engine's, not only the answer's."""
    found = served.ask(
        served.capture_of(None, store), "run_sql", sql="SELECT seq FROM calls ORDER BY 1", limit=2
    )

    assert len(found["answer"]["rows"]) == 2
    assert found["cut"] == "only the first 2 rows are shown"


def test_values_of_sql_are_inert(store):
    """A question can make any text, and the answer still holds nothing to obey."""
    sql = "SELECT char(8238) || '<b>' || char(27) AS \"<i>`\", x'3c62', 9e999, NULL, 0.5"

    text, is_error = answer(served.capture_of(None, store), "run_sql", {"sql": sql})

    assert not is_error
    assert not set("<>`\u202e\x1b") & set(text)
    assert json.loads(text)["answer"]["rows"] == [["\ufffd<b>\ufffd", "3c62", None, None, 0.5]]


@pytest.mark.parametrize("sql", served.ESCAPES)
def test_every_escape_is_refused(store, sql, tmp_path):
    """Whatever is tried, the store is as it was, and so is the folder."""
    capture = served.capture_of(None, store)
    before = store.read_bytes()

    text, is_error = answer(capture, "run_sql", {"sql": sql})

    assert is_error, text
    assert json.loads(text)["error"]
    assert store.read_bytes() == before
    assert {path.suffix for path in tmp_path.iterdir()} <= {".db", ".lock", ".db-wal", ".db-shm"}


def test_a_question_without_a_store_is_a_store_error(tmp_path):
    """The reader of the error is told which file is meant."""
    with pytest.raises(StoreError, match=r"store\.db"):
        served.capture_of(None, tmp_path / "store.db").describe()
