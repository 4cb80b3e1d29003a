"""The flight recorder: what writing costs, and how long a question about the end takes."""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.days import day
from benchmarks.peak_memory import own_peak_mib, run_measured
from benchmarks.result import Result
from otel_gpu.enrich.activities import Activity
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.recorder import open_writer

MIB = 1 << 20
ROWS_PER_S = 20_000
WRITING_BOUND = 0.15
EXPLAIN_BOUND_S = 2.0
# As many as a day has when a node chooses a hundred a second.
DAY_ROWS, DAY_S = 10_000_000, 86_400
QUICK_ROWS, QUICK_S = 1_000_000, 8_640
# So that all ten million are in it: the default keeps the latest gigabyte.
ROOM_BYTES = 4 << 30
FULL_BYTES = 64 * MIB


_Result = TypeVar("_Result")


class Written(NamedTuple):
    """A store, and what it took to write it."""

    path: Path
    activities: int
    cpu_s: float
    peak_mib: float
    largest_bytes: int


def run(*, quick: bool = False) -> list[Result]:
    """Write at a steady rate; then a long day, and explain its last five minutes."""
    rows, seconds = (QUICK_ROWS, QUICK_S) if quick else (DAY_ROWS, DAY_S)
    with tempfile.TemporaryDirectory(prefix="otel-gpu-store-") as folder:
        writing = [
            _writing(Path(folder), 3 if quick else 15, limit) for limit in (None, FULL_BYTES)
        ]
        written = _apart(_write_day, Path(folder) / "day.db", rows, seconds, ROOM_BYTES)
        explained = _explaining(written)
        full = _apart(_write_day, Path(folder) / "full.db", rows // 4, seconds // 4, FULL_BYTES)
        return [*writing, *explained, _size(written), _limit(full), _memory(written)]


def _writing(folder: Path, seconds: int, max_bytes: int | None) -> Result:
    """Write activities that are ready, at their rate, as a capture does."""
    activities = list(day(ROWS_PER_S * seconds, seconds, slow_one_in=10**9))
    limits = StoreLimits() if max_bytes is None else StoreLimits(max_bytes=max_bytes)
    with open_writer(folder / f"rate-{max_bytes}.db", limits, live=True) as writer:
        share = _share(activities, writer.observe)
    lost = sum(writer.lost().values())
    floor = _share(activities, lambda _: None)
    state = "" if max_bytes is None else f", {max_bytes // MIB} MiB that are full"
    return Result(
        what=f"writing {ROWS_PER_S:,} rows/s{state}",
        value=100 * share,
        unit="% core",
        floor=100 * floor,
        floor_is="the same without a store",
        ratio=(share - floor) / WRITING_BOUND,
        bound="under 15 % of a core",
        held=share - floor < WRITING_BOUND and not lost,
        note=f"{len(activities):,} activities in {seconds} s, {lost} rows lost",
    )


def _share(activities: Iterable[Activity], observe: Callable[[Activity], object]) -> float:
    begin_s, cpu_s = time.monotonic(), time.process_time()
    for number, activity in enumerate(activities):
        observe(activity)
        if number % 500 == 0:
            time.sleep(max(0.0, begin_s + number / ROWS_PER_S - time.monotonic()))
    return (time.process_time() - cpu_s) / (time.monotonic() - begin_s)


def _apart(function: Callable[..., _Result], *arguments: object) -> _Result:
    # In a process of its own, whose peak of memory is its own too.
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def _write_day(path: Path, rows: int, seconds: int, max_bytes: int) -> Written:
    cpu_s = time.process_time()
    made = largest_bytes = 0
    before_mib = own_peak_mib()
    log = path.with_name(f"{path.name}-wal")
    with open_writer(path, StoreLimits(max_bytes=max_bytes), live=False) as writer:
        for activity in day(rows, seconds):
            writer.observe(activity)
            made += 1
            if made % 10_000 == 0:
                largest_bytes = max(largest_bytes, path.stat().st_size + log.stat().st_size)
        assert writer.close()
        assert not writer.lost()
    peak = own_peak_mib() - before_mib
    return Written(path, made, time.process_time() - cpu_s, peak, largest_bytes)


def _explaining(written: Written) -> Iterator[Result]:
    with _small_store(written.path.parent) as small:
        floor_s, _ = _explain(small)
    best_s, peak = min(_explain(written.path) for _ in range(3))
    yield Result(
        what=f"explain --since 5m of {written.activities:,} rows",
        value=best_s,
        unit="s",
        floor=floor_s,
        floor_is="the same of five seconds",
        ratio=best_s / EXPLAIN_BOUND_S,
        bound="under 2 s",
        held=best_s < EXPLAIN_BOUND_S,
        note=f"peak of resident memory {peak:.0f} MiB",
    )


@contextmanager
def _small_store(folder: Path) -> Iterator[Path]:
    path = folder / "small.db"
    with open_writer(path, live=False) as writer:
        for activity in day(100, 5):
            writer.observe(activity)
    yield path


def _explain(path: Path) -> tuple[float, float]:
    """How long a person waits, in seconds, and the memory that it takes, in MiB."""
    command = [sys.executable, "-m", "otel_gpu", "explain", "--since", "5m", "--store", str(path)]
    usage = run_measured(command)
    return usage.wall_s, usage.peak_mib


def _size(written: Written) -> Result:
    size = written.path.stat().st_size / written.activities
    return Result(
        what="size of a row, with its share of all else",
        value=size,
        unit="bytes",
        floor=176,
        floor_is="a call's record on the wire",
        ratio=size / 176,
        bound="a decision",
        held=None,
        note=f"{written.path.stat().st_size / MIB:,.0f} MiB for {written.activities:,} activities",
    )


def _limit(full: Written) -> Result:
    return Result(
        what=f"most that a store of {FULL_BYTES // MIB} MiB took",
        value=full.largest_bytes / MIB,
        unit="MiB",
        floor=full.path.stat().st_size / MIB,
        floor_is="at the end",
        ratio=full.largest_bytes / FULL_BYTES,
        bound="at most 1",
        held=full.largest_bytes <= FULL_BYTES,
        note=f"{full.activities:,} activities went through",
    )


def _memory(written: Written) -> Result:
    return Result(
        what="memory of writing",
        value=written.peak_mib,
        unit="MiB",
        floor=0,
        floor_is="before",
        ratio=written.peak_mib / 64,
        bound="under 64 MiB",
        held=written.peak_mib < 64,
        note=f"{written.cpu_s / written.activities * 1e6:.1f} µs per activity, making it included",
    )
