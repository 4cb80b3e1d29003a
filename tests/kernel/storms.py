"""Storms of short programs, and how many calls of theirs a receiver counted."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kernel.agent import CALL_DURATION, environment_for
from tests.receiver import OtlpReceiver
from tests.stubs.build import StubLibraries, workload

API = "cudaMalloc"
# An image that ends begins again at zero, so what was counted is the sum of the deltas.
DELTA = {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "delta"}


def storm(stubs: StubLibraries, *arguments: object) -> list[str]:
    """The command of a storm; tests/workloads/storm.c says what its arguments are."""
    return [str(workload("storm")), str(stubs.runtime), *map(str, arguments)]


@contextmanager
def waiting_storm(command: list[str]) -> Iterator[Any]:
    """A storm that begins when it gets a line; its first line has the pid of its parent."""
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
    """How many calls each process made, by the sum of the deltas."""
    found: Counter[int] = Counter()
    for key, point in receiver.points():
        if key.name == CALL_DURATION and key.pid and key.attribute("gpu.cuda.api") == API:
            found[key.pid] += point.point.count
    return found
