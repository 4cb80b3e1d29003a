"""A receiver that is down for a minute at 5 k chosen spans/s: what it costs, what is lost."""

import time
from typing import NamedTuple

from benchmarks.result import Result
from benchmarks.subjects import agent_on, calls_made, resident_bytes, steady_load
from tests.kernel.agent import calls, losses, total
from tests.receiver import OtlpReceiver

API = "cudaStreamSynchronize"
MIB = 1024 * 1024
QUEUE_BYTES = 8 * MIB
FLAT_SHARE = 0.05
ENV = {
    "OTEL_GPU_SPANS_MODE": "full",
    "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
    "OTEL_GPU_EXPORT_QUEUE_BYTES": str(QUEUE_BYTES),
    # Drops are counted whatever a span is of, so that every span has to be one that the
    # kernel chose: a stall can be two, and a chain is several that nobody chose.
    "OTEL_GPU_EXPLAIN_ENABLED": "false",
    "OTEL_GPU_SPANS_STALL_FLOOR_MS": "3600000",
    "OTEL_GPU_SPANS_CALL_STALL_FLOOR_MS": "3600000",
}


class Spans(NamedTuple):
    """Where the spans are that the kernel chose."""

    chosen: int
    arrived: int
    dropped: int


def count_spans(receiver: OtlpReceiver) -> Spans:
    """Count spans of all kinds: whoever drops one does not say what it was of."""
    return Spans(
        total(receiver, "otel_gpu.spans.chosen"),
        len(receiver.spans()),
        total(receiver, "otel_gpu.spans.dropped"),
    )


def run(*, quick: bool = False) -> list[Result]:
    """Take the receiver away, bring it back, and compare counts with calls made."""
    seconds = 15 if quick else 60
    samples: list[int] = []
    with OtlpReceiver() as receiver, steady_load(5_000, seconds + 90, 1) as load:
        with agent_on(load.pid, receiver, env=ENV) as agent:
            receiver.wait_for(lambda: calls(receiver, API, load.pid), 20)
            before_bytes = resident_bytes(agent.process.pid)
            receiver.stop()
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                time.sleep(0.25)
                samples.append(resident_bytes(agent.process.pid))
            receiver.start()
            seen = len(receiver.requests("traces"))
            receiver.wait_for(lambda: len(receiver.requests("traces")) > seen, 60)
            load.terminate()
            made = calls_made(load)
            agent.signal(2)
            agent.wait()
        chosen, received, dropped = count_spans(receiver)
        counted = calls(receiver, API, load.pid)
        missed = made[API] - counted
        lost = losses(receiver)
    third = len(samples) // 3
    # The queue fills in the first third; from then on the oldest spans are dropped.
    early, late = max(samples[third : 2 * third]), max(samples[2 * third :])
    unaccounted = chosen - received - dropped
    return [
        Result(
            what=f"memory, {seconds} s without a receiver at 5 k spans/s",
            value=late / MIB,
            unit="MiB",
            floor=early / MIB,
            floor_is=f"the middle third; {before_bytes / MIB:.0f} before",
            ratio=late / early,
            bound=f"flat: at most {1 + FLAT_SHARE}",
            held=late <= early * (1 + FLAT_SHARE),
        ),
        Result(
            what="spans accounted for after it",
            value=received + dropped,
            unit="spans",
            floor=chosen,
            floor_is="spans chosen",
            ratio=(received + dropped) / chosen,
            bound="exactly 1",
            held=unaccounted == 0,
            note=(
                f"{received:,} arrived, {dropped:,} dropped and counted; lost {lost}; "
                f"calls counted {counted:,} of {made[API]:,}, {missed:,} of them made before the "
                "probes stood"
            ),
        ),
    ]
