"""CPU time of the agent's user-space side: counting much, and sending much."""

from benchmarks.result import Result
from benchmarks.subjects import agent_on, calls_made, cpu_share, steady_load
from tests.kernel.agent import calls, losses, total
from tests.receiver import OtlpReceiver

API = "cudaStreamSynchronize"
COUNTING_BOUND = 0.02
SENDING_BOUND = 0.40
UNLIMITED = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000"}


def run(*, quick: bool = False) -> list[Result]:
    """Measure the agent at rest, at 100 k calls/s, and at 20 k spans/s."""
    seconds = 5.0 if quick else 15.0
    return [_counting(seconds), _sending(seconds)]


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
    full = ("--spans", "full")
    with OtlpReceiver() as receiver:
        counting = _share(receiver, 20_000, seconds)
        sending = _share(receiver, 20_000, seconds, flags=full, env=UNLIMITED)
    return Result(
        what="agent CPU at 20 k full spans/s to OTLP",
        value=100 * sending["share"],
        unit="% core",
        floor=100 * counting["share"],
        floor_is="the same calls, chosen spans only",
        ratio=sending["share"] / SENDING_BOUND,
        bound="under 40 % of a core",
        held=sending["share"] < SENDING_BOUND,
        note=(
            f"{sending['spans_per_s']:,.0f} spans/s arrived of {sending['per_s']:,.0f} calls/s; "
            f"dropped {sending['dropped']:.0f}, lost {sending['lost']:.0f}"
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
