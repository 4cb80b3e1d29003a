"""Steps that a program tells, whether its own spans of them are sampled or not."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.recording import read_recording
from otel_gpu.wire.decoder import decode
from otel_gpu.wire.events import CudaCall, ThreadContext
from otel_gpu.wire.marks import Step
from otel_gpu.wire.readings import Counters
from tests.kernel.agent import ROOT, Agent, losses, otel_gpu, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries
from tests.workloads.instrumented.train_cuda import LAUNCHES, SLOW_BATCH, SLOW_S, SLOW_SYNC, STEPS

pytestmark = pytest.mark.kernel

SCRIPT = ROOT / "tests" / "workloads" / "instrumented" / "train_cuda.py"
INSTRUMENT = Path(sys.executable).parent / "opentelemetry-instrument"
# Of tests/workloads/liar.py.
UNREADABLE = 13


@pytest.mark.parametrize("sampler", ["always_on", "always_off"])
def test_every_step_is_told_with_its_span_if_it_has_one(
    stubs: StubLibraries, tmp_path: Path, sampler: str
) -> None:
    """61 steps, each from the end of the one before; CUDA calls are in the span of their step."""
    file = tmp_path / "steps.rec"
    env = {
        "PYTHONPATH": str(ROOT),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_TRACES_SAMPLER": sampler,
    }
    command = [INSTRUMENT, sys.executable, SCRIPT, stubs.runtime]
    flags = ["--record", str(file), "--spans", "full"]
    with Agent(None, command, flags=flags, env=env) as agent:
        line = agent.next_line()
        agent.wait()

    rejected: Counter[str] = Counter()
    events = list(decode((one for batch in read_recording(file) for one in batch), rejected))
    steps = [one for one in events if isinstance(one, Step)]
    ends_ns = line["ends_ns"]

    assert rejected == {}
    assert [one.number for one in steps] == list(range(1, STEPS + 1))
    assert {(one.pid, one.tid, one.source, one.kind) for one in steps} == {
        (line["pid"], line["pid"], wire.STEP_REPORTED, wire.STEP_TRAINING)
    }
    for step, start, end in zip(steps, ends_ns[:-1], ends_ns[1:], strict=True):
        assert start[0] <= step.start_ktime_ns <= start[1]
        assert end[0] <= step.end_ktime_ns <= end[1]
    slow_ns = {one.number: one.end_ktime_ns - one.start_ktime_ns for one in steps}
    assert min(slow_ns[SLOW_BATCH], slow_ns[SLOW_SYNC]) > SLOW_S * 1e9
    assert steps[SLOW_BATCH - 1].loader_wait_ns > SLOW_S * 1e9

    own = {one.start_ktime_ns: one.span_id for one in events if isinstance(one, ThreadContext)}
    launches = Counter(
        own.get(one.start_ktime_ns)
        for one in events
        if isinstance(one, CudaCall) and one.pid == line["pid"] and one.grid != (0, 0, 0)
    )
    spans = [one.span_id for one in steps if one.span_id]
    # 50 at once; which come later depends on how long it all takes.
    assert len(spans) >= 50
    assert {one.trace_flags & 1 for one in steps if one.span_id} == {int(sampler == "always_on")}
    assert {launches[one] for one in spans[:50]} == {LAUNCHES}
    (*_, counters) = (one.values for one in events if isinstance(one, Counters))
    assert counters[wire.COUNTER_LOST_STEP] == 0


def test_explain_names_what_made_a_step_slow(stubs: StubLibraries, tmp_path: Path) -> None:
    """One waits for its data, in the loader's sleep; in one the device takes long."""
    file = tmp_path / "steps.rec"
    env = {
        "PYTHONPATH": str(ROOT),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_METRICS_EXPORTER": "none",
    }
    command = [INSTRUMENT, sys.executable, SCRIPT, stubs.runtime]
    with Agent(None, command, flags=["--record", str(file)], env=env) as agent:
        pid = agent.next_line()["pid"]
        agent.wait()

    said = json.loads(otel_gpu("explain", file, "--json").stdout)
    text = otel_gpu("explain", file).stdout

    (row,) = said["steps"]
    slow = {one["number"]: one for one in row["slow"]}
    assert (row["pid"], row["source"], row["kind"]) == (pid, "program", "training")
    assert (row["steps"], row["confidence"]) == (STEPS, 1)
    assert {SLOW_BATCH, SLOW_SYNC} <= slow.keys()
    sleep, device = slow[SLOW_BATCH]["causes"][0], slow[SLOW_SYNC]["causes"][0]
    assert (sleep["kind"], device["kind"]) == ("sleep", "gpu_wait")
    for cause in (sleep, device):
        assert cause["time_ns"] > 0.9 * SLOW_S * 1e9
    assert said["stacks"][sleep["stack"]]["place"]["function"].endswith("__next__")
    assert slow[SLOW_BATCH]["loader_wait_ns"] > SLOW_S * 1e9 > slow[SLOW_SYNC]["loader_wait_ns"]
    assert f"step {SLOW_BATCH} was slow" in text


def test_steps_waits_for_the_loader_and_cuda_calls_are_one_trace(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """The program sends its steps, the agent what is in them, and the histogram of all of them."""
    command = [INSTRUMENT, sys.executable, SCRIPT, stubs.runtime]
    env = {"PYTHONPATH": str(ROOT), "OTEL_GPU_STACKS_ENABLED": "false"}
    with Agent(receiver, command, flags=["--spans", "full"], env=env) as agent:
        pid = agent.next_line()["pid"]
        agent.wait()

    steps = {
        one.attributes["gpu.training.step.number"]: (one.span.trace_id, one.span.span_id)
        for one in spans(receiver, "gpu.training.step")
    }
    first = {number: steps[number] for number in range(1, 51)}
    waits = Counter(
        (one.span.trace_id, one.span.parent_span_id)
        for one in spans(receiver, "gpu.training.loader.wait")
    )
    launches = Counter(
        (one.span.trace_id, one.span.parent_span_id)
        for one in spans(receiver, "cudaLaunchKernel", pid)
    )

    assert [waits[ids] for ids in first.values()] == [1] * 50
    assert [launches[ids] for ids in first.values()] == [LAUNCHES] * 50
    # The program has spans of those that were slow, too.
    assert {SLOW_BATCH, SLOW_SYNC} <= steps.keys()
    (counted,) = points(
        receiver, "gpu.step.duration", pid, gpu__step__kind="training", gpu__step__source="program"
    )
    assert counted.point.count == STEPS
    assert counted.point.max > SLOW_S
    assert losses(receiver) == {}


def test_whatever_a_program_says_is_counted_or_lost_by_its_reason(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """Nonsense costs only the program's own figures; of far too many steps those of a burst are kept."""
    command = [sys.executable, ROOT / "tests" / "workloads" / "liar.py", stubs.runtime]
    with Agent(receiver, command, env={"PYTHONPATH": str(ROOT)}) as agent:
        line = agent.next_line()
        assert agent.wait().returncode == 0

    counted = sum(one.point.count for one in points(receiver, "gpu.step.duration", line["pid"]))
    lost = losses(receiver)
    assert lost["read_fault"] == UNREADABLE
    assert counted + lost["step"] == line["sane"] + line["insane"]
    assert lost["step"] > line["insane"]
    assert counted >= 1_000
    assert lost.keys() == {"read_fault", "step"}
