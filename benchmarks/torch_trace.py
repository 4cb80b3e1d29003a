"""Time and memory that a trace of torch.profiler of 1 GB takes, from the file to the document."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.peak_memory import own_peak_mib
from benchmarks.result import Result
from benchmarks.traces import REAL, REAL_MB, REAL_TRACE, repeat, write, write_tiny
from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.importers import open_capture
from otel_gpu.options import Config
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document
from otel_gpu.wire.events import DeviceRead, Event

BOUND_S = 25
BOUND_MIB = 400
SIZE_MB, QUICK_SIZE_MB = 1_000, 100
TINY = 10_000_000


def run(*, quick: bool = False) -> list[Result]:
    """
    Read traces, each in a process of its own; CPU time, so that a busy machine says the same.

    A made one, one of many events that say nothing, and a real one several times over where
    OTEL_GPU_TEST_TORCH_DATA names a folder of them.
    """
    size_mb = QUICK_SIZE_MB if quick else SIZE_MB
    results = _read("a torch trace", write, size_mb)
    results += _read("a torch trace of tiny events", write_tiny, TINY // 10 if quick else TINY)
    if REAL:
        results += _read("a real torch trace repeated", repeat, REAL_TRACE, size_mb // REAL_MB)
    return results


def _read(what: str, make: Callable[..., None], *arguments: object) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")  # noqa: PTH118 -- text for another process
        for work, given in ((make, (path, *arguments)), (measure, (path,))):
            with context.Pool(1) as pool:
                found = pool.apply(work, given)
        size_mb = Path(path).stat().st_size / 1e6
    whole_s, read_s, peak_mib, rows = found
    bound_s = BOUND_S * size_mb / 1_000
    note = (
        f"{size_mb:,.0f} MB, {rows:,} rows, {size_mb / whole_s:.0f} MB/s; "
        f"of it {read_s:.1f} s to read the file"
    )
    return [
        Result(
            what=f"{what}, {size_mb:,.0f} MB",
            value=whole_s,
            unit="s CPU",
            floor=read_s,
            floor_is="reading it",
            ratio=whole_s / bound_s,
            bound=f"{BOUND_S} s for 1 GB",
            held=whole_s <= bound_s,
            note=note,
        ),
        Result(
            what="the process that reads it",
            value=peak_mib,
            unit="MiB",
            floor=size_mb * 1e6 / (1 << 20),
            floor_is="the file",
            ratio=peak_mib / BOUND_MIB,
            bound=f"{BOUND_MIB} MiB",
            held=peak_mib <= BOUND_MIB,
        ),
    ]


def measure(path: str) -> tuple[float, float, float, int]:
    """Return the CPU seconds of all and of reading alone, the peak in MiB, and how much was read."""
    begun_s = time.process_time()
    read_s, rows = 0.0, 0
    with open_capture("torch-trace", Path(path), Config()) as capture:
        collector = Collector(Explainer())

        def events() -> Iterator[Event]:
            nonlocal read_s, rows
            for event in capture.events():
                if isinstance(event, DeviceRead):
                    read_s = time.process_time() - begun_s
                    rows = len(event.trace.host) + len(event.trace.activities)
                yield event

        pipeline.process_events(events(), Enricher(), [collector])
    make_document(collector.finish(path))
    whole_s = time.process_time() - begun_s
    return whole_s, read_s, own_peak_mib(), rows
