"""
What a probe costs behind the start of a function, where the kernel emulates, and at the start.

The functions begin as those of NVIDIA's driver and PyTorch's report of a block do. Empty probes at
the same two places are the floors; the agent's are at the site that it has chosen.
"""

import shutil
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.programs import file_offset, programs, site_offset
from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import odd_starts, workload

BOUND = 1.15
# At the start, of what the agent adds.
TIMES_AT_ENTRY = 10
CALLS = 5_000
_COPIES = ("bare", "site", "entry", "full")
_SETTINGS = {
    "OTEL_GPU_MEMORY_BLOCKS": "totals",
    # What the probes cost, and not how often they are taken away.
    "OTEL_GPU_MEMORY_BLOCKS_PER_SECOND": "10000000",
}


def run(*, quick: bool = False) -> list[Result]:
    """Measure a call of the driver, which has a return probe, and a block's report, which has none."""
    rounds = 15 if quick else 61
    report = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
    return [
        *_measure("call of the driver", "libcuda.so.1", "cuStreamSynchronize", rounds),
        *_measure("block's report", "libc10.so", report, rounds, returns=False),
    ]


def _measure(
    what: str, library: str, symbol: str, rounds: int, *, returns: bool = True
) -> list[Result]:
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name / library for name in _COPIES]
        for file in files:
            file.parent.mkdir()
            shutil.copy(odd_starts(), file)
        meters = [Subject((workload("timed_function"), file, symbol)) for file in files]
        try:
            with OtlpReceiver() as receiver, programs() as bpf:
                for file, offset_of in zip(files[1:3], (site_offset, file_offset), strict=True):
                    place = [(offset_of(file, symbol), 0)]
                    bpf.attach_uprobes("empty_enter", str(file), place)
                    if returns:
                        bpf.attach_uprobes("empty_exit", str(file), place, on_return=True)
                with agent_on(meters[-1].pid, receiver, env=_SETTINGS):
                    samples = [[_ns(meter) for meter in meters] for _ in range(rounds + 1)][1:]
        finally:
            for meter in meters:
                meter.__exit__()
    site_ns, entry_ns, added_ns = (
        median(sample[number] - sample[0] for sample in samples) for number in (1, 2, 3)
    )
    ratio = median((sample[3] - sample[0]) / (sample[1] - sample[0]) for sample in samples)
    times = median((sample[2] - sample[0]) / (sample[3] - sample[0]) for sample in samples)
    empty = "empty pair" if returns else "empty entry probe"
    return [
        Result(
            what=f"time added to a {what}, at its site",
            value=added_ns,
            unit="ns",
            floor=site_ns,
            floor_is=f"{empty} at the site",
            ratio=ratio,
            bound=f"<= {BOUND} of the floor",
            held=ratio <= BOUND,
            note=f"bare {spread([s[0] for s in samples])} ns; probed {spread([s[3] for s in samples])} ns",
        ),
        Result(
            what=f"{empty} at the entry of a {what}",
            value=entry_ns,
            unit="ns",
            floor=added_ns,
            floor_is="added by the agent at the site",
            ratio=times,
            bound=f">= {TIMES_AT_ENTRY} times the floor",
            held=times >= TIMES_AT_ENTRY,
            note=f"at the entry {spread([s[2] for s in samples])} ns",
        ),
    ]


def _ns(meter: Subject) -> float:
    return int(meter.ask(CALLS)) / CALLS
