"""``otel-gpu explain`` of recordings; tests/kernel has it live."""

import io
import json
import os
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu import cli, pipeline
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.cli.commands import UsageError
from otel_gpu.cli.part_reports import TimePoint, parse_time_point
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document, to_text
from otel_gpu.report.render.text.document import write_text
from tests.schemas import REPORT
from tests.unit.cli.commands import starved

UPDATE = "python -m tests.unit.cli.commands.starved"


@pytest.fixture
def recording(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    # This host's own flight recorder is none of ours.
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    return starved.write(tmp_path / "starved.otelgpu")


def document_of(capsys, *arguments):
    assert cli.main(["explain", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_story_is_explained_as_ever(tmp_path):
    """One recording, one document, to the last digit: see what has changed before updating."""
    expected = json.loads(starved.EXPECTED.read_text(encoding="utf-8"))

    assert starved.document(tmp_path) == expected, f"run {UPDATE}"


def test_the_story_is_told_rightly(recording, capsys):
    """What the golden document says, for a reader: who starved whom, through which hop."""
    document = document_of(capsys, recording)

    REPORT.validate(document)
    gap, launch = document["incidents"]
    (waiting, *_) = gap["causes"]
    (starving, *_) = waiting["via"]
    assert (waiting["kind"], waiting["culprit"]["comm"]) == ("ipc", "pt_data_worker")
    assert (starving["kind"], starving["culprit"]["comm"]) == ("preemption", "cc1plus")
    assert starving["time_ns"] == 180 * starved.MS
    (stolen, *_) = launch["causes"]
    assert (stolen["kind"], stolen["time_ns"]) == ("preemption", 150 * starved.MS)
    assert stolen["culprit"] == {"pid": 900, "tid": 901, "comm": "cc1plus"}
    assert document["losses"] == {"no_entry": 2}


def test_json_is_all_that_is_printed(recording, capsys):
    """Standard output is one document, so that a pipe can read it."""
    assert cli.main(["explain", str(recording), "--json"]) == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out)["source"] == str(recording)
    assert captured.err == ""


def test_the_text_begins_with_what_matters(recording, capsys):
    """Without --json, a person reads it."""
    assert cli.main(["explain", str(recording)]) == 0

    text = capsys.readouterr().out
    assert re.search(r"^Verdict\n  train\.py \(4242\): mixed", text, re.MULTILINE)
    assert "82 %   180 ms     which cc1plus (900/901) preempted  preemption" in text
    assert "cgroup /train: held back by its CPU quota for 30 ms, in 3 of 30 periods" in text


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["--since", "-6s"], ["slow_call", "slow_gap"]),
        (["--since", "4.2s"], ["slow_gap"]),
        (["--from", "+1.7s", "--to", "+1.8s"], ["slow_gap"]),
        (["--from", "1760000001.65", "--to", "2025-10-09T08:53:21.68Z"], ["slow_call"]),
        (["--to", "+1s"], []),
    ],
)
def test_a_window_is_chosen(recording, capsys, arguments, kinds):
    """Relative to either end, as a Unix time or a date: what touches the window is told."""
    document = document_of(capsys, recording, *arguments)

    REPORT.validate(document)
    assert [chain["effect"]["kind"] for chain in document["chains"]] == kinds


def test_a_window_has_its_own_verdict(recording, capsys):
    """Before anything went wrong, the process was bound by its own launches."""
    early = document_of(capsys, recording, "--to", "+1s")
    late = document_of(capsys, recording, "--from", "+1.5s")

    (first,), (second,) = early["processes"], late["processes"]
    assert (first["budget_ns"]["run_queue"], first["budget_ns"]["ipc"]) == (0, 0)
    assert second["budget_ns"]["run_queue"] == 150 * starved.MS
    assert second["budget_ns"]["api"] == 0
    assert [row["calls"] for row in early["apis"]] == [1_000]
    assert [row["calls"] for row in late["apis"]] == [1_001]


def test_a_process_is_chosen(recording, capsys):
    """Of a recording, --pid filters what is told."""
    document = document_of(capsys, recording, "--pid", "1")

    assert (document["processes"], document["chains"], document["incidents"]) == ([], [], [])


def test_each_process_can_have_its_part(recording, capsys):
    """--per-process reaches the text."""
    assert cli.main(["explain", str(recording), "--per-process"]) == 0

    assert "\n== train.py (4242)\n" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_the_report_can_go_to_a_file(recording, capsys, tmp_path, arguments):
    """What would have been printed is in the file, and nothing is printed."""
    cli.main(["explain", str(recording), *arguments])
    printed = capsys.readouterr().out
    path = tmp_path / "report"

    assert cli.main(["explain", str(recording), *arguments, "--output", str(path)]) == 0

    assert path.read_text(encoding="utf-8") == printed
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_named(recording, capsys, tmp_path):
    """A mistyped folder gives a line, not a traceback."""
    path = tmp_path / "no" / "report"

    assert cli.main(["explain", str(recording), "--output", str(path)]) == 1
    assert f"error: {path}: cannot be written" in capsys.readouterr().err


