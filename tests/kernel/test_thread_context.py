"""CUDA calls in the application's own spans: by what its threads publish."""

import json
import sys

import pytest

from tests.kernel.agent import ROOT, Agent, calls, losses, spans, through
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

SPANS = 10_007
THREADS = 8
SCRIPT = ROOT / "tests" / "workloads" / "in_spans.py"
EDGES = ROOT / "tests" / "workloads" / "span_edges.py"


DDTRACE = {
    "DD_TRACE_OTEL_CTX_ENABLED": "true",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_TRACE_STARTUP_LOGS": "false",
}


@pytest.mark.parametrize("publisher", ["otel", "ddtrace"])
def test_each_call_is_under_the_span_that_is_innermost_where_it_is_made(
    receiver: OtlpReceiver, stubs: StubLibraries, tmp_path, publisher: str
) -> None:
    """
    10,007 spans on 8 threads: none under a wrong one, none of a trace that is not sampled.

    ddtrace is a publisher that knows nothing of us.
    """
    command = [sys.executable, SCRIPT, publisher, stubs.runtime, SPANS, THREADS, tmp_path / "made"]

    with Agent(
        receiver,
        command,
        flags=["--spans", "full"],
        env={
            "PYTHONPATH": str(ROOT),
            "OTEL_GPU_STACKS_ENABLED": "false",
            "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
            **DDTRACE,
        },
    ) as agent:
        (line,) = agent.wait().lines

    made = json.loads((tmp_path / "made").read_text())
    pid = line["pid"]
    got = {}
    for one in spans(receiver, "cudaMalloc", pid):
        got[str(one.attributes["gpu.cuda.size"])] = one
    wanted = {number: where for number, where in made.items() if where[0] is None or where[2]}
    wrong = [
        (number, where, one.span.trace_id.hex(), one.span.parent_span_id.hex())
        for number, where in wanted.items()
        if (one := got.get(number)) is not None
        and (
            one.span.parent_span_id.hex() != (where[1] or "")
            or (where[0] and one.span.trace_id.hex() != where[0])
            or one.attributes.get("otel_gpu.parent.source")
            != ("thread_context" if where[0] else None)
        )
    ]

    assert wrong == []
    assert losses(receiver) == {}
    assert got.keys() == wanted.keys()
    assert calls(receiver, "cudaMalloc", pid) == line["calls"] == len(made)
    assert losses(receiver) == {}


