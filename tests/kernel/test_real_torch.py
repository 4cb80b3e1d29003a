"""
A real PyTorch, whose device is a stub: its calls are counted by probes and by the preload library.

``OTEL_GPU_TEST_TORCH`` names an interpreter that has one for CUDA 12, at least version 2.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.kernel.agent import Agent, calls, losses, total
from tests.preloaded import LIBRARY
from tests.receiver import OtlpReceiver
from tests.stubs.build import STUBS, stub_libraries

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(
        "OTEL_GPU_TEST_TORCH" not in os.environ,
        reason="OTEL_GPU_TEST_TORCH names no interpreter that has PyTorch",
    ),
]

PROGRAM = """
import torch
x = torch.zeros(1009, device="cuda")
host = torch.ones(1009)
for _ in range(1009): x.add_(1)
for _ in range(53): x * 2
for _ in range(31): x.copy_(host)
for _ in range(23): torch.cuda.synchronize()
event = torch.cuda.Event()
for _ in range(7): event.record(), event.query()
with torch.cuda.stream(torch.cuda.Stream()):
    for _ in range(101): x.mul_(2)
"""
EXPECTED = {
    "cudaLaunchKernel": 1 + 1009 + 53 + 101,
    "cudaMemcpyAsync": 31,
    "cudaStreamSynchronize": 31,
    "cudaDeviceSynchronize": 23,
    "cudaEventRecord": 7,
    "cudaEventQuery": 7,
    "cudaMalloc": 1,
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Have PyTorch find the stubs, and what else it asks CUDA for."""
    folder = tmp_path_factory.mktemp("torch")
    interpreter = os.environ["OTEL_GPU_TEST_TORCH"]
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    said = subprocess.run([interpreter, "-c", find], capture_output=True, text=True, check=True)
    packages = Path(said.stdout.strip()).parent
    libraries = [*packages.glob("torch/lib/*.so"), *packages.glob("nvidia/*/lib/*.so*")]
    runtime = stub_libraries().runtime
    known = defined_in(runtime)
    shim, driver = folder / "libshim.so", folder / "libcuda.so.1"
    source, shared = STUBS / "torch.c", ["gcc", "-w", "-shared", "-fPIC"]
    subprocess.run([*shared, "-DRUNTIME", source, "-o", shim], check=True)
    subprocess.run([*shared, "-Wl,-soname,libcuda.so.1", source, "-o", driver], check=True)
    # Functions that are only there to be found.
    others = {name for library in libraries for name in wanted_of(library)}
    others -= known | defined_in(shim)
    (folder / "others.c").write_text("".join(f"int {name}() {{ return 0; }}\n" for name in others))
    nothing = folder / "libothers.so"
    subprocess.run([*shared, folder / "others.c", "-o", nothing], check=True)
    return {
        "LD_LIBRARY_PATH": str(folder),
        "LD_PRELOAD": ":".join(map(str, (runtime, shim, nothing))),
        "PYTHONWARNINGS": "ignore",
    }


def names_of(library: Path, *flags: str) -> list[list[str]]:
    said = subprocess.run(
        ["nm", "-D", *flags, library], capture_output=True, text=True, check=False
    )
    return [line.split() for line in said.stdout.splitlines()]


def defined_in(library: Path) -> set[str]:
    return {fields[-1].partition("@")[0] for fields in names_of(library, "--defined-only")}


def wanted_of(library: Path) -> set[str]:
    names = [fields[-1].partition("@") for fields in names_of(library, "--undefined-only")]
    return {name for name, _, version in names if version.startswith("libcudart.so.12")}


@pytest.mark.parametrize("way", ["probes", "preload"])
def test_each_call_of_a_real_torch_is_counted(
    receiver: OtlpReceiver, environment: dict[str, str], way: str
) -> None:
    """Launches of its kernels, copies, events and waits, to the call."""
    interpreter = os.environ["OTEL_GPU_TEST_TORCH"]
    preload = (
        f"{LIBRARY}:{environment['LD_PRELOAD']}" if way == "preload" else environment["LD_PRELOAD"]
    )
    variables = environment | {"LD_PRELOAD": preload}
    command = ["env", *(f"{name}={value}" for name, value in variables.items())]
    flags = ("--preload",) if way == "preload" else ()
    with Agent(receiver, [*command, interpreter, "-c", PROGRAM], flags=flags) as agent:
        finished = agent.wait(120)

    assert finished.returncode == 0, finished.stderr
    assert {api: calls(receiver, api) for api in EXPECTED} == EXPECTED
    assert losses(receiver) == {}
    by_preload = total(receiver, "otel_gpu.preload.calls")
    assert by_preload > sum(EXPECTED.values()) - 8 if way == "preload" else by_preload == 0