def test_a_damaged_recording_is_explained_as_far_as_it_goes(recording, capsys):
    """What is whole is explained, the report says so, and the exit code is 1."""
    recording.write_bytes(recording.read_bytes()[:-1])

    assert cli.main(["explain", str(recording), "--json"]) == 1

    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert len(document["chains"]) == 2
    assert document["notes"][-1].startswith("The recording is damaged")
    assert "ends early" in captured.err


def test_what_is_no_recording_prints_no_report(tmp_path, capsys):
    """An error, and no empty report before it."""
    path = tmp_path / "x"
    path.write_text("nothing of the kind")

    assert cli.main(["explain", str(path)]) == 1

    captured = capsys.readouterr()
    assert captured.out == ""
    assert "is not a recording" in captured.err


@pytest.mark.parametrize("arguments", [[], ["--json"], ["--per-process"]])
def test_names_in_a_recording_cannot_command_the_terminal(tmp_path, capsys, arguments):
    """A stranger's recording is shown without doing what it says."""
    path = tmp_path / "evil.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write(list(starved.tell(hog="\x1b]0;owned\x07\n")))

    assert cli.main(["explain", str(path), *arguments]) == 0

    text = capsys.readouterr().out
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert "owned" in text


@settings(max_examples=25)
@given(data=st.data())
def test_a_damaged_stream_makes_a_valid_report(data):
    """Records in any order with any bytes changed: a document by the schema, and no traceback."""
    records = data.draw(st.permutations(list(starved.tell())))
    damaged = []
    for record in records:
        place = data.draw(st.integers(min_value=8, max_value=len(record) - 1))
        byte = data.draw(st.sampled_from([record[place], 0, 1, 127, 128, 255]))
        damaged.append(record[:place] + bytes([byte]) + record[place + 1 :])
    rejected = Counter()
    collector = Collector(Explainer(), rejected=rejected)

    pipeline.process([damaged], Enricher(), [collector.observe], rejected)
    report = collector.finish("damaged")

    REPORT.validate(json.loads(to_text(make_document(report))))
    printed = io.StringIO()
    write_text(report, Console(file=printed, width=100, highlight=False))
    assert {c for c in printed.getvalue() if not c.isprintable()} == {"\n"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what to watch"),
        (["--all", "--pid", "1"], "name one kind of thing to watch"),
        (["--all", "--since", "5s"], "--from and --to are for recordings"),
        (["REC", "--all"], "a recording is explained as it is"),
        (["REC", "--duration", "1"], "a recording is explained as it is"),
        (["REC", "--", "true"], "a recording is explained as it is"),
        (["REC", "--from", "+2s", "--to", "+1s"], "the window ends before it begins"),
        (["REC", "--from", "yesterday"], "'yesterday' is not a point in time"),
    ],
)
def test_what_makes_no_sense_is_refused(recording, capsys, arguments, message):
    """A usage error says what is wrong, before anything is captured or read."""
    named = [str(recording) if argument == "REC" else argument for argument in arguments]

    assert cli.main(["explain", *named]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30s", TimePoint("end", -30 * 10**9)),
        ("-30s", TimePoint("end", -30 * 10**9)),
        ("+1.5m", TimePoint("begin", 90 * 10**9)),
        ("250ms", TimePoint("end", -250 * 10**6)),
        ("2h", TimePoint("end", -7_200 * 10**9)),
        ("1d", TimePoint("end", -86_400 * 10**9)),
        ("1760000000", TimePoint("unix", 1_760_000_000 * 10**9)),
        ("1760000000.123456789", TimePoint("unix", 1_760_000_000_123_456_789)),
        ("1760000000.5", TimePoint("unix", 1_760_000_000_500_000_000)),
        ("2025-10-09T08:53:20", TimePoint("unix", 1_760_000_000 * 10**9)),
        ("2025-10-09 10:53:20.000001+02:00", TimePoint("unix", 1_760_000_000 * 10**9 + 1_000)),
        ("2025-10-09", TimePoint("unix", 1_759_968_000 * 10**9)),
    ],
)
def test_moments_are_read(text, moment):
    """Every way to name a moment means one, to the nanosecond where it says so."""
    assert parse_time_point(text) == moment


@pytest.mark.parametrize("text", ["", "soon", "30", "s", "--5s", "5 s", "٣s", "1e9", "nan"])
def test_what_names_no_moment_is_refused(text):
    """A duration without its unit is asked for it, not taken for 1970."""
    with pytest.raises(UsageError) as error:
        parse_time_point(text)

    assert error.value.hint