def test_a_program_that_publishes_by_itself_has_its_calls_in_its_spans(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Linked into the program, the pointer is at a distance that no relocation names."""
    threads, each = 5, 1009
    command = [workload("in_contexts", "-rdynamic"), stubs.runtime, str(threads), str(each)]

    with Agent(
        receiver,
        command,
        flags=["--spans", "full"],
        env={
            "OTEL_GPU_STACKS_ENABLED": "false",
            "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
        },
    ) as agent:
        (line,) = agent.wait().lines

    assert calls(receiver, "cudaMalloc", line["pid"]) == line["calls"] == threads * each
    wrong = []
    for one in (found := spans(receiver, "cudaMalloc", line["pid"])):
        size_bytes = one.attributes["gpu.cuda.size"]
        in_span = (size_bytes % 2**32 - 1) % 3 != 0
        parent_id = size_bytes.to_bytes(8) if in_span else b""
        trace_number = int.from_bytes(one.span.trace_id)
        if one.span.parent_span_id != parent_id or in_span != (trace_number == size_bytes >> 32):
            wrong.append(one)
    assert wrong == []
    assert len(found) == threads * each
    assert losses(receiver) == {}


@pytest.fixture(scope="module")
def edges(stubs: StubLibraries):
    command = [sys.executable, EDGES, stubs.runtime]
    env = {
        "PYTHONPATH": str(ROOT),
        # A tick may find an interpreter while it makes a frame, and that is counted as lost.
        "OTEL_GPU_STACKS_ENABLED": "false",
        "OTEL_GPU_SPANS_STALL_FLOOR_MS": "5",
        "OTEL_GPU_CAPTURE_OPEN_CALL_LIMIT_S": "0.3",
    }
    # In which span a gap is, only probes tell.
    with through("probes"), OtlpReceiver() as receiver:
        with Agent(receiver, command, flags=["--spans", "full"], env=env, stdin=-1) as agent:
            line = agent.next_line()
            receiver.wait_for(lambda: spans(receiver, "gpu.cuda.call.open", line["pid"]))
            agent.send_line()
            agent.wait()
        yield line, receiver


def parent_of(receiver: OtlpReceiver, number: int, pid: int):
    """Trace and parent of the one call that allocated so many bytes."""
    (one,) = [
        span
        for span in spans(receiver, "cudaMalloc", pid)
        if span.attributes["gpu.cuda.size"] == number
    ]
    return [one.span.trace_id.hex(), one.span.parent_span_id.hex()]


def test_a_gap_is_in_a_span_that_it_begins_and_ends_in(edges) -> None:
    """Between two spans it is in neither. What the thread waited for there is its child."""
    line, receiver = edges
    inside, between = spans(receiver, "gpu.launch_gap", line["pid"])[:2]

    assert [inside.span.trace_id.hex(), inside.span.parent_span_id.hex()] == line["said"]["gap"]
    assert inside.attributes["otel_gpu.parent.source"] == "thread_context"
    assert between.span.parent_span_id == b""
    waits = [
        one.span
        for one in spans(receiver, "sched.blocked", line["pid"])
        if one.span.parent_span_id == inside.span.span_id
    ]
    assert [one.trace_id for one in waits] == [inside.span.trace_id]


def sleeps_in(receiver: OtlpReceiver, line, name: str):
    """The times that a thread slept in, below a span of the application."""
    return [
        one
        for one in spans(receiver, "sched.blocked", line["pid"])
        if [one.span.trace_id.hex(), one.span.parent_span_id.hex()] == line["said"][name]
        and one.attributes["otel_gpu.stall.reason"] == "sleep"
    ]


def test_a_wait_in_another_span_than_its_gap_is_in_that_span(edges) -> None:
    """The gap began in a span before it."""
    line, receiver = edges

    (slept,) = sleeps_in(receiver, line, "next")

    assert slept.attributes["otel_gpu.parent.source"] == "thread_context"
    assert slept.span.end_time_unix_nano - slept.span.start_time_unix_nano >= 25_000_000


def test_a_wait_of_a_thread_that_makes_no_calls_is_in_its_span(edges) -> None:
    """As a thread that serves one request, and comes to its first call later."""
    line, receiver = edges

    (slept,) = sleeps_in(receiver, line, "waiting")

    assert slept.attributes["otel_gpu.parent.source"] == "thread_context"
    assert slept.attributes["otel_gpu.thread.tid"] == line["said"]["waiter"]
    # It slept for 50 ms, but may have left the CPU late.
    assert slept.span.end_time_unix_nano - slept.span.start_time_unix_nano >= 25_000_000


def test_a_wait_behind_the_last_call_of_a_thread_is_in_its_span(edges) -> None:
    """No call ends the gap that it would be in, so there is none."""
    line, receiver = edges

    (slept,) = sleeps_in(receiver, line, "last")

    assert slept.span.end_time_unix_nano - slept.span.start_time_unix_nano >= 25_000_000
    assert slept.attributes["otel_gpu.parent.source"] == "thread_context"


def test_a_call_that_hangs_is_in_the_trace_of_its_span_meanwhile(edges) -> None:
    """The span of the call, which is its parent, comes later, and is in that trace too."""
    line, receiver = edges
    trace_id, span_id = line["said"]["hanging"]
    (call,) = spans(receiver, "cudaStreamSynchronize", line["pid"])
    looks = spans(receiver, "gpu.cuda.call.open", line["pid"])

    assert [call.span.trace_id.hex(), call.span.parent_span_id.hex()] == [trace_id, span_id]
    assert {look.span.trace_id.hex() for look in looks} == {trace_id}
    assert {look.span.parent_span_id for look in looks} == {call.span.span_id}


def test_a_fork_is_in_the_span_of_who_forks_and_its_child_is_in_none(edges) -> None:
    """Until it enters one of its own."""
    line, receiver = edges
    forks = [one.span for one in spans(receiver, "process.fork", line["pid"])]

    assert len(forks) == 2
    for fork in forks:
        assert [fork.trace_id.hex(), fork.parent_span_id.hex()] == line["said"]["next"]
    assert parent_of(receiver, 101, line["forked"])[1] == ""
    assert parent_of(receiver, 102, line["forked"]) == line["said"]["forked"]


def test_another_program_is_in_no_span_of_the_one_before(edges) -> None:
    """Exec clears it."""
    line, receiver = edges

    assert parent_of(receiver, 103, line["execed"])[1] == ""


def test_a_context_that_is_nonsense_is_none(edges) -> None:
    """A pointer to nowhere; nothing is lost, and the right one counts again."""
    line, receiver = edges

    assert parent_of(receiver, 4, line["pid"])[1] == ""
    assert parent_of(receiver, 5, line["pid"]) == line["said"]["right again"]
    assert losses(receiver) == {}
