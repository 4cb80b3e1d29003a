"""A receiver that goes away and comes back."""

import signal
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, points, total, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

pytestmark = pytest.mark.kernel

API = "cudaStreamSynchronize"
MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * 4096


def test_an_outage_costs_spans_that_are_counted_and_no_metrics(
    receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """
    At 5 000 chosen spans a second against a dead receiver, memory stays bounded, what was
    dropped is counted, and cumulative metrics are exact afterwards.
    """
    env = {
        "OTEL_GPU_SPANS_MODE": "full",
        "OTEL_GPU_SPANS_RATE_PER_PROCESS": "1000000",
        "OTEL_GPU_EXPORT_QUEUE_BYTES": str(MIB),
        "OTEL_GPU_EXPORT_BATCH_BYTES": str(MIB // 4),
    }
    with Agent(receiver, [workload("steady"), stubs.runtime, "5000", "60"], env=env) as agent:
        pid = agent.next_line()["pid"]
        receiver.wait_for(lambda: calls(receiver, API, pid))
        receiver.stop()
        before_bytes = resident_bytes(agent.process.pid)
        # One MiB of spans is some five thousand: the queue overflows within this, also on a busy machine.
        growth = []
        deadline = iter(range(300))
        wait_until(
            lambda: growth.append(resident_bytes(agent.process.pid)) or next(deadline, -1) >= 200,
            "the outage",
        )
        receiver.start()
        receiver.wait_for(lambda: total(receiver, "otel_gpu.spans.dropped"))
        agent.signal(signal.SIGTERM)
        made = agent.wait().lines[-1]

    assert max(growth) - before_bytes < 40 * MIB
    assert calls(receiver, API, pid) == made[API]
    received = sum(span.scope == "otel_gpu.cuda" for span in receiver.spans())
    chosen = total(receiver, "otel_gpu.spans.chosen", otel_gpu__span__source="call")
    dropped = total(receiver, "otel_gpu.spans.dropped")
    lost = losses(receiver).get("ring_full", 0)
    # What found no room may also have been a stall.
    assert made[API] - lost <= chosen <= made[API]
    # A batch in flight when the receiver died may have arrived and be counted as dropped.
    stalls = sum(span.scope == "otel_gpu.sched" for span in receiver.spans())
    assert received + stalls + dropped >= chosen
    assert dropped > 0
    assert len(points(receiver, "otel_gpu.spans.dropped")) >= 1
