"""Large traces of torch.profiler: made ones, and real ones several times over."""

import gzip
import os
import re
from pathlib import Path
from typing import Final

REAL: Final = os.environ.get("OTEL_GPU_TEST_TORCH_DATA", "")
"""A folder of real traces; empty: there is none."""
REAL_TRACE: Final = "df_index_resolver.json.gz"
"""Of two ranks on V100s with NCCL, from the test data of HolisticTraceAnalysis."""
REAL_MB: Final = 50

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
_TIMES = re.compile(r'"ts": (\d+)(\.\d+)?, "dur": (\d+)')
_TIME = re.compile(r'"ts": (\d+)')
_CORRELATION = re.compile(r'"correlation": (\d{1,9})\b')
_TINY = b'{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":%d,"dur":1},\n'


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


def write_tiny(path: str, events: int) -> None:
    """Write so many events that say as little as one can, and two that a device did something."""
    kernel = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":9,"args":{"device":0,"stream":7}}'
    with Path(path).open("wb") as stream:
        stream.write(b'{"traceEvents":[\n' + kernel % _T0_US + b",\n")
        stream.writelines(_TINY % (_T0_US + at) for at in range(events))
        stream.write(kernel % (_T0_US + events) + b"\n]}\n")


def repeat(path: str, name: str, times: int) -> None:
    """
    Write a real trace so many times over, as one.

    The text of its events stays as it is. Of later rounds, times come after those of earlier ones, and
    correlations are others.
    """
    source = next(Path(REAL).rglob(name))
    with gzip.open(source, "rt", encoding="utf-8") as stream:
        text = stream.read()
    begin = text.index("[", text.index('"traceEvents"')) + 1
    end = text.rindex("]")
    events = text[begin:end].strip()
    spans = [(int(start), int(length)) for start, _, length in _TIMES.findall(events)]
    shift = max(map(sum, spans)) - min(start for start, _ in spans if start) + 1_000
    known = 1 + max(map(int, _CORRELATION.findall(events)))
    with Path(path).open("w", encoding="utf-8") as stream:
        stream.write(text[:begin])
        for number in range(times):

            def later(found: re.Match[str], number: int = number) -> str:
                return f'"ts": {int(found[1]) + number * shift}'

            def other(found: re.Match[str], number: int = number) -> str:
                value = int(found[1])
                return f'"correlation": {value + number * known if value else 0}'

            moved = _CORRELATION.sub(other, _TIME.sub(later, events)) if number else events
            stream.write((",\n  " if number else "\n  ") + moved)
        stream.write("\n  " + text[end:])
