"""Time that the probes add to calls of NCCL, and to calls about events where there are communicators."""

import shutil
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on
from tests.kernel.sampling import Subject
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime, stub_nccl, workload

BOUND_COLLECTIVE = 1.6
BOUND_EVENT = 1.25
CALLS = 10_000


class CollectiveMeter(Subject):
    """A running ``timed_nccl`` program."""

    def __init__(self, runtime: Path, nccl: Path) -> None:
        super().__init__((workload("timed_nccl"), runtime, nccl))

    def nanoseconds_per_call(self, kind: str) -> float:
        """Make calls of a kind and return the mean time of one."""
        return int(self.ask(f"{kind} {CALLS}")) / CALLS


def run(*, quick: bool = False) -> list[Result]:
    """
    Interleave rounds of three programs: without probes, with them, and with a communicator.

    Copies of the libraries are different inodes, so some carry probes and some none. It is CPU time,
    which others on the host hardly change.
    """
    rounds = 15 if quick else 61
    with tempfile.TemporaryDirectory() as folder:
        bare, probed = (copy_of_runtime(Path(folder) / name) for name in ("bare", "probed"))
        bare_nccl, nccl = (Path(shutil.copy(stub_nccl(), one.parent)) for one in (bare, probed))
        with (
            OtlpReceiver() as receiver,
            CollectiveMeter(bare, bare_nccl) as bare_meter,
            CollectiveMeter(probed, nccl) as plain,
            CollectiveMeter(probed, nccl) as ranked,
            agent_on(plain.pid, receiver, flags=("--pid", str(ranked.pid))),
        ):
            for meter in (bare_meter, ranked):
                meter.nanoseconds_per_call("reduce")
            samples = [
                {
                    "collective": ranked.nanoseconds_per_call("reduce")
                    - bare_meter.nanoseconds_per_call("reduce"),
                    "call": ranked.nanoseconds_per_call("sync")
                    - bare_meter.nanoseconds_per_call("sync"),
                    "event": ranked.nanoseconds_per_call("event"),
                    "plain_event": plain.nanoseconds_per_call("event"),
                }
                for _ in range(rounds)
            ]
    return [
        _result(
            "time added to a collective",
            "time added to cudaStreamSynchronize",
            [(one["collective"], one["call"]) for one in samples],
            BOUND_COLLECTIVE,
        ),
        _result(
            "an event recorded and asked for, with communicators",
            "the same, probed, without",
            [(one["event"], one["plain_event"]) for one in samples],
            BOUND_EVENT,
        ),
    ]


def _result(what: str, floor_is: str, pairs: list[tuple[float, float]], bound: float) -> Result:
    ratio = median(value / floor for value, floor in pairs)
    return Result(
        what=what,
        value=median(value for value, _ in pairs),
        unit="ns",
        floor=median(floor for _, floor in pairs),
        floor_is=floor_is,
        ratio=ratio,
        bound=f"<= {bound} of the floor",
        held=ratio <= bound,
        note=f"{spread([value for value, _ in pairs])} ns against {spread([floor for _, floor in pairs])} ns",
    )
