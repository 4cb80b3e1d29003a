"""``otel-gpu import``: what is printed, and what leaves."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from otel_gpu import cli
from tests.receiver import OtlpReceiver
from tests.schemas import REPORT, STACKS
from tests.unit.importers.databases import MS, PID, SECOND, T0, Database
from tests.unit.importers.traces import call, host, kernel, trace, write


def test_one_is_not_many_and_no_category_is_none(tmp_path, capsys):
    """As it is said of what a trace has."""
    events = [host("aten::mm", 0, 100), call("cudaLaunchKernel", 2, 5, 1), kernel(10, 90, 1)]
    nameless = [{"ph": "X", "name": "?", "pid": 1, "tid": 1, "ts": n, "dur": 1} for n in range(3)]
    path = write(tmp_path / "trace.json", trace([*events, *nameless]))

    assert cli.main(["import", "torch-trace", str(path)]) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "taken 1 activity of devices",
        "taken 1 operation of the host",
        "left out 3 events without a category",
    ):
        assert line in lines


@pytest.fixture
def database(tmp_path, monkeypatch):
    """
    Twenty usual launches, and one of 50 ms: 20 ms of it its thread was off the CPU.

    Another thread was so all the time.
    """
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_GPU_STORE_ENABLED", "off")
    database = Database(tmp_path / "capture.db")
    database.insert("sessions", started_at=T0, stopped_at=T0 + 30 * SECOND, gpu_model="RTX 4090")
    database.insert("process_names", pid=PID, name="trainer\x1b[31m", seen_at=0)
    for number in range(25):
        database.event("cudaLaunchKernel", T0 + number * 100 * MS, 10_000, arg0=0xABC)
    slow = T0 + 5 * SECOND
    database.event("cudaLaunchKernel", slow, 50 * MS)
    database.event("sched_switch", slow + 40 * MS, 20 * MS, arg1=99)
    database.event("cudaFree", T0, 1, tid=4250)
    database.event("sched_switch", slow + 45 * MS, 40 * MS, pid=4250, arg1=99)
    database.event("net_recv", T0, 1)
    database.counted("cudaLaunchKernel", 1_000, 26, 60 * MS)
    return database


def test_what_was_imported_is_told_before_the_report(database, capsys):
    """What was taken, what was not, and then what ``explain`` says of a recording."""
    assert cli.main(["import", "ingero", str(database.path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == [
        f"{database.path}: tool ingero, gpu RTX 4090",
        "  taken            27  CUDA calls",
        "  taken             2  intervals off the CPU",
        "  left out          1  net_recv",
        "",
    ]
    text = "\n".join(lines)
    assert f"{database.path}: 5.05 s from 2026-03-20 09:47:00.000000 UTC" in text
    assert "trainer\\x1b[31m (4242): unknown" in text
    assert "<- off_cpu 20 ms (40 %)" in text
    assert "974 calls were counted and not kept one by one" in text


def test_a_slow_call_is_put_down_to_what_is_known(database, capsys):
    """
    Its thread was off the CPU for a part of it, for an unknown reason; the rest, of a launch
    that nobody saw burn a CPU, is unexplained. Nobody is to blame.
    """
    assert cli.main(["import", "ingero", str(database.path), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    REPORT.validate(document["report"])
    (chain,) = document["report"]["chains"]
    (cause,) = chain["causes"]
    assert chain["effect"]["duration_ns"] == 50 * MS
    assert (cause["kind"], cause["time_ns"], cause["culprit"]) == ("off_cpu", 20 * MS, None)
    assert chain["unexplained_ns"] == 30 * MS
    assert chain["severity"] == "low"


def test_the_document_says_what_was_imported(database, capsys):
    """For programs, with the counts that the text has."""
    assert cli.main(["import", "ingero", str(database.path), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["import"]["source"] == {"tool": "ingero", "gpu": "RTX 4090"}
    assert document["import"]["taken"] == {"CUDA calls": 27, "intervals off the CPU": 2}
    assert document["import"]["left_out"] == {"net_recv": 1}
    assert document["import"]["rejected"] == {}
    launches, frees = document["report"]["apis"]
    assert (launches["calls"], launches["sum_ns"], launches["max_ns"]) == (1_000, 60 * MS, 50 * MS)
    assert (frees["calls"], frees["errors"]) == (1, 0)


def test_an_api_without_rows_has_no_percentiles(database, capsys):
    """Null, and not a number that would be made up."""
    database.counted("cudaMalloc", 10, 0, 10 * MS)

    assert cli.main(["import", "ingero", str(database.path), "--json"]) == 0

    report = json.loads(capsys.readouterr().out)["report"]
    REPORT.validate(report)
    (row,) = [row for row in report["apis"] if row["api"] == "cudaMalloc"]
    assert (row["calls"], row["p50_ns"], row["p99_ns"], row["max_ns"]) == (10, None, None, MS)


def spans_of(path):
    documents = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [
        span
        for document in documents
        for resource in document.get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def metrics_of(path):
    documents = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {
        metric["name"]: metric
        for document in documents
        for resource in document.get("resourceMetrics", ())
        for scope in resource["scopeMetrics"]
        for metric in scope["metrics"]
    }


def test_spans_have_their_original_times(database, tmp_path):
    """Of a call from its row's time on, of an interval off the CPU up to it."""
    path = tmp_path / "out.jsonl"

    assert cli.main(["import", "ingero", str(database.path), "--otlp-file", str(path)]) == 0

    slow = T0 + 5 * SECOND
    spans = spans_of(path)
    times = {
        (span["name"], int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
        for span in spans
    }
    assert times >= {
        ("cudaLaunchKernel", slow, slow + 50 * MS),
        ("cudaLaunchKernel", T0, T0 + 10_000),
        ("cudaFree", T0, T0 + 1),
        ("sched.off_cpu", slow + 20 * MS, slow + 40 * MS),
        ("sched.off_cpu", slow + 5 * MS, slow + 45 * MS),
        ("gpu.causal_chain", slow, slow + 50 * MS),
        ("gpu.cause.off_cpu", slow + 20 * MS, slow + 40 * MS),
    }
    assert not {"sched.blocked", "sched.run_queue_wait"} & {span["name"] for span in spans}
    (launch,) = [s for s in spans if int(s["endTimeUnixNano"]) - slow == 50 * MS][:1]
    (inside,) = [s for s in spans if s.get("parentSpanId") == launch["spanId"]][:1]
    assert inside["name"] == "sched.off_cpu"
    # Nothing says where it ran.
    assert "cpu.logical_number" not in {a["key"] for a in launch["attributes"]}


def test_metrics_hold_true_counts_and_no_made_up_buckets(database, tmp_path):
    """One bucket that holds all, which says as much as count, sum, minimum and maximum."""
    path = tmp_path / "out.jsonl"

    assert cli.main(["import", "ingero", str(database.path), "--otlp-file", str(path)]) == 0

    metrics = metrics_of(path)
    points = metrics["gpu.cuda.call.duration"]["histogram"]["dataPoints"]
    launches = max(points, key=lambda point: int(point["count"]))
    assert (launches["count"], launches["sum"]) == ("1000", 0.06)
    assert (launches["bucketCounts"], launches.get("explicitBounds", [])) == (["1000"], [])
    assert (launches["min"], launches["max"]) == (0.00001, 0.05)
    # How much was freed is not known, so nothing is said of what is in use.
    assert not {"gpu.cuda.memory.in_use", "gpu.cuda.memory.free.bytes"} & metrics.keys()


def test_spans_can_go_to_standard_output(database, capsys):
    """Then the report does not; and two documents do not fit."""
    arguments = ["import", "ingero", str(database.path), "--otlp-file", "-"]

    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert all("resource" in line for line in printed.out.splitlines())
    assert "  taken            27  CUDA calls" in printed.err
    assert cli.main([*arguments, "--json"]) == 2


def test_it_is_sent_when_that_is_asked_for(database, monkeypatch, capsys):
    """To the endpoint that is used for everything; without the flag nothing goes there."""
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)

        assert cli.main(["import", "ingero", str(database.path)]) == 0
        assert receiver.spans() == []

        assert cli.main(["import", "ingero", str(database.path), "--otlp"]) == 0
        names = {span.span.name for span in receiver.spans()}
        assert names >= {"cudaLaunchKernel", "sched.off_cpu", "gpu.causal_chain"}
        assert "gpu.cuda.call.duration" in {series.name for series in receiver.metrics()}
    assert capsys.readouterr().err == ""


