"""
Time and memory of a trace of torch.profiler, side by side with HolisticTraceAnalysis.

``OTEL_GPU_BENCH_HTA`` names a Python that has it; without one nothing is measured. Each round runs a
process of each on the same file, in turn. CPU time of whole processes counts, imports included, so
that a busy machine says the same.
"""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from benchmarks.peak_memory import run_measured
from benchmarks.result import Result, spread
from benchmarks.traces import REAL, REAL_TRACE, repeat, write

BOUND_TIME = 1 / 5
BOUND_MEMORY = 1 / 8
ROUNDS = 3
_NOT_COMPILED = "PYTHONDONTWRITEBYTECODE"
# What is asked of it is what it knows; causes of idle time by call, steps and advice are ours alone.
_QUESTIONS = """
import sys
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
trace.get_temporal_breakdown(visualize=False)
trace.get_idle_time_breakdown(visualize=False)
trace.get_gpu_kernel_breakdown(visualize=False)
trace.get_comm_comp_overlap(visualize=False)
trace.get_cuda_kernel_launch_stats(visualize=False)
trace.get_queue_length_summary()
"""


def run(*, quick: bool = False) -> list[Result]:
    """Measure both on 100 MB: a real trace twice over where there is one, else a made one."""
    other = os.environ.get("OTEL_GPU_BENCH_HTA", "")
    if not other:
        return []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "trace.json"))
        # In a process of its own: what this one holds would count for those that it starts.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            if REAL:
                pool.apply(repeat, (path, REAL_TRACE, 2))
            else:
                pool.apply(write, (path, 100))
        size_mb = Path(path).stat().st_size / 1e6
        ours = [sys.executable, "-m", "otel_gpu", "import", "torch-trace", path, "--json"]
        theirs = [other, "-c", _QUESTIONS, path]
        # Both are compiled, as what is installed is, even where Python was not to write that down.
        compiled = {"PYTHONPYCACHEPREFIX": str(Path(folder, "compiled")), _NOT_COMPILED: ""}
        _measure(ours, compiled)
        rounds = range(1 if quick else ROUNDS)
        found = [(_measure(ours, compiled), _measure(theirs)) for _ in rounds]
    ours_s, theirs_s = [one[0] for one, _ in found], [one[0] for _, one in found]
    ours_mib, theirs_mib = (max(pair[at][1] for pair in found) for at in (0, 1))
    time_ratio, memory_ratio = median(ours_s) / median(theirs_s), ours_mib / theirs_mib
    return [
        Result(
            what=f"a torch trace of {size_mb:,.0f} MB, whole process",
            value=median(ours_s),
            unit="s CPU",
            floor=median(theirs_s),
            floor_is="HolisticTraceAnalysis",
            ratio=time_ratio,
            bound=f"{BOUND_TIME} of it",
            held=time_ratio <= BOUND_TIME,
            note=f"ours {spread(ours_s)}; theirs {spread(theirs_s)}",
        ),
        Result(
            what="its memory",
            value=ours_mib,
            unit="MiB",
            floor=theirs_mib,
            floor_is="HolisticTraceAnalysis",
            ratio=memory_ratio,
            bound=f"{BOUND_MEMORY} of it",
            held=memory_ratio <= BOUND_MEMORY,
        ),
    ]


def _measure(command: list[str], environ: Mapping[str, str] = {}) -> tuple[float, float]:
    """Return the CPU seconds of a process and its peak in MiB."""
    usage = run_measured(command, environ)
    return usage.cpu_s, usage.peak_mib
