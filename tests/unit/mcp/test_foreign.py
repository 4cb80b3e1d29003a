"""Captures of other tools: what they cannot tell is said, and not made up."""

import json

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.wire.agent_records import json_record
from tests.unit.cli.commands import starved
from tests.unit.mcp import served

UNKNOWN = ("calls",)
CALLS = (wire.RECORD_CLOCK, wire.RECORD_PROCESS, wire.RECORD_AGGREGATES)


def tell_calls():
    """The story of the starved trainer, as a tool would tell it that sees calls alone."""
    for record in starved.tell():
        header = wire.RECORD_HEADER.named(record)
        if header["kind"] == wire.RECORD_CAPTURE:
            body = json.loads(record[wire.RECORD_HEADER.size :])
            body |= {"mode": "import", "unknown": list(UNKNOWN), "source": {"tool": "other"}}
            yield json_record(wire.RECORD_CAPTURE, header["ktime_ns"], body)
        elif header["kind"] == wire.RECORD_CUDA_CALL:
            yield without_waits(record)
        elif header["kind"] in CALLS:
            yield record


def without_waits(call):
    """A call of which only its times are known."""
    values = list(wire.CUDA_CALL_RECORD.unpack(call))
    for name in ("blocked_ns", "run_queue_ns", "voluntary_switches", "involuntary_switches"):
        values[wire.CUDA_CALL_RECORD.fields.index(name)] = 0
    return wire.CUDA_CALL_RECORD.pack(*values)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    path = tmp_path_factory.mktemp("foreign") / "calls.otelgpu"
    with RecordingWriter(path) as writer:
        writer.write(list(tell_calls()))
    return served.capture_of(path)


def test_nothing_is_said_of_losses_and_costs_that_were_not_told(foreign):
    """
    No counter of losses is not a counter that is zero, and neither is no figure of the agent's.
    """
    check = served.ask(foreign, "get_check")

    assert (check["nothing_was_lost"], check["losses"]) == (None, {})
    assert check["covered"]["calls_rate_limited"] is None
    assert check["agent"] is None
    assert check["capture"]["source"] == {"tool": "other"}
    assert check["capture"]["cannot_tell"] == list(UNKNOWN)
    told = " ".join(check["not_known"]["rows"])
    assert "Another tool made the capture: its losses are not known" in told


def test_no_verdict_is_said_with_what_is_known_instead(foreign):
    """Time in calls is known: 2,001 launches took 168 ms; what bounds the process is not."""
    budget = served.ask(foreign, "get_time_budget")

    assert budget["verdicts"] == {"rows": []}
    assert budget["notes"][0].startswith("No process has a verdict")
    (in_calls,) = served.rows(budget["in_calls"])
    assert in_calls["in_calls_us"] == pytest.approx(1_999 * 4 + 6 + 160_000, rel=0.01)


def test_figures_that_nobody_took_are_null(foreign):
    """Losses, and when a process began that was there before."""
    stats = served.ask(foreign, "get_trace_stats")
    processes = served.ask(foreign, "get_processes")["processes"]["rows"]

    assert stats["losses"] is None
    assert {row["began_us"] for row in processes} == {None}


def test_our_own_captures_have_none_of_these_notes():
    """They tell all that."""
    capture = served.capture_of(served.STARVED)

    assert served.ask(capture, "get_time_budget")["notes"] == []
    stats = served.ask(capture, "get_trace_stats")
    assert stats["losses"] == {}
    assert any(row["run_queue_us"] for row in served.rows(stats["over_time"]))
