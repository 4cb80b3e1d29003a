"""Memory of blame over a long capture, with many processes and much that is slow in it."""

import multiprocessing
import random
from collections.abc import Iterator
from typing import Any

from benchmarks.peak_memory import own_peak_mib
from benchmarks.result import Result
from otel_gpu import wire
from otel_gpu.enrich.activities import Activity, PressureActivity
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.explainer import Explainer
from otel_gpu.report.collector import Collector
from tests.activities import (
    SECOND,
    T0,
    aggregate,
    call,
    calls,
    capture,
    fork,
    gap,
    image,
    open_call,
    series,
    snapshot,
    stall,
    thread_time,
    times,
)

MIB = 1024 * 1024
MS = 1_000_000
US = 1_000
EXPLAINER_BOUND_MIB = 128
REPORT_BOUND_MIB = 256
ACTIVITIES = 1_000_000
QUICK_ACTIVITIES = 200_000
# More of everything than is remembered: processes come, work side by side, and go.
ALIVE = 64
THREADS = 8
ACTIVITIES_PER_PROCESS = 100
ACTIVITIES_PER_READING = 1_000
NS_PER_ACTIVITY = 1 * MS


def run(*, quick: bool = False) -> list[Result]:
    """Explain a stream that nobody holds, in a process of its own, and watch its peak."""
    count = QUICK_ACTIVITIES if quick else ACTIVITIES
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        explainer, collector = pool.map(measure, [(False, count), (True, count)], chunksize=1)
    return [
        result("the explainer", explainer, count, EXPLAINER_BOUND_MIB),
        result("explainer and report", collector, count, REPORT_BOUND_MIB),
    ]


def result(what: str, peaks: dict[str, float], count: int, bound_mib: int) -> Result:
    """Return what the peak grew by, and how much of that in the second half."""
    half, whole = peaks["half"], peaks["whole"]
    return Result(
        what=f"memory of {what}, {count:,} activities",
        value=whole,
        unit="MiB",
        floor=half,
        floor_is="after half of them",
        ratio=whole / half,
        bound=f"under {bound_mib} MiB",
        held=whole < bound_mib,
        note=(
            f"{peaks['chains']:,.0f} chains, {peaks['images']:,.0f} process images; "
            f"after a tenth {peaks['tenth']:.1f} MiB"
        ),
    )


def measure(job: tuple[bool, int]) -> dict[str, float]:
    """Push a stream through, and return the growth of the peak on the way, in MiB."""
    with_report, count = job
    explainer = Explainer()
    collector = Collector(explainer) if with_report else None
    marks = {count // 10: "tenth", count // 2: "half"}
    peaks: dict[str, float] = {"chains": 0}
    # What making activities takes by itself is not counted.
    for _ in stream(1_000):
        pass
    before_mib = own_peak_mib()
    for number, activity in enumerate(stream(count)):
        if collector is not None:
            collector.observe(activity)
        else:
            peaks["chains"] += sum(1 for _ in explainer.push(activity))
            for _ in explainer.closed_incidents():
                pass
        if number in marks:
            peaks[marks[number]] = own_peak_mib() - before_mib
    if collector is not None:
        peaks["chains"] = len(collector.finish("a benchmark").chains)
    else:
        peaks["chains"] += sum(1 for _ in explainer.close())
        assert explainer.incidents()
    peaks["whole"] = own_peak_mib() - before_mib
    peaks["images"] = count / ACTIVITIES_PER_PROCESS + ALIVE
    return peaks


def stream(count: int) -> Iterator[Activity]:
    """Yield a capture of many processes: calls, gaps, stalls, forks and readings."""
    chance = random.Random(1)  # noqa: S311 -- the same stream every time
    yield capture()
    alive = [image(1000 + number, number + 1) for number in range(ALIVE)]
    born = ALIVE
    for number in range(count - 1):
        now = SECOND + number * NS_PER_ACTIVITY
        if number % ACTIVITIES_PER_READING == 0:
            yield from readings(chance, alive, now)
        if number % ACTIVITIES_PER_PROCESS == 0:
            born += 1
            alive[born % ALIVE] = image(1000 + born, now)
        yield one(chance, chance.choice(alive), alive, now)


def one(chance: random.Random, process: Program, alive: list[Program], now: int) -> Activity:
    """Return what a thread of a process did last; one in five is slow."""
    tid = 100 * process.pid + chance.randrange(THREADS)
    duration = chance.randrange(10, 100) * (MS if chance.random() < 0.2 else US)
    start = now - duration
    kind = chance.random()
    if kind < 0.45:
        return stall_of(chance, process, chance.choice(alive), tid, now, duration)
    if kind < 0.85:
        api = chance.choice(("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"))
        waited: dict[str, Any] = {"blocked_ns": duration // 2, "run_queue_ns": duration // 4}
        choices = wire.CHOICE_SLOW | wire.CHOICE_STALLED
        return call(process, api, start, duration, tid=tid, choices=choices, **waited)
    if kind < 0.97:
        apis = ("cudaStreamSynchronize", "cudaLaunchKernel")
        return gap(process, *apis, start, now, tid=tid, blocked_ns=duration // 2)
    if kind < 0.98:
        return open_call(process, "cudaStreamSynchronize", start - SECOND, now, tid=tid)
    return fork(process, image(process.pid + 500_000, now), start, now)


def stall_of(
    chance: random.Random,
    process: Program,
    other: Program,
    tid: int,
    now: int,
    duration: int,
) -> Activity:
    """Return a wait that a thread of another process ended, and then had the CPU."""
    other_tid = 100 * other.pid + chance.randrange(THREADS)
    waker = {"waker_pid": other.pid, "waker_tid": other_tid, "waker_comm": other.comm}
    culprit = {"culprit_pid": other.pid, "culprit_tid": other_tid, "culprit_comm": other.comm}
    return stall(
        process,
        now - duration,
        now - duration // 2,
        now,
        tid=tid,
        reason=chance.choice(("ipc", "lock", "io", "gil", "sleep", "unknown")),
        functions=("schedule", "pipe_read", "vfs_read", "ksys_read", "do_syscall_64"),
        **waker,
        **culprit,
    )


def readings(chance: random.Random, alive: list[Program], now: int) -> Iterator[Activity]:
    """Yield what the agent reads now and then: histograms, the time account, the load."""
    at_s = now / SECOND
    counted = [
        calls(process, api, [chance.randrange(10, 100) * US] * 50)
        for process in alive
        for api in ("cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc")
    ]
    gaps = [series(process, wire.METRIC_LAUNCH_GAP, aggregate([20 * US] * 50)) for process in alive]
    yield snapshot(at_s, *counted, *gaps)
    yield times(
        at_s,
        *(
            thread_time(process, state, wire.CONTEXT_GAP, now // 10, reason=reason)
            for process in alive
            for state, reason in (
                (wire.STATE_ON_CPU, ""),
                (wire.STATE_RUN_QUEUE, ""),
                (wire.STATE_BLOCKED, "ipc"),
            )
        ),
    )
    cgroups = {
        f"/pod{process.pid}": {
            "nr_throttled": now // SECOND,
            "throttled_ns": now // 20,
            "nr_periods": now // (100 * MS),
            "pids": [process.pid],
        }
        for process in alive
    }
    yield PressureActivity(T0 + now, {"psi": {}, "load1": 1.0, "cpus": 2, "cgroups": cgroups})
