"""CPU time of the agent's user-space side: at rest, counting much, sending much, and many stacks."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.result import Result
from benchmarks.subjects import agent_on, calls_made, cpu_share, steady_load
from tests.kernel.agent import ROOT, calls, environment_for, losses, total
from tests.receiver import OtlpReceiver

API = "cudaStreamSynchronize"
REST_BOUND = 0.005
# It starts, and settles.
REST_BEGINS_S = 8.0
COUNTING_BOUND = 0.02
SENDING_BOUND = 0.40
STACKS_BOUND = 0.25
NO_STACKS = {"OTEL_GPU_STACKS_ENABLED": "false"}
UNLIMITED = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000"}
FULL = ("--spans", "full")


def run(*, quick: bool = False) -> list[Result]:
    """Measure the agent at rest, at 100 k calls/s, at 20 k spans/s, and at 2 k stacks/s."""
    seconds = 5.0 if quick else 15.0
    return [
        _resting(15.0 if quick else 60.0),
        _counting(seconds),
        _sending(seconds),
        _unwinding(seconds),
    ]


def _resting(seconds: float) -> Result:
    """Measure the agent on one call a second: with a store, and with metrics each second beside it."""
    with OtlpReceiver() as receiver:
        metrics = _share(receiver, 1, seconds)
    with tempfile.TemporaryDirectory() as folder, steady_load(1, int(seconds) + 60) as load:
        command = [
            *(sys.executable, "-m", "otel_gpu", "run", "--pid", str(load.pid)),
            *("--summary", "never", "--store", str(Path(folder) / "store.db")),
        ]
        environment = environment_for(None) | {"OTEL_GPU_STORE_ENABLED": "auto"}
        with subprocess.Popen(command, cwd=ROOT, env=environment) as agent:
            time.sleep(REST_BEGINS_S)
            share = cpu_share(agent.pid, seconds)
            before, began_s = _wake_ups(agent.pid), time.monotonic()
            time.sleep(5)
            woken = (_wake_ups(agent.pid) - before) / (time.monotonic() - began_s)
            agent.terminate()
    return Result(
        what="agent CPU at rest, one call a second, with a store",
        value=100 * share,
        unit="% core",
        floor=100 * metrics["share"],
        floor_is="with OTLP in its place, metrics each second",
        ratio=share / REST_BOUND,
        bound="under 0.5 % of a core",
        held=share < REST_BOUND,
        note=f"its threads woke up {woken:.1f} times a second",
    )


def _wake_ups(pid: int) -> int:
    """Return how often the threads of a process have slept by now."""
    statuses = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(
        int(line.split()[1])
        for status in statuses
        for line in status.splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def _counting(seconds: float) -> Result:
    with OtlpReceiver() as receiver:
        idle = _share(receiver, 1, seconds)
        busy = _share(receiver, 100_000, seconds)
    return Result(
        what="agent CPU at 100 k calls/s, few spans",
        value=100 * busy["share"],
        unit="% core",
        floor=100 * idle["share"],
        floor_is="the same at 1 call/s",
        ratio=busy["share"] / COUNTING_BOUND,
        bound="under 2 % of a core",
        held=busy["share"] < COUNTING_BOUND,
        note=f"{busy['per_s']:,.0f} calls/s were made; {busy['spans_per_s']:,.0f} spans/s sent",
    )


def _sending(seconds: float) -> Result:
    with OtlpReceiver() as receiver:
        counting = _share(receiver, 20_000, seconds, env=NO_STACKS)
        sending = _share(receiver, 20_000, seconds, flags=FULL, env=NO_STACKS | UNLIMITED)
    return _result("20 k full spans/s to OTLP, no stacks", sending, counting, SENDING_BOUND)


def _unwinding(seconds: float) -> Result:
    # The default rate is just that.
    with OtlpReceiver() as receiver:
        sending = _share(receiver, 2_000, seconds, flags=FULL, env=NO_STACKS)
        unwinding = _share(receiver, 2_000, seconds, flags=FULL)
    what = "2 k full spans/s to OTLP, all with stacks"
    return _result(what, unwinding, sending, STACKS_BOUND, "the same without stacks")


def _result(
    what: str,
    one: dict[str, float],
    floor: dict[str, float],
    bound: float,
    floor_is: str = "the same calls, chosen spans only",
) -> Result:
    return Result(
        what=f"agent CPU at {what}",
        value=100 * one["share"],
        unit="% core",
        floor=100 * floor["share"],
        floor_is=floor_is,
        ratio=one["share"] / bound,
        bound=f"under {bound:.0%} of a core".replace("%", " %"),
        held=one["share"] < bound,
        note=(
            f"{one['spans_per_s']:,.0f} spans/s arrived of {one['per_s']:,.0f} calls/s; "
            f"dropped {one['dropped']:.0f}, lost {one['lost']:.0f}"
        ),
    )


def _share(
    receiver: OtlpReceiver,
    calls_per_second: int,
    seconds: float,
    *,
    flags: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> dict[str, float]:
    # Time for the agent to start and to settle comes on top.
    with steady_load(calls_per_second, int(seconds) + 30) as load:
        with agent_on(load.pid, receiver, flags=flags, env=env) as agent:
            receiver.wait_for(lambda: calls(receiver, API, load.pid), 20)
            share = cpu_share(agent.process.pid, seconds)
            load.terminate()
            made = calls_made(load)
            agent.signal(2)
            agent.wait()
        dropped = total(receiver, "otel_gpu.spans.dropped")
        elapsed_s = made["elapsed_ns"] / 1e9
        first = next(iter(receiver.requests("traces")), None)
        last = receiver.requests("traces")[-1] if first else None
        window_s = (last.received_unix_ns - first.received_unix_ns) / 1e9 if first and last else 0
        return {
            "share": share,
            "per_s": made[API] / elapsed_s,
            "spans_per_s": len(receiver.spans()) / window_s if window_s else 0.0,
            "dropped": dropped,
            "lost": sum(losses(receiver).values()),
        }
