"""Decides how the kernel side adds up: shared and atomic, or one value per CPU."""

import os
import struct
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.programs import file_offset, programs
from benchmarks.result import Result
from benchmarks.subjects import Meter
from otel_gpu.capture.bpf.bpf_map import BpfMap
from otel_gpu.capture.bpf.objects import BpfObject
from tests.stubs.build import copy_of_runtime

SPENT = struct.Struct("<QQ")
KEY = bytes(4)
CALLS = 2_000
SERIES_BYTES = 8 * 196
SERIES = 4096
CPUS = 128


def run(*, quick: bool = False) -> list[Result]:
    """Measure one addition alone, and with all CPUs adding to the same series."""
    rounds = 5 if quick else 21
    crowd = max(2, os.cpu_count() or 2)
    figures: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, programs() as bpf:
        spent = bpf.map("spent")
        for _ in range(rounds):
            for program in ("count_shared", "count_per_cpu"):
                for threads in (1, crowd):
                    copy = copy_of_runtime(Path(folder) / f"{program}-{threads}")
                    nanoseconds = _nanoseconds(bpf, spent, program, copy, threads)
                    figures.setdefault((program, threads), []).append(nanoseconds)
    shared, per_cpu = median(figures["count_shared", 1]), median(figures["count_per_cpu", 1])
    shared_crowd = median(figures["count_shared", crowd])
    per_cpu_crowd = median(figures["count_per_cpu", crowd])
    shared_mib = SERIES * SERIES_BYTES / 2**20
    return [
        Result(
            what="one addition to a series, shared and atomic",
            value=shared,
            unit="ns",
            floor=per_cpu,
            floor_is="one value per CPU",
            ratio=shared / per_cpu,
            bound="a decision",
            held=None,
            note=f"{SERIES} series on {CPUS} CPUs: {shared_mib:.1f} MiB shared, "
            f"{shared_mib * CPUS:.0f} MiB per CPU",
        ),
        Result(
            what=f"the same, {crowd} CPUs on one series",
            value=shared_crowd,
            unit="ns",
            floor=per_cpu_crowd,
            floor_is="one value per CPU",
            ratio=shared_crowd / per_cpu_crowd,
            bound="a decision",
            held=None,
        ),
    ]


def _nanoseconds(bpf: BpfObject, spent: BpfMap, program: str, library: Path, threads: int) -> float:
    links = bpf.attach_uprobes(program, str(library), [(file_offset(library), 0)])
    with ExitStack() as stack:
        stack.callback(bpf.detach, links)
        meters = [stack.enter_context(Meter(library)) for _ in range(threads)]
        spent.update(KEY, SPENT.pack(0, 0))
        workers = [
            threading.Thread(target=subject.nanoseconds_per_call, args=(CALLS,))
            for subject in meters
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        nanoseconds, additions = SPENT.unpack(spent.lookup(KEY) or SPENT.pack(0, 1))
        return nanoseconds / additions
