"""Storms of short programs, and the number of their calls that a receiver counted."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kernel.agent import CALL_DURATION, environment_for
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

API = "cudaMalloc"
# Counts restart at zero after a program ends, so the total is the sum of the deltas.
DELTA = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}


def storm(stubs: StubLibraries, *arguments: object) -> list[str]:
    """Return the command of a storm; tests/workloads/storm.c describes its arguments."""
    return [str(workload("storm")), str(stubs.runtime), *map(str, arguments)]


@contextmanager
def waiting_storm(command: list[str]) -> Iterator[Any]:
    """Return the command of a storm that waits for a line of input; it prints its parent's pid first."""
    with subprocess.Popen(
        [*command, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment_for(None),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def counted(receiver: OtlpReceiver) -> Counter[int]:
    """Return the number of calls of each process, as the sum of the deltas."""
    found: Counter[int] = Counter()
    for key, point in receiver.points():
        if key.name == CALL_DURATION and key.pid and key.attribute("gpu.cuda.api") == API:
            found[key.pid] += point.point.count
    return found
