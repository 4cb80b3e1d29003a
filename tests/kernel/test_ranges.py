"""Ranges of NVTX that C programs mark are spans, and calls in them their children."""

import platform
import sys

import pytest

from tests.kernel.agent import ROOT, Agent, calls, losses, spans, total
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

LIBRARY = ROOT / "otel_gpu" / "_preload" / f"libotel_gpu_nvtx.{platform.machine()}.so"
THREADS, ROUNDS = 5, 13
ENVIRONMENT = {
    "NVTX_INJECTION64_PATH": str(LIBRARY),
    "OTEL_GPU_STACKS_ENABLED": "false",
    "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
}


@pytest.fixture(scope="module")
def marked(stubs: StubLibraries):
    command = [workload("ranges"), stubs.runtime, str(THREADS), str(ROUNDS)]
    with OtlpReceiver() as receiver:
        with Agent(receiver, command, flags=["--spans", "full"], env=ENVIRONMENT) as agent:
            (line,) = agent.wait().lines
        yield line, receiver


def ranges(receiver: OtlpReceiver, pid: int, name: str | None = None):
    """All ranges of a process, or those of a name."""
    return [
        one
        for one in receiver.spans()
        if one.scope == "otel_gpu.nvtx"
        and one.resource.get("process.pid") == pid
        and name in (None, one.span.name)
    ]


def by_size(receiver: OtlpReceiver, pid: int):
    return {one.attributes["gpu.cuda.size"]: one for one in spans(receiver, "cudaMalloc", pid)}


def test_calls_are_in_the_innermost_range(marked) -> None:
    """Of each of the threads, in each round; after a range they are in none."""
    line, receiver = marked
    found = by_size(receiver, line["pid"])
    outers = {
        one.span.name: one for one in ranges(receiver, line["pid"]) if one.span.name[:5] == "outer"
    }
    inners = {one.span.parent_span_id: one for one in ranges(receiver, line["pid"], "inner")}

    assert len(outers) == len(inners) == THREADS * ROUNDS
    for thread in range(1, THREADS + 1):
        for number in range(ROUNDS):
            outer = outers[f"outer {thread}/{number}"]
            inner = inners[outer.span.span_id]
            first, second, third, after = (
                found[thread << 20 | number << 4 | which] for which in (1, 2, 3, 4)
            )
            assert outer.span.parent_span_id == b""
            for call, around in ((first, outer), (second, inner), (third, outer)):
                assert call.span.parent_span_id == around.span.span_id
                assert call.span.trace_id == outer.span.trace_id
                assert call.attributes["otel_gpu.parent.source"] == "thread_context"
                assert around.span.start_time_unix_nano <= call.span.start_time_unix_nano
                assert call.span.end_time_unix_nano <= around.span.end_time_unix_nano
            assert after.span.parent_span_id == b""
            assert inner.span.trace_id == outer.span.trace_id
            assert inner.attributes["gpu.nvtx.domain"] == "solver"
            assert "gpu.nvtx.domain" not in outer.attributes
            assert inner.attributes["gpu.nvtx.range.kind"] == "push"
            threads = {
                one.attributes["otel_gpu.thread.tid"] for one in (outer, inner, first, after)
            }
            assert len(threads) == 1
    assert calls(receiver, "cudaMalloc", line["pid"]) == line["calls"]
    assert losses(receiver) == {}


def test_a_range_may_end_in_another_thread(marked) -> None:
    """It is said where it began, and nothing is in it."""
    line, receiver = marked
    (crossing,) = ranges(receiver, line["pid"], "crossing")

    assert crossing.attributes["gpu.nvtx.range.kind"] == "start"
    assert crossing.attributes["gpu.nvtx.range.start.tid"] == line["tid"]
    assert crossing.attributes["otel_gpu.thread.tid"] != line["tid"]
    assert by_size(receiver, line["pid"])[5].span.parent_span_id == b""


def test_a_mark_is_a_moment(marked) -> None:
    """One without a name has the name that unnamed ranges have."""
    line, receiver = marked
    (milestone,) = ranges(receiver, line["pid"], "milestone")
    (unnamed,) = ranges(receiver, line["pid"], "range")

    for one in (milestone, unnamed):
        assert one.attributes["gpu.nvtx.range.kind"] == "mark"
        assert one.span.start_time_unix_nano == one.span.end_time_unix_nano


def test_ranges_of_domains_may_lie_across_each_other(marked) -> None:
    """What is pushed last and is still open is innermost. Names are of any character."""
    line, receiver = marked
    found = by_size(receiver, line["pid"])
    (across,) = ranges(receiver, line["pid"], "in Ω 🚀")
    (wide,) = ranges(receiver, line["pid"], "wide")

    assert wide.span.parent_span_id == across.span.span_id
    assert found[6].span.parent_span_id == found[7].span.parent_span_id == wide.span.span_id


def test_the_child_of_a_fork_is_in_none_of_its_parents_ranges(marked) -> None:
    """Until it pushes one of its own; the fork itself is in one."""
    line, receiver = marked
    found = by_size(receiver, line["child"])
    (own,) = ranges(receiver, line["child"])
    (forking,) = ranges(receiver, line["pid"], "forking")
    (fork,) = spans(receiver, "process.fork", line["pid"])

    assert found[8].span.parent_span_id == b""
    assert own.span.name == "in the child"
    assert found[9].span.parent_span_id == own.span.span_id
    assert own.span.span_id != forking.span.span_id
    assert fork.span.parent_span_id == forking.span.span_id


def test_beyond_the_rate_only_long_ranges_are_spans(marked) -> None:
    """The others are counted."""
    line, receiver = marked
    deep = ranges(receiver, line["pid"], "deep")
    (long,) = ranges(receiver, line["pid"], "long")

    assert 30 < len(deep) < 60
    assert long.span.end_time_unix_nano - long.span.start_time_unix_nano >= 30_000_000
    # Its end tells of all that this thread left out so far.
    assert total(receiver, "otel_gpu.spans.rate_limited", reason="range_rate") == 100 - len(deep)


def test_ranges_and_spans_of_the_program_lie_in_each_other(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """With NVTX's own loader: a call is in whichever of both was entered last, and is not left."""
    script = ROOT / "tests" / "workloads" / "ranges_in_spans.py"
    environment = ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, script, stubs.runtime]

    with Agent(receiver, command, flags=["--spans", "full"], env=environment) as agent:
        (line,) = agent.wait().lines

    pid = line["pid"]
    request, layer, inside = (line["spans"][name] for name in ("request", "layer", "in a range"))
    (forward,) = ranges(receiver, pid, "forward")
    (kernel,) = ranges(receiver, pid, "kernel")
    (alone,) = ranges(receiver, pid, "alone")
    found = by_size(receiver, pid)
    where = {
        number: [one.span.trace_id.hex(), one.span.parent_span_id.hex()]
        for number, one in found.items()
    }

    def own(one):
        return [one.span.trace_id.hex(), one.span.span_id.hex()]

    def around(one):
        return [one.span.trace_id.hex(), one.span.parent_span_id.hex()]

    assert around(forward) == request
    assert around(kernel) == layer
    assert alone.span.parent_span_id == b""
    assert alone.attributes["gpu.nvtx.domain"] == "own"
    assert where[1] == where[7] == request
    assert where[2] == where[6] == own(forward)
    assert where[3] == where[5] == layer
    assert where[4] == own(kernel)
    assert where[8] == where[10] == own(alone)
    assert where[9] == inside
    assert found[11].span.parent_span_id == b""
    assert losses(receiver) == {}