def test_sending_to_nowhere_is_said(database, capsys):
    """Forgetting the endpoint looks like nothing."""
    assert cli.main(["import", "ingero", str(database.path), "--otlp"]) == 0

    assert capsys.readouterr().err == (
        "otel-gpu: nothing is sent: set OTEL_EXPORTER_OTLP_ENDPOINT\n"
    )


def test_it_can_be_kept_in_a_store(database, tmp_path, capsys):
    """And is explained from there as it was."""
    store = tmp_path / "store.db"

    assert cli.main(["import", "ingero", str(database.path), "--store", str(store), "--json"]) == 0
    imported = json.loads(capsys.readouterr().out)["report"]
    assert cli.main(["explain", "--store", str(store), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)

    assert stored["apis"] == imported["apis"]
    assert stored["chains"] == imported["chains"]


def test_another_tools_database_is_refused(tmp_path, capsys):
    """With what it lacks, and without a traceback."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (id INTEGER, timestamp INTEGER, pid INTEGER)")

    assert cli.main(["import", "ingero", str(path)]) == 1

    assert capsys.readouterr().err == (
        f"otel-gpu: error: {path}: lacks of the table events the columns tid, source, op, "
        "duration, arg0, arg1, ret_code\n"
        "hint: it is of another tool, or of a version that is not known here\n"
    )


def test_a_kind_that_is_not_known_is_refused(capsys):
    """The known ones are named."""
    assert cli.main(["import", "nsight", "x.db"]) == 2

    assert "ingero" in capsys.readouterr().err


def test_its_stacks_can_be_added_up_and_asked_for(database, tmp_path, capsys):
    """From a store: as stacks that are labelled incomplete, by line in SQL, and on the page."""
    frames = [
        {"pf": "/app/train.py", "pfn": "step", "pl": 60},
        {"pf": "/app/train.py", "pfn": "<module>", "pl": 1},
        {"s": "_ZN2at6native5emptyEl+0x5", "f": "libtorch_cpu.so"},
    ]
    database.insert("stack_traces", hash=-7, ips="", frames=json.dumps(frames))
    database.run("UPDATE events SET stack_hash = -7 WHERE duration = ?", 50 * MS)
    store = str(tmp_path / "store.db")
    assert cli.main(["import", "ingero", str(database.path), "--store", store]) == 0
    capsys.readouterr()

    assert cli.main(["stacks", "--store", store, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sql = "SELECT place, stack_id FROM v_calls WHERE place <> ''"
    assert cli.main(["query", "--store", store, sql, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert cli.main(["report", "--store", store]) == 0
    page = capsys.readouterr().out

    STACKS.validate(document)
    (stack,) = document["stacks"]
    assert (stack["complete"], stack["native"], stack["python"]) == (False, "frame_pointer", "cut")
    assert [(frame["type"], frame["function"]) for frame in stack["frames"]] == [
        ("native", "at::native::empty(long)"),
        ("cpython", "step"),
        ("cpython", "<module>"),
    ]
    assert document["coverage"] == {
        "with_stack": 1,
        "without_stack": 26,
        "stand_for": 1,
        "counted": 1_001,
    }
    assert answer["rows"] == [["train.py step", stack["id"]]]
    assert "Where: <" in page
    assert "<title>step (/app/train.py)\n50 ms (100.0%)</title>" in page
