"""What samples of threads that are on a CPU cost: the agent, and those threads."""

import collections
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.result import Result, spread
from benchmarks.subjects import cpu_share
from otel_gpu import wire
from otel_gpu.capture.bpf.cpu_sampling import OnCpuSampling
from otel_gpu.config import Config, load
from tests.kernel.agent import Agent, environment_for, total
from tests.kernel.sampling import Capture, Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, copy_of_runtime

AGENT_BOUND = 0.05
PROGRAM_BOUND = 0.01
FRAMES = 20
CPUS = 2
CALLS = 300_000
# The program pays so little that it is measured at a multiple of the rate.
TIMES = 10
TAKEN = "otel_gpu.cpu_samples.taken"


def run(*, quick: bool = False) -> list[Result]:
    """Measure the agent with two busy processes, and a program with 20 frames of Python."""
    return [agent(5.0 if quick else 20.0), program(20 if quick else 100)]


def agent(seconds: float) -> Result:
    """Return the CPU time of the agent when two CPUs are busy, as a share of a core."""
    with OtlpReceiver() as receiver, _busy() as pid:
        floor, _ = _share(receiver, pid, seconds, enabled=False)
        share, per_s = _share(receiver, pid, seconds, enabled=True)
    return Result(
        what="agent CPU, two busy CPUs sampled",
        value=100 * share,
        unit="% core",
        floor=100 * floor,
        floor_is="the same without samples",
        ratio=share / AGENT_BOUND,
        bound="under 5 % of a core",
        held=share < AGENT_BOUND,
        note=f"{per_s:.0f} samples/s were taken: {1e6 * (share - floor) / per_s:.0f} us each",
    )


def program(rounds: int) -> Result:
    """Return how much more CPU time the same work takes while it is sampled."""
    rate_hz = Config().samples.rate_hz
    options = {"samples.rate_hz": TIMES * rate_hz, "samples.stacks_per_second": 100_000}
    config = load(None, {}, options)
    with tempfile.TemporaryDirectory() as folder:
        own, other = (copy_of_runtime(Path(folder) / name) for name in ("own", "other"))
        command = (sys.executable, WORKLOADS / "timed.py", own, str(FRAMES))
        # Its own calls have no probes.
        with Subject(command) as subject, Capture(other, config) as capture:
            capture.watch_python(subject)
            sampling = OnCpuSampling(capture.programs, config)
            ratios, off_ns = [], []
            for _ in range(rounds):
                spent_ns = []
                for is_on in (False, True):
                    sampling.adjust(is_watching=is_on)
                    before_ns = _runtime_ns(subject.pid)
                    subject.ask(CALLS)
                    spent_ns.append(_runtime_ns(subject.pid) - before_ns)
                    collections.deque(capture.programs.events.read(), maxlen=0)
                off_ns.append(spent_ns[0])
                ratios.append(spent_ns[1] / spent_ns[0] - 1)
            samples = capture.programs.read_counters()[wire.COUNTER_CPU_SAMPLES]
    added = median(ratios) / TIMES
    a_sample_ns = median(ratios) * median(off_ns) * rounds / samples
    return Result(
        what=f"time added to a program, {FRAMES} frames of Python",
        value=100 * added,
        unit="%",
        floor=median(off_ns),
        floor_is="ns of the same work, not sampled",
        ratio=added / PROGRAM_BOUND,
        bound="at most 1 %",
        held=added <= PROGRAM_BOUND,
        note=(
            f"at {TIMES} times the rate {100 * median(ratios):.2f} %, "
            f"{spread([100 * one for one in ratios])}; {a_sample_ns:,.0f} ns a sample"
        ),
    )


def _runtime_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0])


@contextmanager
def _busy() -> Iterator[int]:
    command = [sys.executable, WORKLOADS / "busy.py", str(FRAMES), str(CPUS)]
    with subprocess.Popen(command, env=environment_for(None), start_new_session=True) as process:
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _share(
    receiver: OtlpReceiver, pid: int, seconds: float, *, enabled: bool
) -> tuple[float, float]:
    # Of a core, and how many samples were taken a second.
    receiver.clear()
    env = {
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_GPU_SAMPLES_ENABLED": str(enabled).lower(),
        # So that they fill the budget where other programs have most of the CPUs, too.
        "OTEL_GPU_SAMPLES_RATE_HZ": str(TIMES * Config().samples.rate_hz),
    }
    with Agent(receiver, flags=("--pid", str(pid)), env=env) as observer:
        receiver.wait_for(lambda: any(key.name == TAKEN for key in receiver.metrics()), 30)
        # Most of what is met for the first time is met now.
        cpu_share(observer.process.pid, seconds)
        taken, start_s = total(receiver, TAKEN), time.monotonic()
        share = cpu_share(observer.process.pid, seconds)
        per_s = (total(receiver, TAKEN) - taken) / (time.monotonic() - start_s)
    return share, per_s
