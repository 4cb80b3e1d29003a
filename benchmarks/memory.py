"""Resident memory of the agent: how much, and whether it grows."""

import time
from statistics import median

from benchmarks.result import Result
from benchmarks.subjects import agent_on, resident_bytes, steady_load
from tests.kernel.agent import calls
from tests.receiver import OtlpReceiver

API = "cudaStreamSynchronize"
BOUND_BYTES = 100 * 1024 * 1024
FLAT_SHARE = 0.02
MIB = 1024 * 1024


def run(*, quick: bool = False) -> list[Result]:
    """Watch resident memory at 2 000 spans/s and 20 000 calls/s."""
    seconds = 20 if quick else 120
    env = {"OTEL_GPU_SPANS_RATE_PER_PROCESS": "2000", "OTEL_GPU_SPANS_MODE": "full"}
    samples: list[int] = []
    with (
        OtlpReceiver() as receiver,
        steady_load(20_000, seconds + 30) as load,
        agent_on(load.pid, receiver, env=env) as agent,
    ):
        receiver.wait_for(lambda: calls(receiver, API, load.pid), 20)
        first_bytes = resident_bytes(agent.process.pid)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(0.5)
            samples.append(resident_bytes(agent.process.pid))
    third = len(samples) // 3
    # The first third is warm-up: caches and buffers find their size.
    early, late = median(samples[third : 2 * third]), median(samples[2 * third :])
    growth = late / early - 1
    return [
        Result(
            what="resident memory",
            value=max(samples) / MIB,
            unit="MiB",
            floor=first_bytes / MIB,
            floor_is="just after the start",
            ratio=max(samples) / BOUND_BYTES,
            bound="under 100 MiB",
            held=max(samples) < BOUND_BYTES,
        ),
        Result(
            what="its growth over time",
            value=(late - early) / MIB,
            unit="MiB",
            floor=early / MIB,
            floor_is="the middle third",
            ratio=1 + growth,
            bound=f"flat: at most {1 + FLAT_SHARE}",
            held=growth <= FLAT_SHARE,
            note=f"over {seconds} s",
        ),
    ]
