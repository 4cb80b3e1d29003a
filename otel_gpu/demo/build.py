"""Builds the programs of the scenarios with the host's compiler."""

import shutil
import subprocess
import sys
from pathlib import Path

from otel_gpu.demo.scenarios import FOLDER, Scenario
from otel_gpu.errors import OtelGpuError

LIBRARY = "libcudart.so.12"
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-pthread")
_LIBRARY_FLAGS = ("-shared", "-fPIC", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")


class DemoError(OtelGpuError):
    """A scenario cannot be run on this host."""


def build(scenario: Scenario, folder: Path) -> list[str]:
    """
    Build what a scenario needs.

    Args:
        scenario: The scenario.
        folder: Where the results go.

    Returns:
        The command that runs it.

    Raises:
        DemoError: There is no compiler, or it failed.
    """
    library = folder / LIBRARY
    _compile(library, (*_LIBRARY_FLAGS, str(FOLDER / "cudart.c")))
    source = FOLDER / scenario.program
    if source.suffix == ".py":
        return [sys.executable, str(source), str(library), scenario.name]
    program = folder / source.stem
    _compile(program, (str(source), "-ldl"))
    return [str(program), str(library), scenario.name]


def _compile(output: Path, arguments: tuple[str, ...]) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise DemoError(
            "there is no C compiler here",
            hint="install gcc, or play a recording: otel-gpu demo --synthetic",
        )
    command = (compiler, *_FLAGS, "-o", str(output), *arguments)
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise DemoError(f"{output.name} cannot be built: {result.stderr.strip()}")
