"""Paths of the libraries that programs load: those of ``preload/``, built for this machine."""

import platform
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent.parent / "_preload"
MARKS: Final = "libotel_gpu_marks"
"""Programs call it to mark phases and steps."""
NVTX: Final = "libotel_gpu_nvtx"
"""NVTX loads it, so that the agent sees ranges."""
CONTEXT: Final = "thread_context"
"""Threads publish their active span with it."""
PRELOAD: Final = "otel_gpu_preload"
"""
The preload library, which counts the calls of its program.

Its name does not begin with ``libotel_``: the agent stops programs when
they load such a file (``bpf/core/linker.bpf.c``), and this one is preloaded into programs without CUDA too.
"""


def built_library(name: str) -> Path:
    """Return the path of a library for this machine, whether or not it was built."""
    return _FOLDER / f"{name}.{platform.machine()}.so"
