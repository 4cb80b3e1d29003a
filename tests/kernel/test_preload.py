"""Programs that count their own calls: the same figures as by probes, and nothing twice."""

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_gpu import wire
from otel_gpu.capture.preload.library import with_preload
from otel_gpu.procfs.mapped_files import child_pids
from tests.kernel.agent import Agent, calls, losses, points, spans, total, wait_until
from tests.preloaded import calls_of, is_preloaded, reading_of
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, linked_workload, stub_libraries

pytestmark = pytest.mark.kernel

PROBE_HITS = "otel_gpu.probe.hits"


def entries(receiver: OtlpReceiver) -> int:
    """How often a probe at a call fired for a watched process."""
    return total(receiver, PROBE_HITS, otel_gpu__probe__type="entry")


@pytest.mark.parametrize(("made", "threads"), [(1, 0), (10_007, 0), (5_003, 7), (5_000_011, 4)])
def test_each_call_is_counted_without_a_probe(
    receiver: OtlpReceiver, made: int, threads: int
) -> None:
    """Also those of threads that have ended, and of a process that ends at once."""
    command = [linked_workload("hot_calls"), str(made), str(threads)]
    with Agent(receiver, command, flags=("--preload",)) as agent:
        agent.wait()

    assert calls(receiver, "cudaLaunchKernel") == made * max(1, threads)
    gaps = sum(point.point.count for point in points(receiver, "gpu.cuda.launch.gap"))
    assert gaps == (made - 1) * max(1, threads)
    assert entries(receiver) == 0
    # Not every stack of a slow call finds room; each call is counted.
    assert losses(receiver).keys() <= {"sample"}
    assert total(receiver, "otel_gpu.preload.calls") == made * max(1, threads)
    (whole,) = points(receiver, "otel_gpu.coverage")
    (by_preload,) = points(receiver, "otel_gpu.preload.coverage")
    assert 0.2 < by_preload.point.as_double < whole.point.as_double == 1


def test_each_of_many_short_programs_is_counted(receiver: OtlpReceiver) -> None:
    """Each stands still at its first call, until the agent has its memory."""
    command = ["sh", "-c", f"for i in $(seq 31); do {linked_workload('hot_calls')} 3 0; done"]
    with Agent(receiver, command, flags=("--preload",)) as agent:
        agent.wait()

    counted = points(receiver, "gpu.cuda.call.duration", gpu__cuda__api="cudaLaunchKernel")
    lost = losses(receiver)
    assert ([point.point.count for point in counted], lost) == ([3] * 31, {})


@pytest.mark.parametrize(
    "environment",
    [{"OTEL_GPU_PRELOAD": "0"}, {"OTEL_GPU_HISTOGRAMS_LAYOUT": "explicit"}],
    ids=["switched off", "other histograms"],
)
def test_calls_are_counted_by_probes_without_the_library(
    receiver: OtlpReceiver, environment: dict[str, str]
) -> None:
    """Where the preload library is off, or counts in other buckets than are wanted."""
    command = [linked_workload("hot_calls"), "1009", "0"]
    with Agent(receiver, command, flags=("--preload",), env=environment) as agent:
        agent.wait()

    assert calls(receiver, "cudaLaunchKernel") == 1009
    assert entries(receiver) == 1009
    assert losses(receiver) == {}


def test_preloaded_and_other_programs_share_a_library(receiver: OtlpReceiver) -> None:
    """Each is counted once, though the probes of the one are in the library of the other."""
    program = linked_workload("hot_calls")
    script = f"{program} 503 0; LD_PRELOAD= {program} 1009 0; {program} 2003 0"
    with Agent(receiver, ["sh", "-c", script], flags=("--preload",)) as agent:
        agent.wait()

    counted = points(receiver, "gpu.cuda.call.duration", gpu__cuda__api="cudaLaunchKernel")
    assert sorted(point.point.count for point in counted) == [503, 1009, 2003]
    assert entries(receiver) == 1009
    assert losses(receiver) == {}


