"""``otel-gpu import``: what is printed, and what leaves."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from otel_gpu import cli
from tests.receiver import OtlpReceiver
from tests.schemas import REPORT
from tests.unit.importers.exports import US, UTC_NS, Export
from tests.unit.importers.traces import call, host, kernel, trace, write

KERNEL = "gemm\x1b[31m<float>(int)"


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
def export(tmp_path, monkeypatch):
    """Twenty kernels of 400 µs with what launched them, a copy, and a mark that has no place here."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_GPU_STORE_ENABLED", "off")
    export = Export()
    export.add("TARGET_INFO_GPU", 0, "H100", 9, 0, 132, 80 << 30)
    for number in range(20):
        export.call(1_000 * number, 5, number + 1)
        export.kernel(1_000 * number + 10, 400, number + 1, KERNEL)
    export.copy(20_000, 300)
    export.range(200, 0, "here", kind=34)
    return export.write(tmp_path / "report.sqlite")


def test_what_was_imported_is_told_after_the_report(export, capsys):
    """The answer, then what was taken and what was not; names steer no terminal."""
    assert cli.main(["import", "nsys", str(export)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{export}: 20.3 ms from 2025-06-15 15:06:40.000000 UTC"
    assert lines[-5:] == [
        "",
        f"{export}: tool Nsight Systems, version 2026.2.1, schema 3.25.0",
        "  taken            21  activities of devices",
        "  taken            20  calls of the host",
        "  left out          1  mark of NVTX, and ranges that may overlap",
    ]
    text = "\n".join(lines)
    assert "Verdict for device 0 (H100)" in text
    assert "gemm\ufffd[31m<float>(int)" in text


def test_the_document_says_what_was_imported(export, capsys):
    """For programs, with the counts that the text has."""
    assert cli.main(["import", "nsys", str(export), "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    REPORT.validate(document["report"])
    assert document["import"]["source"] == {
        "tool": "Nsight Systems",
        "version": "2026.2.1",
        "schema": "3.25.0",
    }
    taken = document["import"]["taken"]
    assert {what: count for what, count in taken.items() if count} == {
        "activities of devices": 21,
        "calls of the host": 20,
    }
    assert document["import"]["left_out"] == {"marks of NVTX, and ranges that may overlap": 1}
    assert document["import"]["rejected"] == {}
    (device,) = document["report"]["devices"]
    assert (device["model"], device["launches"]["linked"]) == ("H100", 20)


def test_spans_have_their_original_times(export, tmp_path):
    """Of what was recorded last year, last year."""
    path = tmp_path / "out.jsonl"

    assert cli.main(["import", "nsys", str(export), "--otlp-file", str(path)]) == 0

    spans = {
        (span["name"], int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
        for line in path.read_text("utf-8").splitlines()
        for resource in json.loads(line).get("resourceSpans", ())
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    }
    assert ("gpu.run", UTC_NS + 10 * US, UTC_NS + 20_300 * US) in spans


def test_spans_can_go_to_standard_output(export, capsys):
    """Then the report does not; and two documents do not fit."""
    arguments = ["import", "nsys", str(export), "--otlp-file", "-"]

    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert all("resource" in line for line in printed.out.splitlines())
    assert "  taken            20  calls of the host" in printed.err
    assert cli.main([*arguments, "--json"]) == 2


def test_it_is_sent_when_that_is_asked_for(export, monkeypatch, capsys):
    """To the endpoint that is used for everything; without the flag nothing goes there."""
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.grpc_endpoint)

        assert cli.main(["import", "nsys", str(export)]) == 0
        assert receiver.spans() == []

        assert cli.main(["import", "nsys", str(export), "--otlp"]) == 0
        assert "gpu.run" in {span.span.name for span in receiver.spans()}
        assert "gpu.device.time" in {series.name for series in receiver.metrics()}
    assert capsys.readouterr().err == ""


def test_sending_to_nowhere_is_said(export, capsys):
    """Forgetting the endpoint looks like nothing."""
    assert cli.main(["import", "nsys", str(export), "--otlp"]) == 0

    assert capsys.readouterr().err == (
        "otel-gpu: nothing is sent: set OTEL_EXPORTER_OTLP_ENDPOINT\n"
    )


def test_it_can_be_kept_in_a_store(export, tmp_path, capsys):
    """And is explained from there as it was, also on the page."""
    store = tmp_path / "store.db"

    assert cli.main(["import", "nsys", str(export), "--store", str(store), "--json"]) == 0
    imported = json.loads(capsys.readouterr().out)["report"]
    assert cli.main(["explain", "--store", str(store), "--json"]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert cli.main(["report", "--store", str(store)]) == 0
    page = capsys.readouterr().out

    assert stored["devices"] == imported["devices"]
    assert "gemm\ufffd[31m&lt;float&gt;(int)" in page


def test_another_tools_database_is_refused(tmp_path, capsys):
    """With what it lacks, and without a traceback."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER)")

    assert cli.main(["import", "nsys", str(path)]) == 1

    assert capsys.readouterr().err == (
        f"otel-gpu: error: {path}: lacks of the table StringIds the columns value\n"
        "hint: it is from another tool, or from an unsupported version\n"
    )


def test_a_kind_that_is_not_known_is_refused(capsys):
    """The known ones are named."""
    assert cli.main(["import", "nsight", "x.db"]) == 2

    assert "nsys" in capsys.readouterr().err
