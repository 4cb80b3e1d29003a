"""
The library for NVTX: with it an agent sees the ranges of C and C++, and those of Python as well.

``NVTX_INJECTION64_PATH`` names it to the program; NVTX itself loads it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_gpu.files.built_libraries import NVTX, built_library

VARIABLE: Final = "NVTX_INJECTION64_PATH"


def library_path() -> Path:
    """Return where the native library for this machine is, or would be."""
    return built_library(NVTX)


def is_injected(environ: Mapping[str, str]) -> bool:
    """Return whether NVTX loads it, or has loaded it."""
    return Path(environ.get(VARIABLE, "")).name.startswith(f"{NVTX}.")
