"""``otel-gpu parse``."""

import os
import subprocess
import sys

import pytest

from otel_gpu import cli
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.wire.agent_records import clock_record
from tests.synthetic import call_record


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "a.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write([clock_record(1, 2), b"?", call_record(comm="\x1b]0;owned\x07\n")])
    return path


def test_each_record_is_a_line(recording, capsys):
    """Kind first, so that grep finds it; a record that cannot be decoded has its line too."""
    assert cli.main(["parse", str(recording)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "clock 1 0/0 unix_ns=2",
        "rejected 0 0/0 reason=short bytes=1 start=3f",
    ]
    assert lines[2].startswith("cuda_call 0 0/0 program_ktime_ns=0 ")
    assert len(lines) == 3


def test_control_characters_do_not_reach_the_terminal(recording, capsys):
    """A thread that calls itself an escape sequence is shown as text."""
    cli.main(["parse", str(recording)])

    assert capsys.readouterr().out.endswith(' comm="\\u001b]0;owned\\u0007\\n"\n')


def test_only_the_kinds_that_were_asked_for_are_printed(recording, capsys):
    """The filter may be repeated, and knows what was rejected as a kind."""
    cli.main(["parse", str(recording), "--kind", "clock", "--kind", "rejected"])

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "clock",
        "rejected",
    ]


def test_an_unknown_kind_is_a_usage_error(recording, capsys):
    """A mistyped kind says which ones there are."""
    assert cli.main(["parse", str(recording), "--kind", "clocks"]) == 2
    assert "invalid choice: 'clocks'" in capsys.readouterr().err


def test_a_damaged_recording_is_printed_as_far_as_it_goes(recording, capsys):
    """What is whole comes on standard output, the error after it on standard error."""
    recording.write_bytes(recording.read_bytes()[:-1])

    assert cli.main(["parse", str(recording)]) == 1

    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 3
    assert captured.err.startswith(f"otel-gpu: error: {recording}: ends early")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    """Piped into head, parse ends without a traceback."""
    with RecordingWriter(tmp_path / "long") as writer:
        writer.write([clock_record(1, 2)] * 50_000)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "otel_gpu", "parse", tmp_path / "long"],
        stdout=writing,
        stderr=subprocess.PIPE,
    ) as parse:
        os.close(writing)
        assert os.read(reading, 6) == b"clock "
        os.close(reading)
        _, said = parse.communicate(timeout=30)

    assert said == b""
    assert parse.returncode == 141
