"""Time that the probes add to a call, against an empty uprobe and uretprobe pair."""

import tempfile
from pathlib import Path
from statistics import median

from benchmarks.programs import file_offset, programs
from benchmarks.result import Result, spread
from benchmarks.subjects import Meter, agent_on
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime

BOUND = 1.15
CALLS = 20_000


def run(*, quick: bool = False) -> list[Result]:
    """
    Interleave rounds on three copies of one library: bare, empty pair, the agent's probes.

    Copies are different inodes, so each has its own probes and all run at once.
    """
    rounds = 15 if quick else 61
    with tempfile.TemporaryDirectory() as folder:
        bare, empty, full = (
            copy_of_runtime(Path(folder) / name) for name in ("bare", "empty", "full")
        )
        with (
            OtlpReceiver() as receiver,
            programs() as bpf,
            Meter(bare) as bare_meter,
            Meter(empty) as empty_meter,
            Meter(full) as full_meter,
        ):
            place = [(file_offset(empty), 0)]
            bpf.attach_uprobes("empty_enter", str(empty), place)
            bpf.attach_uprobes("empty_exit", str(empty), place, on_return=True)
            meters = (bare_meter, empty_meter, full_meter)
            with agent_on(full_meter.pid, receiver):
                for subject in meters:
                    subject.nanoseconds_per_call(CALLS)
                samples = [
                    [subject.nanoseconds_per_call(CALLS) for subject in meters]
                    for _ in range(rounds)
                ]
    bare_ns = median(sample[0] for sample in samples)
    # The median of differences within a round: what disturbs the machine for
    # longer than a round disturbs both sides of it.
    floor_ns = median(sample[1] - sample[0] for sample in samples)
    added_ns = median(sample[2] - sample[0] for sample in samples)
    ratio = median((sample[2] - sample[0]) / (sample[1] - sample[0]) for sample in samples)
    return [
        Result(
            what="time added to a probed call, no stacks",
            value=added_ns,
            unit="ns",
            floor=floor_ns,
            floor_is="empty uprobe and uretprobe",
            ratio=ratio,
            bound=f"<= {BOUND} of the floor",
            held=ratio <= BOUND,
            note=(
                f"bare call {bare_ns:.1f} ns; "
                f"empty {spread([s[1] for s in samples])} ns; "
                f"probed {spread([s[2] for s in samples])} ns"
            ),
        )
    ]