def test_of_a_program_that_was_there_first_what_it_does_from_then_on_is_counted(
    receiver: OtlpReceiver,
) -> None:
    """And sampled; what it had counted before is no call of this capture."""
    command = [linked_workload("hot_calls"), str(10**12), "0", str(50_000)]
    environment = with_preload(os.environ)
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as program:
        wait_until(lambda: is_preloaded(program.pid), "the first call")
        before = calls_of(reading_of(program.pid))["cudaLaunchKernel"]
        with Agent(receiver, flags=("--pid", str(program.pid), "--duration", "2")) as agent:
            agent.wait()
        after = calls_of(reading_of(program.pid))["cudaLaunchKernel"]
        program.kill()

    counted = calls(receiver, "cudaLaunchKernel", program.pid)
    made = spans(receiver, "cudaLaunchKernel", program.pid)
    sampled = [span for span in made if "sampled" in span.attributes["otel_gpu.choice"]]
    assert 0 < counted <= after - before
    # One in a thousand, from when the thread is asked to. On a busy machine that is long after the first figure.
    assert 0 < len(sampled) <= (after - before) / 1000 + 1
    assert entries(receiver) == 0
    assert losses(receiver) == {}


@pytest.mark.parametrize("is_asleep", [False, True], ids=["agent reads", "agent stands still"])
def test_of_a_program_that_is_killed_all_that_it_did_is_counted(
    receiver: OtlpReceiver, *, is_asleep: bool
) -> None:
    """Its memory is the agent's, too, also if that comes to read it only afterwards."""
    command = [linked_workload("hot_calls"), "1009", "3"]
    with Agent(receiver, command, flags=("--preload",), stdin=subprocess.PIPE) as agent:
        # What a call took is said when all calls are made.
        agent.next_line()
        (program,) = filter(is_preloaded, child_pids(agent.process.pid))
        if is_asleep:
            agent.signal(signal.SIGSTOP)
        os.kill(program, signal.SIGKILL)
        agent.signal(signal.SIGCONT)
        agent.wait()

    assert calls(receiver, "cudaLaunchKernel", program) == 3 * 1009
    assert losses(receiver) == {}


def test_agents_that_are_killed_leave_a_program_as_it_was(receiver: OtlpReceiver) -> None:
    """It counts on; who comes next reads what is made from then on, and no probe is in the way."""
    command = [linked_workload("hot_calls"), str(10**12), "2", str(50_000)]
    environment = with_preload(os.environ)
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as program:
        counted = functools.partial(calls, receiver, "cudaLaunchKernel", program.pid)
        wait_until(lambda: is_preloaded(program.pid), "the first call")
        for _ in range(2):
            known = counted()
            with Agent(receiver, flags=("--pid", str(program.pid))) as killed:
                receiver.wait_for(lambda: counted() not in (0, known))  # noqa: B023 -- asked now
                killed.signal(signal.SIGKILL)
        before = calls_of(reading_of(program.pid))["cudaLaunchKernel"]
        with Agent(receiver, flags=("--pid", str(program.pid), "--duration", "2")) as last:
            last.wait()
        reading = reading_of(program.pid)
        assert program.poll() is None
        program.kill()

    assert 0 < counted() <= calls_of(reading)["cudaLaunchKernel"] - before
    assert sum(reading.lost) == 0
    assert entries(receiver) == 0
    assert losses(receiver) == {}


