"""Time and memory that a memory snapshot of 100 MB takes, from the file to the document."""

import multiprocessing
import os
import pickle
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peak_memory import own_peak_mib
from benchmarks.result import Result
from otel_gpu import pipeline
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.importers import open_capture
from otel_gpu.options import Config
from otel_gpu.report.collector import Collector
from otel_gpu.report.json_form import make_document
from tests.unit.importers.snapshots import MIB, block, event, frame, freed, segment, snapshot

BOUND_S = 15
BOUND_MIB = 600
EVENTS, QUICK_EVENTS = 1_260_000, 200_000
STACKS, FRAMES = 500, 24
BLOCKS_OF_A_STEP = 2_000


def run(*, quick: bool = False) -> list[Result]:
    """Read a snapshot in a process of its own; CPU time, so that a busy machine says the same."""
    events = QUICK_EVENTS if quick else EVENTS
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")  # noqa: PTH118 -- text for another process
        for work, arguments in ((write, (path, events)), (measure, (path,))):
            with context.Pool(1) as pool:
                found = pool.apply(work, arguments)
        size_mb = Path(path).stat().st_size / 1e6
    whole_s, read_s, peak_mib = found
    share = min(1.0, size_mb / 100)
    note = f"{size_mb:.0f} MB, {events:,} events; of it {read_s:.1f} s to read the file"
    return [
        Result(
            what="a memory snapshot of 100 MB",
            value=whole_s,
            unit="s CPU",
            floor=read_s,
            floor_is="reading it",
            ratio=whole_s / (BOUND_S * share),
            bound=f"{BOUND_S} s",
            held=whole_s <= BOUND_S * share,
            note=note,
        ),
        Result(
            what="the process that reads it",
            value=peak_mib,
            unit="MiB",
            floor=size_mb * 1e6 / MIB,
            floor_is="the file",
            ratio=peak_mib / BOUND_MIB,
            bound=f"{BOUND_MIB} MiB",
            held=peak_mib <= BOUND_MIB,
        ),
    ]


def write(path: str, count: int) -> None:
    """Write a snapshot of so many events: steps that allocate, and free what they allocated."""
    stacks = [
        [
            frame(f"/app/module_{line % 40}.py", line, f"step_{line % 50}")
            for line in range(n, n + FRAMES)
        ]
        for n in range(STACKS)
    ]
    trace: list[Any] = []
    while len(trace) < count:
        for number in range(BLOCKS_OF_A_STEP):
            address, size = (1 << 40) + number * 8 * MIB, 512 * (1 + number * 37 % 9_000)
            trace.append(event("alloc", address, size, 3 * len(trace), stacks[number % STACKS]))
        for number in range(BLOCKS_OF_A_STEP):
            address, size = (1 << 40) + number * 8 * MIB, 512 * (1 + number * 37 % 9_000)
            trace += freed(address, size, 3 * len(trace))
    segments = [
        segment(
            at, [block(at, 12 * MIB, frames=stacks[0]), block(at + 12 * MIB, 8 * MIB, "inactive")]
        )
        for at in range(2 << 40, (2 << 40) + 2_000 * 20 * MIB, 20 * MIB)
    ]
    Path(path).write_bytes(pickle.dumps(snapshot(segments, trace), protocol=4))


def measure(path: str) -> tuple[float, float, float]:
    """Return the CPU seconds of all and of reading alone, and the peak in MiB."""
    start_s = time.process_time()
    with open_capture("torch-memory", Path(path), Config()) as capture:
        read_s = time.process_time() - start_s
        collector = Collector(Explainer())
        pipeline.process_events(capture.events(), Enricher(), [collector])
    make_document(collector.finish(path))
    whole_s = time.process_time() - start_s
    return whole_s, read_s, own_peak_mib()
