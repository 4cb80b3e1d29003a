"""What it costs to follow blocks of device memory: the program that has them, and the agent."""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.programs import programs, site_offset
from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on, cpu_seconds
from otel_gpu.demo.build import build_allocator
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, library

MODES = ("totals", "large", "all")
FRAMES = 20
BLOCKS = 20_000
PER_SECOND = 50_000
# One when it is handed out, one when it is taken back.
REPORTS = 2
_REPORT = "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"


def run(*, quick: bool = False) -> list[Result]:
    """Measure each mode, from below 20 frames of Python; one block in eight is large."""
    rounds, seconds = (11, 4) if quick else (41, 20)
    return [result for mode in MODES for result in _measure(mode, rounds, seconds)]


def _measure(mode: str, rounds: int, seconds: int) -> list[Result]:
    env = {
        "OTEL_GPU_MEMORY_BLOCKS": mode,
        # What the probes cost, and not how often they are taken away.
        "OTEL_GPU_MEMORY_BLOCKS_PER_SECOND": "10000000",
    }
    with tempfile.TemporaryDirectory() as folder:
        bare, empty, full = (_allocator(Path(folder) / name) for name in ("bare", "empty", "full"))
        with (
            OtlpReceiver() as receiver,
            programs() as bpf,
            _meter(bare) as bare_meter,
            _meter(empty) as empty_meter,
            _meter(full) as full_meter,
        ):
            bpf.attach_uprobes("empty_enter", str(empty), [(site_offset(empty, _REPORT), 0)])
            meters = (bare_meter, empty_meter, full_meter)
            with agent_on(full_meter.pid, receiver, env=env) as agent:
                for meter in meters:
                    meter.ask(f"{BLOCKS} 0")
                samples = [[_ns(meter, BLOCKS) for meter in meters] for _ in range(rounds)]
                agent_pid = agent.process.pid
                blocks = PER_SECOND * seconds
                bare_share = _share(bare_meter, blocks)
                used_s, start_s = cpu_seconds(agent_pid), time.monotonic()
                program_share = _share(full_meter, blocks)
                elapsed_s = time.monotonic() - start_s
                agent_share = (cpu_seconds(agent_pid) - used_s) / elapsed_s
    floor_ns = median(sample[1] - sample[0] for sample in samples)
    added_ns = median(sample[2] - sample[0] for sample in samples)
    ratio = median((sample[2] - sample[0]) / (sample[1] - sample[0]) for sample in samples)
    return [
        Result(
            what=f"time added to a block's report, {mode}",
            value=added_ns,
            unit="ns",
            floor=floor_ns,
            floor_is="empty probe at the same site",
            ratio=ratio,
            bound="none",
            held=None,
            note=(
                f"bare {spread([s[0] for s in samples])} ns; "
                f"empty {spread([s[1] for s in samples])} ns; "
                f"probed {spread([s[2] for s in samples])} ns"
            ),
        ),
        Result(
            what=f"program CPU at {PER_SECOND:,} blocks/s, {mode}",
            value=100 * program_share,
            unit="% core",
            floor=100 * bare_share,
            floor_is="the same without probes",
            ratio=program_share / bare_share,
            bound="none",
            held=None,
            note=f"agent {100 * agent_share:.1f} % of a core; {blocks / elapsed_s:,.0f} blocks/s",
        ),
    ]


def _allocator(folder: Path) -> Path:
    folder.mkdir()
    return build_allocator(folder)


def _meter(allocator: Path) -> Subject:
    churn = WORKLOADS / "churn.py"
    return Subject((sys.executable, churn, allocator, library("churn"), str(FRAMES)))


def _ns(meter: Subject, blocks: int) -> float:
    # Of one report.
    return int(meter.ask(f"{blocks} 0")) / blocks / REPORTS


def _share(meter: Subject, blocks: int) -> float:
    # Of a core, at the rate.
    return int(meter.ask(f"{blocks} {PER_SECOND}")) / 1e9 / (blocks / PER_SECOND)
