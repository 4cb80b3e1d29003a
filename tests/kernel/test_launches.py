"""Which kernel a launch is of."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from otel_gpu.capture.recording import read_recording
from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.wire.decoder import decode
from tests.kernel.agent import Agent, losses, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS, StubLibraries

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("counted_by")]

TIMES = 31


def test_launches_have_the_name_of_their_kernel(
    tmp_path: Path, receiver: OtlpReceiver, stubs: StubLibraries
) -> None:
    """By an address of the host, by a handle for it or for a name; an older handle has none."""
    path = tmp_path / "launches.otelgpu"
    command = [sys.executable, WORKLOADS / "launches.py", stubs.runtime, stubs.driver, f"{TIMES}"]
    with Agent(receiver, command, flags=("--record", str(path), "--spans", "full")) as agent:
        finished = agent.wait()
    (said,) = finished.lines

    sent = Counter(
        (api, span.attributes.get("gpu.cuda.kernel.name"))
        for api in ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel")
        for span in spans(receiver, api, said["pid"])
    )
    assert sent == {
        ("cudaLaunchKernel", "stub_set"): TIMES,
        ("cudaLaunchKernelExC", "stub_set"): TIMES,
        ("cuLaunchKernel", "vector_kernel"): TIMES,
        ("cuLaunchKernel", "void matrix_kernel<float>(float*, int)"): TIMES,
        ("cuLaunchKernel", None): TIMES,
    }
    assert losses(receiver) == {}
    records = [record for batch in read_recording(path) for record in batch]
    replayed = Counter(
        (activity.api.name, activity.kernel or None)
        for activity in Enricher().enrich(decode(records, Counter()))
        if isinstance(activity, CallActivity)
        and (activity.api.name, activity.kernel or None) in sent
    )
    assert replayed == sent


FIRST_USES = """
import ctypes, json, os, sys, time
runtime = ctypes.CDLL(sys.argv[1])
handle, nothing = ctypes.c_void_p(), ctypes.c_void_p()
find = ctypes.cast(getattr(runtime, "__cudaGetKernel"), ctypes.c_void_p)

def launch(function):
    runtime.stub_call_inside(b"cudaLaunchKernel", function, ctypes.byref(handle))
    runtime.cudaLaunchKernel(runtime.stub_set, *[ctypes.c_uint64(1)] * 4, nothing, nothing, nothing)

launch(find)
time.sleep(0.05)
[launch(nothing) for _ in range(7)]
print(json.dumps({"pid": os.getpid()}))
"""


def test_the_first_use_of_a_kernel_is_said(receiver: OtlpReceiver, stubs: StubLibraries) -> None:
    """Where the program looks the kernel up right before the launch, or in it."""
    command = [sys.executable, "-c", FIRST_USES, stubs.runtime]
    with Agent(receiver, command, flags=("--spans", "full")) as agent:
        (said,) = agent.wait().lines

    choices = Counter(
        "first_use" in span.attributes["otel_gpu.choice"]
        for span in spans(receiver, "cudaLaunchKernel", said["pid"])
    )
    assert choices == {True: 1, False: 7}
    assert losses(receiver) == {}
