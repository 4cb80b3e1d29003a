"""Programs that count their own calls: the same figures as by probes, and nothing twice."""

import os
import subprocess

import pytest

from otel_gpu.capture.door_library import with_door
from tests.doors import calls_of, has_door, reading_of
from tests.kernel.agent import Agent, calls, losses, points, total, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import linked_workload

pytestmark = pytest.mark.kernel

PROBE_HITS = "otel_gpu.probe.hits"


def entries(receiver: OtlpReceiver) -> int:
    """How often a probe at a call fired for a watched process."""
    return total(receiver, PROBE_HITS, otel_gpu__probe__type="entry")


@pytest.mark.parametrize(("made", "threads"), [(1, 0), (10_007, 0), (5_003, 7)])
def test_each_call_is_counted_without_a_probe(
    receiver: OtlpReceiver, made: int, threads: int
) -> None:
    """Also those of threads that have ended, and of a process that ends at once."""
    command = [linked_workload("door"), str(made), str(threads)]
    with Agent(receiver, command, flags=("--door",)) as agent:
        agent.wait()

    assert calls(receiver, "cudaLaunchKernel") == made * max(1, threads)
    gaps = sum(point.point.count for point in points(receiver, "gpu.cuda.launch.gap"))
    assert gaps == (made - 1) * max(1, threads)
    assert entries(receiver) == 0
    assert losses(receiver) == {}
    assert total(receiver, "otel_gpu.door.calls") == made * max(1, threads)
    (whole,) = points(receiver, "otel_gpu.coverage")
    (by_door,) = points(receiver, "otel_gpu.door.coverage")
    assert 0.2 < by_door.point.as_double < whole.point.as_double == 1


def test_each_of_many_short_programs_is_counted(receiver: OtlpReceiver) -> None:
    """Each stands still at its first call, until the agent has its memory."""
    command = ["sh", "-c", f"for i in $(seq 31); do {linked_workload('door')} 3 0; done"]
    with Agent(receiver, command, flags=("--door",)) as agent:
        agent.wait()

    counted = points(receiver, "gpu.cuda.call.duration", gpu__cuda__api="cudaLaunchKernel")
    assert [point.point.count for point in counted] == [3] * 31
    assert losses(receiver) == {}


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_GPU_DOOR": "0"}, {"OTEL_GPU_HISTOGRAMS_LAYOUT": "explicit"}],
    ids=["switched off", "other histograms"],
)
def test_what_has_no_door_is_counted_by_probes(
    receiver: OtlpReceiver, environment: dict[str, str]
) -> None:
    """Where the door is off, or counts in other buckets than are wanted."""
    command = [linked_workload("door"), "1009", "0"]
    with Agent(receiver, command, flags=("--door",), env=environment) as agent:
        agent.wait()

    assert calls(receiver, "cudaLaunchKernel") == 1009
    assert entries(receiver) == 1009
    assert losses(receiver) == {}


def test_programs_with_and_without_a_door_share_a_library(receiver: OtlpReceiver) -> None:
    """Each is counted once, though the probes of the one are in the library of the other."""
    program = linked_workload("door")
    script = f"{program} 503 0; LD_PRELOAD= {program} 1009 0; {program} 2003 0"
    with Agent(receiver, ["sh", "-c", script], flags=("--door",)) as agent:
        agent.wait()

    counted = points(receiver, "gpu.cuda.call.duration", gpu__cuda__api="cudaLaunchKernel")
    assert sorted(point.point.count for point in counted) == [503, 1009, 2003]
    assert entries(receiver) == 1009
    assert losses(receiver) == {}


def test_of_a_program_that_was_there_first_what_it_does_from_then_on_is_counted(
    receiver: OtlpReceiver,
) -> None:
    """What it had counted before is no call of this capture."""
    command = [linked_workload("door"), str(10**12), "0", str(50_000)]
    environment = with_door(os.environ)
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as program:
        wait_until(lambda: has_door(program.pid), "the first call")
        before = calls_of(reading_of(program.pid))["cudaLaunchKernel"]
        with Agent(receiver, flags=("--pid", str(program.pid), "--duration", "2")) as agent:
            agent.wait()
        after = calls_of(reading_of(program.pid))["cudaLaunchKernel"]
        program.kill()

    counted = calls(receiver, "cudaLaunchKernel", program.pid)
    assert 0 < counted <= after - before
    assert entries(receiver) == 0
    assert losses(receiver) == {}
