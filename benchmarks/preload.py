"""Time that the preload library adds to a call, beside the agent's probes, in a hot loop and paced."""

import contextlib
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.result import Result, spread
from benchmarks.subjects import agent_on
from tests.kernel.sampling import Subject
from tests.preloaded import LIBRARY
from tests.receiver import OtlpReceiver
from tests.stubs.build import copy_of_runtime, workload

HOT_BOUND_NS = 60
PACED_BOUND_NS = 250
PAUSE_NS = 50_000
THREADS = (1, 2, 8)


def run(*, quick: bool = False) -> list[Result]:
    """
    Interleave rounds on three copies of one library: bare, through the preload library, with probes.

    The programs find the launch with ``dlsym``, so without the preload library theirs is a direct call.
    """
    rounds = 9 if quick else 31
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        receiver = stack.enter_context(OtlpReceiver())
        bare, preloaded, probed = (
            stack.enter_context(
                Subject(
                    (
                        "env",
                        *preload,
                        workload("paced"),
                        copy_of_runtime(Path(folder) / name),
                    )
                )
            )
            for name, preload in (
                ("bare", ()),
                ("preload", (f"LD_PRELOAD={LIBRARY}",)),
                ("probed", ()),
            )
        )
        stack.enter_context(agent_on(probed.pid, receiver))
        stack.enter_context(agent_on(preloaded.pid, receiver))
        return [
            _result((bare, preloaded, probed), threads, pause_ns, rounds)
            for threads in THREADS
            for pause_ns in (0, PAUSE_NS)
        ]


def _result(
    meters: tuple[Subject, Subject, Subject], threads: int, pause_ns: int, rounds: int
) -> Result:
    calls = 300 if pause_ns else 400_000
    line = f"{threads} {calls} {pause_ns}"
    samples = [[float(meter.ask(line)) for meter in meters] for _ in range(rounds)]
    bare_ns = median(sample[0] for sample in samples)
    added_ns = median(sample[1] - sample[0] for sample in samples)
    probed_ns = median(sample[2] - sample[0] for sample in samples)
    bound_ns = PACED_BOUND_NS if pause_ns else HOT_BOUND_NS
    pace = "paced" if pause_ns else "hot"
    return Result(
        what=f"time the preload library adds to a call, {pace}, {threads} threads",
        value=added_ns,
        unit="ns",
        floor=probed_ns,
        floor_is="the agent's probes",
        ratio=added_ns / bound_ns,
        bound=f"<= {bound_ns} ns",
        held=added_ns <= bound_ns,
        note=f"bare {bare_ns:.1f} ns; preloaded {spread([s[1] for s in samples])} ns",
    )
