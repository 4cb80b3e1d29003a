"""Preloaded programs, and the calls that they have counted."""

import os
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import otel_gpu
from otel_gpu import wire
from otel_gpu.capture.preload.shared_memory import PreloadReading, read_memory
from otel_gpu.wire.probe_table import API_BY_NUMBER

LIBRARY = Path(otel_gpu.__file__).parent / "_preload" / f"otel_gpu_preload.{platform.machine()}.so"
_MAPPING = re.compile(r"^(\w+)-(\w+) .*memfd:otel_gpu_preload", re.MULTILINE)


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    preload: Sequence[Path] = (LIBRARY,),
    user: int | None = None,
    **environment: str,
) -> Iterator[subprocess.Popen[str]]:
    """Start a program with the preload library; its standard input ends with the block."""
    variables = {**os.environ, "LD_PRELOAD": ":".join(map(str, preload)), **environment}
    with subprocess.Popen(
        [str(part) for part in command],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        process.communicate()


def is_preloaded(pid: int) -> bool:
    """Whether the process has counted any call itself."""
    return _MAPPING.search(Path(f"/proc/{pid}/maps").read_text()) is not None


def address_of(pid: int) -> int:
    """Return where a process has the memory that it counts in."""
    found = _MAPPING.search(Path(f"/proc/{pid}/maps").read_text())
    assert found is not None, f"process {pid} does not count its calls"
    start, end = (int(number, 16) for number in found.groups())
    assert end - start == wire.PRELOAD_BYTES
    return start


def reading_of(pid: int) -> PreloadReading:
    """Read the memory that a process counts in."""
    start = address_of(pid)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return read_memory(lambda offset, size: os.pread(memory, size, start + offset))
    finally:
        os.close(memory)


def count_of(aggregate: bytes) -> int:
    """Return how many values an aggregate has."""
    values = wire.AGGREGATE.named(aggregate)
    return sum(n for name, n in values.items() if name.startswith("buckets_"))


def series_of(reading: PreloadReading, metric: int = wire.METRIC_CALL_DURATION) -> list[Any]:
    """Return the series of a metric, as (key, aggregate), each by its fields."""
    return [
        (key, {**wire.AGGREGATE.named(aggregate), "count": count_of(aggregate)})
        for key, aggregate in (
            (wire.PRELOAD_KEY.named(key), aggregate) for key, aggregate in reading.series.items()
        )
        if key["metric"] == metric
    ]


def calls_of(reading: PreloadReading) -> Mapping[str, int]:
    """Return how many calls were counted, by the names of their APIs."""
    calls: Counter[str] = Counter()
    for key, aggregate in series_of(reading):
        calls[API_BY_NUMBER[key["api"]].name] += aggregate["count"]
    return calls
