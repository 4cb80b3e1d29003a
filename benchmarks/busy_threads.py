"""
What the samples of 64 busy threads cost the agent, at the rate of its budget.

The threads were sampled a moment before, in as many processes; what came of that is replayed at
that rate, through all that the agent does with it. So this needs no 64 CPUs.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.result import Result
from otel_gpu import wire
from otel_gpu.capture.bpf.cpu_sampling import OnCpuSampling
from otel_gpu.capture.bpf.programs import Programs
from otel_gpu.capture.maps.kernel_stacks import KernelStacks
from otel_gpu.capture.processes.discovery import ProcessDiscovery
from otel_gpu.capture.processes.interpreters import Interpreters
from otel_gpu.config import Config, load
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.export.exports import open_exports
from otel_gpu.pipeline import ExplainStage, process
from otel_gpu.procfs.mapped_files import child_pids, mapped_files
from otel_gpu.stacks.user_stacks import SAMPLE_KINDS, UserStacks
from otel_gpu.wire.agent_records import clock_record
from tests.kernel.agent import environment_for, wait_until
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS

THREADS = 64
FRAMES = 20
BOUND = 0.05
TURN_S = 0.1
# So that there are enough of them soon.
CAPTURED = {
    "samples.rate_hz": 990,
    "samples.stacks_per_second": 100_000,
    "capture.ring_buffer_bytes": 1 << 26,
}
_TICK_KIND = wire.RECORD_CPU_SAMPLE.to_bytes(2, "little")


class Captured(NamedTuple):
    """What the kernel side sent of threads, which stand still now."""

    programs: Programs
    images: dict[int, int]
    records: list[bytes]


def run(*, quick: bool = False) -> list[Result]:
    """Replay samples, of which the first half shows what there is to be known."""
    seconds = 5.0 if quick else 20.0
    rate = Config().samples.stacks_per_second
    with OtlpReceiver() as receiver, _captured(round(2 * seconds * rate)) as captured:
        idle, _ = _share(receiver, captured._replace(records=[]), rate, seconds)
        share, missed = _share(receiver, captured, rate, seconds)
    return [
        Result(
            what=f"agent CPU, {THREADS} busy threads replayed",
            value=100 * share,
            unit="% core",
            floor=100 * idle,
            floor_is="the same without samples",
            ratio=share / BOUND,
            bound="under 5 % of a core",
            held=share < BOUND,
            note=(
                f"{rate} samples/s, all that the budget allows: "
                f"{1e6 * (share - idle) / rate:.0f} us each; {missed:.0%} of their stacks were new"
            ),
        )
    ]


@contextmanager
def _captured(ticks: int) -> Iterator[Captured]:
    config = load(None, {}, CAPTURED)
    command = [sys.executable, WORKLOADS / "busy.py", str(FRAMES), str(THREADS)]
    environment = environment_for(None)
    with (
        subprocess.Popen(command, env=environment, start_new_session=True) as first,
        Programs(config, watch_all=False) as programs,
    ):
        try:
            wait_until(lambda: len(_tree(first.pid)) == THREADS, "all processes")
            programs.attach()
            interpreters = Interpreters(programs)
            images = {pid: programs.processes.watch(pid, 0) for pid in _tree(first.pid)}
            for pid, program_ktime_ns in images.items():
                interpreters.examine(pid, program_ktime_ns, list(mapped_files(pid)))
            wait_until(lambda: not _doubtful(interpreters), "all interpreters")
            sampling = OnCpuSampling(programs, config)
            sampling.adjust(is_watching=True)
            records: list[bytes] = []
            while sum(record.startswith(_TICK_KIND) for record in records) < ticks:
                time.sleep(TURN_S)
                records += programs.events.read()
            sampling.adjust(is_watching=False)
            # What they map is to be read as long as they are there.
            os.killpg(first.pid, signal.SIGSTOP)
            yield Captured(programs, images, records)
        finally:
            os.killpg(first.pid, signal.SIGKILL)


def _doubtful(interpreters: Interpreters) -> bool:
    # They go on while they are looked at, so once may be bad luck.
    interpreters.examine_again()
    return bool(interpreters.reasons)


def _tree(pid: int) -> list[int]:
    return [pid, *(found for child in child_pids(pid) for found in _tree(child))]


def _share(
    receiver: OtlpReceiver, captured: Captured, rate: int, seconds: float
) -> tuple[float, float]:
    # Of a core in the second half, and how many samples had a stack then that was new.
    config = Config()
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.http_endpoint}
    environment = endpoint | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    stacks = UserStacks(lambda pid: captured.images.get(pid, 0))
    readings: list[tuple[float, float, int]] = []

    def batches() -> Iterator[Sequence[bytes]]:
        now_ktime_ns = time.monotonic_ns()
        yield [clock_record(now_ktime_ns, time.time_ns())]
        kernel_stacks = KernelStacks(captured.programs)
        kernel_stacks.prepare()
        introductions = ProcessDiscovery(captured.programs)
        for image in captured.images.items():
            yield list(introductions.make(*image))
        records = iter(captured.records)
        start_s = time.monotonic()
        turns = round(2 * seconds / TURN_S)
        for turn in range(turns):
            if turn in (turns // 2, turns - 1):
                missed = stacks.counts["resolved"] - stacks.counts["memo_hits"]
                readings.append((time.monotonic(), time.process_time(), missed))
            yield list(_resolved(records, round(rate * TURN_S), stacks, kernel_stacks))
            time.sleep(max(0.0, start_s + (turn + 1) * TURN_S - time.monotonic()))

    with open_exports(config, environment, live=True) as exports:
        blame = ExplainStage(config, exports)
        process(batches(), Enricher(), [exports, blame], Counter())
    stacks.close()
    (begin_s, used_s, missed), (end_s, all_s, all_missed) = readings
    return (all_s - used_s) / (end_s - begin_s), (all_missed - missed) / (rate * seconds)


def _resolved(
    records: Iterator[bytes], ticks: int, stacks: UserStacks, kernel_stacks: KernelStacks
) -> Iterator[bytes]:
    """Yield what the agent makes of records until that many samples are among them."""
    for record in records:
        if record[:2] in SAMPLE_KINDS:
            stacks.take(record)
            continue
        if not record.startswith(_TICK_KIND):
            yield from stacks.resolve(record)
            continue
        *told, sample = kernel_stacks.place(record)
        yield from told
        yield from stacks.resolve(sample)
        ticks -= 1
        if not ticks:
            return
