"""Fixtures of the GPU tests: a receiver, PyTorch's interpreter, the real runtime library."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter with PyTorch and CUDA: ``OTEL_GPU_TEST_TORCH_PYTHON``, else this one."""
    python = os.environ.get("OTEL_GPU_TEST_TORCH_PYTHON", sys.executable)
    check = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    if subprocess.run([python, "-c", check], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} has no PyTorch that sees a GPU (set OTEL_GPU_TEST_TORCH_PYTHON)")
    return python


@pytest.fixture(scope="session")
def real_cudart() -> Path:
    """The CUDA runtime of the nvidia-cuda-runtime wheel."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in sorted(Path(folder).rglob("libcudart.so.*")):
            return library
    pytest.skip("the nvidia-cuda-runtime wheel is not installed")


@pytest.fixture(scope="session")
def device_uuids() -> set[str]:
    """UUIDs of the GPUs as the driver's own tool says them, without ``GPU-``."""
    listed = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.strip().removeprefix("GPU-").lower() for line in listed.stdout.splitlines()}
