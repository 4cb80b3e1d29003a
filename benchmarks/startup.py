"""How long a start takes: open to attached, and the whole command line."""

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from benchmarks.programs import file_offset
from benchmarks.programs import programs as floor
from benchmarks.result import Result, spread
from benchmarks.subjects import environment_for, python_start_seconds
from otel_gpu.capture.bpf.programs import ENTER_CALL, EXIT_CALL, Programs
from otel_gpu.capture.probes.elf_exports import exported_functions
from otel_gpu.config import Config
from otel_gpu.wire.probe_symbols import probes_of
from tests.kernel.agent import ROOT
from tests.stubs.build import stub_libraries

ATTACH_BOUND_S = 0.150
START_BOUND_S = 1.0


def run(*, quick: bool = False) -> list[Result]:
    """Measure both starts, interleaved with their floors."""
    rounds = 5 if quick else 15
    attach_s, empty_s, start_s, python_s = [], [], [], []
    for _ in range(rounds):
        empty_s.append(_attach_empty())
        attach_s.append(_attach_all())
        python_s.append(python_start_seconds())
        start_s.append(_start_command())
    return [
        _result("open to attached", attach_s, empty_s, "an empty pair", ATTACH_BOUND_S, "150 ms"),
        _result(
            "whole start of run -- CMD", start_s, python_s, "python -c pass", START_BOUND_S, "1 s"
        ),
    ]


def _result(
    what: str,
    values_s: list[float],
    floors_s: list[float],
    floor_is: str,
    bound_s: float,
    text: str,
) -> Result:
    value_s = median(values_s)
    return Result(
        what=what,
        value=1000 * value_s,
        unit="ms",
        floor=1000 * median(floors_s),
        floor_is=floor_is,
        ratio=value_s / bound_s,
        bound=f"under {text}",
        held=value_s < bound_s,
        note=f"{spread([1000 * value for value in values_s])} ms",
    )


def _attach_empty() -> float:
    library = stub_libraries().runtime
    start_s = time.monotonic()
    with floor() as bpf:
        place = [(file_offset(library), 0)]
        bpf.attach_uprobes("empty_enter", str(library), place)
        bpf.attach_uprobes("empty_exit", str(library), place, on_return=True)
        return time.monotonic() - start_s


def _attach_all() -> float:
    """Open, load and attach as the agent does, with both stub libraries' symbols."""
    start_s = time.monotonic()
    with Programs(Config(), watch_all=False) as programs:
        programs.attach()
        for library in stub_libraries():
            probes = probes_of(exported_functions(Path(library)))
            places = [
                (probe.file_offset, probe.api.number | probe.variant << 16) for probe in probes
            ]
            programs.bpf.attach_uprobes(EXIT_CALL, str(library), places, on_return=True)
            programs.bpf.attach_uprobes(ENTER_CALL, str(library), places)
        return time.monotonic() - start_s


def _start_command() -> float:
    """From the start of the command line to the first instruction of the command."""
    script = "import time; print(time.monotonic())"
    start_s = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-m", "otel_gpu", "run", "--", sys.executable, "-c", script],
        cwd=ROOT,
        env=environment_for(None),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return float(finished.stdout) - start_s - python_start_seconds()
