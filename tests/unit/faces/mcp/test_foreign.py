"""Captures of other tools: what they cannot tell is said, and not made up."""

import json

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import RecordingWriter
from otel_gpu.records import json_record
from tests.unit.commands import starved
from tests.unit.faces.mcp import served

UNKNOWN = ("thread_states", "distributions", "freed_bytes")
OF_THE_SCHEDULER = {"preemption", "run_queue", "cpu_quota"}
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
    assert check["covered"]["calls_withheld_by_rate"] is None
    assert check["agent"] is None
    assert check["capture"]["source"] == {"tool": "other"}
    assert check["capture"]["cannot_tell"] == list(UNKNOWN)
    told = " ".join(check["not_known"]["rows"])
    for part in (
        "Whether threads ran, waited for a CPU or were blocked was not recorded",
        "Not every call that was counted was kept",
        "What was freed is not known",
        "made by another tool: what that lost is not known",
    ):
        assert part in told


def test_no_verdict_is_said_with_what_is_known_instead(foreign):
    """Time in calls is known: 2,001 launches took 168 ms; what bounds the process is not."""
    budget = served.ask(foreign, "get_time_budget")

    assert budget["verdicts"] == {"rows": []}
    assert budget["notes"][0].startswith("No process has a verdict")
    assert any("was not recorded" in note for note in budget["notes"])
    (in_calls,) = served.rows(budget["in_calls"])
    assert in_calls["in_calls_us"] == pytest.approx(1_999 * 4 + 6 + 160_000, rel=0.01)


def test_no_cause_is_not_no_fault(foreign):
    """The launch was slow, the scheduler is not blamed, and that this is no finding is said."""
    found = served.ask(foreign, "get_causal_chains")

    (chain,) = found["worst_chains"]["rows"]
    assert chain["effect"]["duration_us"] == 160_000
    assert not {cause["kind"] for cause in chain["causes"]} & OF_THE_SCHEDULER
    assert found["notes"][0].endswith("does not mean that there was none.")


def test_figures_that_nobody_took_are_null(foreign):
    """Time in run queues, losses, and when a process began that was there before."""
    stats = served.ask(foreign, "get_trace_stats")
    processes = served.ask(foreign, "get_processes")["processes"]["rows"]

    assert stats["losses"] is None
    assert {row["run_queue_us"] for row in served.rows(stats["over_time"])} == {None}
    (note,) = stats["notes"]
    assert note.startswith("Not every call that was counted was kept: percentiles, what is usual")
    assert {row["began_us"] for row in processes} == {None}


def test_our_own_captures_have_none_of_these_notes():
    """They tell all that."""
    capture = served.capture_of(served.STARVED)

    for tool in ("get_trace_stats", "get_time_budget", "get_causal_chains"):
        assert served.ask(capture, tool)["notes"] == []
    stats = served.ask(capture, "get_trace_stats")
    assert stats["losses"] == {}
    assert any(row["run_queue_us"] for row in served.rows(stats["over_time"]))
