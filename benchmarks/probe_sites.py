"""
What a probe costs behind the start of a function, where the kernel emulates, and at the start.

The functions begin as those of NVIDIA's driver, of libcudart where it is built with CET, and of
PyTorch's report of a block do: the same kinds of instructions. Empty probes at the same two places are
the floors; the agent's are at the site that it has chosen. Beside them is the least that counts calls
and their durations.
"""

import shutil
import tempfile
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.programs import file_offset, programs, site_offset
from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import odd_starts, workload

BOUND = 1.15
# At the start, of what the agent adds.
TIMES_AT_ENTRY = 10
# Few at a time: most rounds are over before anything else gets the CPU.
CALLS = 500
CALLS_AT_ENTRY = 50
_SETTINGS = {
    "OTEL_GPU_MEMORY_BLOCKS": "totals",
    # What the probes cost, and not how often they are taken away.
    "OTEL_GPU_MEMORY_BLOCKS_PER_SECOND": "10000000",
}


class _Start(NamedTuple):
    # A function, and what it is named in results.
    what: str
    library: str
    symbol: str
    returns: bool = True

    @property
    def empty(self) -> str:
        return "empty pair" if self.returns else "empty entry probe"


_STARTS: Final = (
    _Start("call as the driver's (cmp, je)", "libcuda.so.1", "cuStreamSynchronize"),
    _Start("call as libcudart's (endbr64, push)", "libcuda.so.1", "cuEventDestroy_v2"),
    _Start(
        "block's report as c10's (mov, push)",
        "libc10.so",
        "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
        returns=False,
    ),
)


def run(*, quick: bool = False) -> list[Result]:
    """Measure calls, which have a return probe, and a block's report, which has none."""
    rounds = 100 if quick else 500
    return [result for start in _STARTS for result in _measure(start, rounds)]


def _measure(start: _Start, rounds: int) -> list[Result]:
    names = ["bare", "site", "entry", "full", *(["timing"] if start.returns else [])]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name / start.library for name in names}
        for file in files.values():
            file.parent.mkdir()
            shutil.copy(odd_starts(), file)
        meters = {
            name: Subject((workload("timed_function"), file, start.symbol))
            for name, file in files.items()
        }
        try:
            with OtlpReceiver() as receiver, programs() as bpf:
                for name in names:
                    if name in ("bare", "full"):
                        continue
                    at = file_offset if name == "entry" else site_offset
                    kind = "timing" if name == "timing" else "empty"
                    place = [(at(files[name], start.symbol), 0)]
                    bpf.attach_uprobes(f"{kind}_enter", str(files[name]), place)
                    if start.returns:
                        bpf.attach_uprobes(f"{kind}_exit", str(files[name]), place, on_return=True)
                with agent_on(meters["full"].pid, receiver, env=_SETTINGS):
                    samples = [
                        {name: _ns(meter, name) for name, meter in meters.items()}
                        for _ in range(rounds + 1)
                    ][1:]
        finally:
            for meter in meters.values():
                meter.__exit__()
    return _results(start, samples)


def _results(start: _Start, samples: list[dict[str, float]]) -> list[Result]:
    added = {
        name: [sample[name] - sample["bare"] for sample in samples]
        for name in samples[0]
        if name != "bare"
    }

    def times(name: str, floor: str) -> float:
        return median(one / of for one, of in zip(added[name], added[floor], strict=True))

    ratio, at_entry = times("full", "site"), times("entry", "full")
    results = [
        Result(
            what=f"added to a {start.what}",
            value=median(added["full"]),
            unit="ns",
            floor=median(added["site"]),
            floor_is=f"{start.empty} at the site",
            ratio=ratio,
            bound=f"<= {BOUND} of the floor",
            held=ratio <= BOUND,
            note=f"bare {spread([s['bare'] for s in samples])} ns; probed {spread([s['full'] for s in samples])} ns",
        ),
        Result(
            what=f"{start.empty} at its entry",
            value=median(added["entry"]),
            unit="ns",
            floor=median(added["full"]),
            floor_is="added by the agent at the site",
            ratio=at_entry,
            bound=f">= {TIMES_AT_ENTRY} times the floor",
            held=at_entry >= TIMES_AT_ENTRY,
            note=f"at the entry {spread([s['entry'] for s in samples])} ns",
        ),
    ]
    if start.returns:
        results.append(
            Result(
                what="the least that counts its duration",
                value=median(added["timing"]),
                unit="ns",
                floor=median(added["site"]),
                floor_is=f"{start.empty} at the site",
                ratio=times("timing", "site"),
                bound="none",
                held=None,
                note=f"what the agent adds is {times('full', 'timing'):.3f} times that",
            )
        )
    return results


def _ns(meter: Subject, name: str) -> float:
    calls = CALLS_AT_ENTRY if name == "entry" else CALLS
    return int(meter.ask(calls)) / calls
