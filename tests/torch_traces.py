"""
The traces of torch.profiler in examples/: one training, before and after its loader got workers.

    python -m tests.torch_traces    # write them

In each step a data loader, a copy from memory that can be paged out, a forward and a backward
kernel, and a wait for the result. What takes how long is what is asserted of them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.unit.importers.traces import call, host, kernel, step, trace

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
STEPS = 6
# In microseconds. Steps differ, as they do.
LOADER_US = {"workers-0": 40_000, "workers-4": 800}
JITTER_US = (0, 300, 100, 400, 200, 0)
COPY_US, FORWARD_US, BACKWARD_US = 900, 8_000, 15_000
LOADERS = {
    "workers-0": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "workers-4": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
}
_SHAPES = {"Input Dims": [[64, 512], [512, 512]], "Input type": ["float", "float"]}


def training(name: str) -> dict[str, Any]:
    """The trace of one of the two."""
    return trace(
        _events(name),
        deviceProperties=[
            {
                "id": 0,
                "name": "NVIDIA A100-SXM4-40GB",
                "computeMajor": 8,
                "computeMinor": 0,
                "numSms": 108,
                "totalGlobalMem": 40 << 30,
            }
        ],
        record_shapes=1,
    )


def _events(name: str) -> Iterator[dict[str, Any]]:
    at = 0
    for number in range(STEPS):
        begin, first = at, 10 * number
        loader_us = LOADER_US[name] + JITTER_US[number]
        yield host(LOADERS[name], at + 20, loader_us)
        at += loader_us + 60
        yield host("aten::to", at, 120)
        yield call("cudaMemcpyAsync", at + 20, 80, first + 1)
        yield kernel(
            *(at + 110, COPY_US, first + 1),
            "Memcpy HtoD (Pageable -> Device)",
            bytes=64 << 18,
        )
        at += 150
        yield host("aten::mm", at, 60, **_SHAPES)
        yield call("cudaLaunchKernel", at + 20, 20, first + 2)
        yield kernel(at - 150 + 115 + COPY_US, FORWARD_US, first + 2, "ampere_sgemm_128x64_tn")
        at += 80
        yield host("autograd::engine::evaluate_function: MmBackward0", at, 90)
        yield call("cudaLaunchKernel", at + 30, 20, first + 3)
        yield kernel(
            *(at - 230 + 120 + COPY_US + FORWARD_US, BACKWARD_US, first + 3),
            "ampere_sgemm_128x128_nt",
        )
        at += 100
        wait_us = COPY_US + FORWARD_US + BACKWARD_US - 210
        yield host("aten::item", at, wait_us + 20)
        yield call("cudaStreamSynchronize", at + 10, wait_us)
        at += wait_us + 60
        yield step(number, begin, at - begin)


def path_of(name: str) -> Path:
    """Where it is shipped."""
    return EXAMPLES / f"{name}.trace.json"


def text_of(name: str) -> str:
    """What is shipped: an event in each line."""
    made = training(name)
    events = ",\n".join(json.dumps(event) for event in made.pop("traceEvents"))
    return f'{json.dumps(made)[:-1]}, "traceEvents": [\n{events}\n]}}\n'


if __name__ == "__main__":
    for one in LOADER_US:
        path_of(one).write_text(text_of(one), encoding="utf-8")
