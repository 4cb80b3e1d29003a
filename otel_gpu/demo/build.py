"""Builds the stand-ins for the CUDA library and PyTorch's allocator with the host's compiler."""

import shutil
import subprocess
import sys
from pathlib import Path

from otel_gpu.demo.memory_scenarios import ALLOCATOR
from otel_gpu.demo.scenarios import FOLDER, Scenario
from otel_gpu.errors import OtelGpuError

LIBRARY = "libcudart.so.12"
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden")


class DemoError(OtelGpuError):
    """This host cannot run a scenario."""


def build(scenario: Scenario, folder: Path) -> list[str]:
    """Build a scenario's libraries; return the command that runs it. ``DemoError`` on failure."""
    library = build_library(folder)
    if scenario.has_allocator:
        build_allocator(folder)
    return [sys.executable, "-E", str(scenario.program), str(library), scenario.name]


def build_library(folder: Path) -> Path:
    """Build the stand-in CUDA library into a folder. ``DemoError`` on failure."""
    return _compile(folder / LIBRARY, FOLDER / "cudart.c")


def build_allocator(folder: Path, *, is_old: bool = False, has_frames: bool = True) -> Path:
    """
    Build the allocator, and the CUDA library that it needs.

    ``is_old``: as in PyTorch 1.13. ``has_frames``: its functions keep frame pointers.
    """
    library = build_library(folder)
    old = ("-DOLD_SPELLING",) if is_old else ()
    frames = "-fno-omit-frame-pointer" if has_frames else "-fomit-frame-pointer"
    linked = (str(library), "-Wl,-rpath,$ORIGIN", "-pthread")
    return _compile(folder / ALLOCATOR, FOLDER / "c10.c", *old, frames, *linked)


def _compile(library: Path, source: Path, *more: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise DemoError(
            "no C compiler",
            hint="install gcc, or play a recording: otel-gpu demo --synthetic",
        )
    name = f"-Wl,-soname,{library.name}"
    command = (compiler, *_FLAGS, name, "-o", str(library), str(source), *more)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise DemoError(f"{library.name} cannot be built: {result.stderr.strip()}")
    return library