def test_a_clock_that_is_ahead_costs_no_count(receiver: OtlpReceiver, tmp_path: Path) -> None:
    """Calls that begin after they end have taken no time."""
    source, tool, program = WORKLOADS / "ahead.c", tmp_path / "libahead.so", tmp_path / "ahead"
    offsets = {
        "SLOTS_OFFSET": wire.PRELOAD_SLOTS_OFFSET,
        "CALLS_OFFSET": wire.PRELOAD_SLOT.before("calls").size,
    }
    flags = [f"-D{name}={offset}" for name, offset in offsets.items()]
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, source, "-o", tool], check=True)
    runtime = stub_libraries().runtime
    found = ["-Wl,--no-as-needed", tool, runtime, f"-Wl,-rpath,{tmp_path}:{runtime.parent}"]
    subprocess.run(["gcc", "-DPROGRAM", source, *found, "-o", program], check=True)
    with Agent(receiver, [program, "101"], flags=("--preload", "--spans", "full")) as agent:
        pid = agent.wait().lines[0]["pid"]

    assert calls(receiver, "cudaMalloc", pid) == 101
    assert len(spans(receiver, "cudaMalloc", pid)) == 101
    assert total(receiver, "otel_gpu.records.rejected") == 0
    assert losses(receiver) == {}


PAST = """
extern int cudaDeviceSynchronize(void);
void work(int calls) { while (calls--) cudaDeviceSynchronize(); }
"""
PASSING = """
import ctypes, os, sys
runtime, past, before, is_apart = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
cuda = ctypes.CDLL(runtime) if before >= 0 else None
for _ in range(before):
    cuda.cudaDeviceSynchronize()
if is_apart:
    libc = ctypes.CDLL(None)
    libc.dlmopen.restype = libc.dlsym.restype = ctypes.c_void_p
    handle = libc.dlmopen(ctypes.c_long(-1), past.encode(), os.RTLD_NOW)
    work = ctypes.CFUNCTYPE(None, ctypes.c_int)(libc.dlsym(ctypes.c_void_p(handle), b"work"))
else:
    work = ctypes.CDLL(past, mode=os.RTLD_NOW | os.RTLD_DEEPBIND).work
cuda = cuda or ctypes.CDLL(runtime)
for _ in range(3):
    work(211)
    cuda.cudaDeviceSynchronize()
"""


@pytest.mark.parametrize("is_apart", [False, True], ids=["deepbind", "dlmopen"])
@pytest.mark.parametrize("before", [-1, 0, 31])
def test_calls_that_bind_past_the_library_are_counted_by_probes(
    receiver: OtlpReceiver, tmp_path: Path, before: int, is_apart: bool
) -> None:
    """The others are counted by the library; -1: CUDA is loaded together with the code that binds past."""
    runtime, past = stub_libraries().runtime, tmp_path / "libpast.so"
    (tmp_path / "past.c").write_text(PAST)
    linked = [runtime, f"-Wl,-rpath,{runtime.parent}"]
    shared = ["gcc", "-shared", "-fPIC", tmp_path / "past.c"]
    subprocess.run([*shared, *linked, "-o", past], check=True)
    command = [sys.executable, "-c", PASSING, runtime, past, str(before), str(int(is_apart))]
    with Agent(receiver, command, flags=("--preload",)) as agent:
        agent.wait()

    preloaded = max(0, before) + 3
    assert calls(receiver, "cudaDeviceSynchronize") == preloaded + 3 * 211
    assert total(receiver, "otel_gpu.preload.calls") == preloaded
    assert losses(receiver) == {}


def test_of_a_program_that_may_not_have_the_memory_probes_count_whenever_somebody_comes(
    receiver: OtlpReceiver,
) -> None:
    """It says so again and again, as it may be the first thing that an agent hears of it."""
    limit = ["prlimit", f"--fsize={1 << 20}"]
    command = [*limit, linked_workload("hot_calls"), str(10**12), "2", str(5_000)]
    environment = with_preload(os.environ)
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as program:
        threads = Path(f"/proc/{program.pid}/task")
        wait_until(lambda: len(list(threads.iterdir())) == 3, "its threads")
        with Agent(receiver, flags=("--pid", str(program.pid), "--duration", "3")) as agent:
            agent.wait()
        program.kill()

    assert calls(receiver, "cudaLaunchKernel", program.pid) > 10_000
    assert total(receiver, "otel_gpu.preload.calls") == 0
    assert entries(receiver) > 10_000
