"""The real CUDA runtime, called by a program that knows nothing of us."""

import platform
import re
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.kernel.agent import CALL_DURATION, Agent, calls, losses, points, spans
from tests.receiver import OtlpReceiver
from tests.stubs.build import WORKLOADS

pytestmark = pytest.mark.kernel

APIS = (
    *("cudaMalloc", "cudaFree", "cudaDeviceSynchronize"),
    *("cudaEventElapsedTime", "cudaEventQuery"),
)


def test_failing_calls_of_an_unmodified_program_are_error_spans(
    receiver: OtlpReceiver, real_cudart: Path
) -> None:
    """Each failed call is a span with status ERROR and the symbolic CUDA error, and counts once."""
    command = [sys.executable, WORKLOADS / "real_cudart.py", real_cudart, "23"]
    with Agent(receiver, command) as agent:
        finished = agent.wait()
    (line,) = finished.lines
    if set(line["results"]) != {"35"}:
        pytest.skip(f"this machine's CUDA answers {line['results']}, so nothing fails here")

    for api in APIS:
        assert calls(receiver, api, line["pid"]) == 23
        assert calls(receiver, api, line["pid"], error__type="cudaErrorInsufficientDriver") == 23
        failed = spans(receiver, api, line["pid"])
        assert len(failed) == 23
        for span in failed:
            assert span.span.status.code == Status.STATUS_CODE_ERROR
            assert span.attributes["error.type"] == "cudaErrorInsufficientDriver"
            assert span.attributes["gpu.cuda.result"] == 35
    assert points(receiver, "gpu.cuda.event.elapsed", line["pid"]) == []
    assert losses(receiver) == {}
    assert finished.returncode == 0


def test_what_newer_programs_launch_with_jumps_to_what_is_probed(real_cudart: Path) -> None:
    """PyTorch calls ``__cudaLaunchKernel`` only, which is ``cudaLaunchKernel`` behind a frame that is undone."""
    if platform.machine() != "x86_64":
        pytest.skip("its instructions are known for x86-64")
    with real_cudart.open("rb") as stream:
        file = ELFFile(stream)
        exported = file.get_section_by_name(".dynsym")
        at, probed = (
            exported.get_symbol_by_name(name)[0]["st_value"]
            for name in ("__cudaLaunchKernel", "cudaLaunchKernel")
        )
        stream.seek(next(file.address_offsets(at)))
        code = stream.read(32)
    # endbr64?, push %rbp, mov %rsp,%rbp, pop %rbp, jmp with a distance of 32 bits.
    found = re.match(rb"(?:\xf3\x0f\x1e\xfa)?\x55\x48\x89\xe5\x5d\xe9(.{4})", code, re.DOTALL)

    assert found is not None, code.hex(" ")
    assert at + found.end() + int.from_bytes(found[1], "little", signed=True) == probed


def test_the_service_is_the_script(receiver: OtlpReceiver, real_cudart: Path) -> None:
    """A Python program is named by its script, not by the interpreter."""
    command = [sys.executable, WORKLOADS / "real_cudart.py", real_cudart, "1"]
    with Agent(receiver, command) as agent:
        pid = agent.wait().lines[0]["pid"]

    services = {p.resource["service.name"] for p in points(receiver, CALL_DURATION, pid)}
    assert services == {"real_cudart.py"}
