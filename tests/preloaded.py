"""Programs with a door, and what their doors have counted."""

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
from otel_gpu.capture.preload.shared_memory import DoorReading, read_door
from otel_gpu.wire.probe_table import API_BY_NUMBER

LIBRARY = Path(otel_gpu.__file__).parent / "_native" / f"door.{platform.machine()}.so"
_MAPPING = re.compile(r"^(\w+)-(\w+) .*memfd:otel_gpu_door", re.MULTILINE)


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    preload: Sequence[Path] = (LIBRARY,),
    user: int | None = None,
    **environment: str,
) -> Iterator[subprocess.Popen[str]]:
    """Start a program with the door; its standard input ends with the block."""
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


def has_door(pid: int) -> bool:
    """Whether the process has a door that has counted anything."""
    return _MAPPING.search(Path(f"/proc/{pid}/maps").read_text()) is not None


def address_of(pid: int) -> int:
    """Return where a process has its door's memory."""
    found = _MAPPING.search(Path(f"/proc/{pid}/maps").read_text())
    assert found is not None, f"process {pid} has no door"
    start, end = (int(number, 16) for number in found.groups())
    assert end - start == wire.DOOR_BYTES
    return start


def reading_of(pid: int) -> DoorReading:
    """Read the memory of a process's door."""
    start = address_of(pid)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        return read_door(lambda offset, size: os.pread(memory, size, start + offset))
    finally:
        os.close(memory)


def count_of(aggregate: bytes) -> int:
    """Return how many values an aggregate has."""
    values = wire.AGGREGATE.named(aggregate)
    return sum(n for name, n in values.items() if name.startswith("buckets_"))


def series_of(reading: DoorReading, metric: int = wire.METRIC_CALL_DURATION) -> list[Any]:
    """Return the series of a metric, as (key, aggregate), each by its fields."""
    return [
        (key, {**wire.AGGREGATE.named(aggregate), "count": count_of(aggregate)})
        for key, aggregate in (
            (wire.DOOR_KEY.named(key), aggregate) for key, aggregate in reading.series.items()
        )
        if key["metric"] == metric
    ]


def calls_of(reading: DoorReading) -> Mapping[str, int]:
    """Return how many calls were counted, by the names of their APIs."""
    calls: Counter[str] = Counter()
    for key, aggregate in series_of(reading):
        calls[API_BY_NUMBER[key["api"]].name] += aggregate["count"]
    return calls
