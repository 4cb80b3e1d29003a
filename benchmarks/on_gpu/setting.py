"""Where a run takes place: which libraries and programs it is about, and how long it may take."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TextIO

from tests.stubs.build import allocator, stub_libraries, stub_nccl

_MAPS = """
import ctypes, sys
for name in ("libcuda.so.1", *sys.argv[1:]):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
try:
    import torch
except ImportError:
    pass
print(open("/proc/self/maps").read())
"""
_NAMES = ("libcuda.so", "libcudart.so", "libnccl.so", "libc10.so")


@dataclass
class Setting:
    """
    A run.

    Attributes:
        uses_stubs: Whether stand-ins are called in the place of a device.
        log: Takes what parts print.
        scratch: A folder for files that nobody else uses.
    """

    uses_stubs: bool
    log: TextIO
    scratch: Path

    def say(self, text: str) -> None:
        """Write a line to the log, and for whoever watches."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        print(line, file=self.log, flush=True)
        print(line, flush=True)

    @cached_property
    def torch_python(self) -> str | None:
        """An interpreter with PyTorch that sees a GPU, if there is one."""
        python = os.environ.get("OTEL_GPU_TEST_TORCH_PYTHON", sys.executable)
        check = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
        if self.uses_stubs:
            return None
        found = subprocess.run([python, "-c", check], capture_output=True, check=False)
        return python if not found.returncode else None

    @cached_property
    def libraries(self) -> list[Path]:
        """The libraries whose functions are probed: those that a program with PyTorch maps."""
        if self.uses_stubs:
            # Others may have probes on the same files.
            own = [Path(shutil.copy(one, self.scratch)) for one in (*stub_libraries(), stub_nccl())]
            # It needs another runtime beside it.
            beside = shutil.copytree(allocator().parent, self.scratch / "c10")
            return [*own, Path(beside, allocator().name)]
        wheels = (str(path) for path in _libraries_of_wheels())
        python = self.torch_python or sys.executable
        shown = subprocess.run(
            [python, "-c", _MAPS, *wheels], capture_output=True, text=True, check=True
        )
        paths = {line.split(maxsplit=5)[5] for line in shown.stdout.splitlines() if "/" in line}
        return sorted(Path(path) for path in paths if Path(path).name.startswith(_NAMES))

    def library(self, name: str) -> Path | None:
        """Return the first library whose file's name begins so."""
        return next((path for path in self.libraries if path.name.startswith(name)), None)


def _libraries_of_wheels() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, (spec.submodule_search_locations or ()) if spec else ())
    return [
        path for folder in folders for name in _NAMES for path in sorted(folder.rglob(f"{name}*"))
    ]


Run = Callable[[Setting, float], object]
