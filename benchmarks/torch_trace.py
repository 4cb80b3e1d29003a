"""Time and memory that a trace of torch.profiler of 1 GB takes, from the file to the document."""

import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.result import Result
from otel_gpu import pipeline
from otel_gpu.decode.events import DeviceRead, Event
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.explainer import Explainer
from otel_gpu.findings.collector import Collector
from otel_gpu.findings.json_form import make_document
from otel_gpu.importers import open_capture
from otel_gpu.options import Config

BOUND_S = 25
BOUND_MIB = 400
SIZE_MB, QUICK_SIZE_MB = 1_000, 100
OPERATIONS_OF_A_STEP = 2_000

# As Kineto writes them: an operator, the call in it, what the device did, and how they belong together.
_OPERATOR = """  {{
    "ph": "X", "cat": "cpu_op", "name": "aten::{name}", "pid": 783658, "tid": 783658,
    "ts": {start}, "dur": {length},
    "args": {{
      "External id": {id},"Record function id": 0, "Concrete Inputs": ["", ""], "Input type": ["float", "float"], "Input Dims": [[{rows}, 1024], [1024, 1024]], "Ev Idx": {id}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 783658, "tid": 783658,
    "ts": {launch}, "dur": 5,
    "args": {{
      "External id": {id}, "cbid": 211, "correlation": {id}
    }}
  }},
  {{
    "ph": "s", "id": {id}, "pid": 783658, "tid": 783658, "ts": {launch},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::{name}Functor<float>, at::detail::Array<char*, 3> >(int, at::native::{name}Functor<float>, at::detail::Array<char*, 3>)", "pid": 0, "tid": 7,
    "ts": {work}, "dur": {busy},
    "args": {{
      "External id": {id},
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": {id},
      "registers per thread": 32,
      "shared memory": 0,
      "blocks per SM": 12.8,
      "warps per SM": 51.2,
      "grid": [1024, 1, 1],
      "block": [128, 1, 1],
      "est. achieved occupancy %": 80
    }}
  }},
  {{
    "ph": "f", "id": {id}, "pid": 0, "tid": 7, "ts": {work},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""
_STEP = """  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": 783658, "tid": 783658,
    "ts": {start}, "dur": {length},
    "args": {{
      "External id": {number}, "Ev Idx": {number}
    }}
  }},
"""
_T0_US = 1_623_142_623_460_111


def run(*, quick: bool = False) -> list[Result]:
    """Read a trace in a process of its own; CPU time, so that a busy machine says the same."""
    wanted_mb = QUICK_SIZE_MB if quick else SIZE_MB
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")  # noqa: PTH118 -- text for another process
        for work, arguments in ((write, (path, wanted_mb)), (measure, (path,))):
            with context.Pool(1) as pool:
                found = pool.apply(work, arguments)
        size_mb = Path(path).stat().st_size / 1e6
    whole_s, read_s, peak_mib, rows = found
    bound_s = BOUND_S * size_mb / 1_000
    note = (
        f"{size_mb:,.0f} MB, {rows:,} rows, {size_mb / whole_s:.0f} MB/s; "
        f"of it {read_s:.1f} s to read the file"
    )
    return [
        Result(
            what=f"a torch trace of {size_mb:,.0f} MB",
            value=whole_s,
            unit="s CPU",
            floor=read_s,
            floor_is="reading it",
            ratio=whole_s / bound_s,
            bound=f"{BOUND_S} s for 1 GB",
            held=whole_s <= bound_s,
            note=note,
        ),
        Result(
            what="the process that reads it",
            value=peak_mib,
            unit="MiB",
            floor=size_mb * 1e6 / (1 << 20),
            floor_is="the file",
            ratio=peak_mib / BOUND_MIB,
            bound=f"{BOUND_MIB} MiB",
            held=peak_mib <= BOUND_MIB,
        ),
    ]


def write(path: str, size_mb: int) -> None:
    """Write a trace of about this size: steps of operators, each of which launches one kernel."""
    names = ("add", "mul", "relu", "native_layer_norm", "mm", "copy_", "sum", "sigmoid")
    with Path(path).open("w", encoding="utf-8") as stream:
        stream.write('{\n  "schemaVersion": 1,\n  "traceEvents": [\n')
        number = step = 0
        at_us = _T0_US
        while stream.tell() < size_mb * 1_000_000:
            begun_us = at_us
            for place in range(OPERATIONS_OF_A_STEP):
                number += 1
                # The host is ahead in the first half of a step and late in the second.
                is_late = place > OPERATIONS_OF_A_STEP // 2
                length = 40 if is_late else 15
                stream.write(
                    _OPERATOR.format(
                        name=names[number % len(names)], start=at_us, length=length, id=number,
                        rows=32 * (1 + number % 20), launch=at_us + 6, work=at_us + 20,
                        busy=12 if is_late else 17,
                    )
                )  # fmt: skip
                at_us += length + 5
            step += 1
            stream.write(_STEP.format(number=step, start=begun_us, length=at_us - begun_us - 2))
        stream.write('  {"ph": "i", "name": "end", "ts": 0}\n  ],\n  "traceName": "x"\n}\n')


def measure(path: str) -> tuple[float, float, float, int]:
    """Return the CPU seconds of all and of reading alone, the peak in MiB, and how much was read."""
    begun_s = time.process_time()
    read_s, rows = 0.0, 0
    with open_capture("torch-trace", Path(path), Config()) as capture:
        collector = Collector(Explainer())

        def events() -> Iterator[Event]:
            nonlocal read_s, rows
            for event in capture.events():
                if isinstance(event, DeviceRead):
                    read_s = time.process_time() - begun_s
                    rows = len(event.trace.host) + len(event.trace.activities)
                yield event

        pipeline.process_events(events(), Enricher(), [collector])
    make_document(collector.finish(path))
    whole_s = time.process_time() - begun_s
    return whole_s, read_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, rows
