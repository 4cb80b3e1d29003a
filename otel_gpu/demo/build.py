"""Builds the stand-in for the CUDA library with the host's compiler."""

import shutil
import subprocess
import sys
from pathlib import Path

from otel_gpu.demo.scenarios import FOLDER, Scenario
from otel_gpu.errors import OtelGpuError

LIBRARY = "libcudart.so.12"
_FLAGS = (
    *("-std=gnu11", "-O2", "-g", "-Wall"),
    *("-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}"),
)


class DemoError(OtelGpuError):
    """A scenario cannot be run on this host."""


def build(scenario: Scenario, folder: Path) -> list[str]:
    """Build what a scenario needs; the command that runs it. ``DemoError`` without a compiler."""
    library = folder / LIBRARY
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise DemoError(
            "there is no C compiler here",
            hint="install gcc, or play a recording: otel-gpu demo --synthetic",
        )
    command = (compiler, *_FLAGS, "-o", str(library), str(FOLDER / "cudart.c"))
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise DemoError(f"{library.name} cannot be built: {result.stderr.strip()}")
    return [sys.executable, str(FOLDER / "trainer.py"), str(library), scenario.name]
