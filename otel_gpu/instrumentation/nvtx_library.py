"""
The injection library for NVTX, with which an agent sees ranges of C, C++ and Python.

NVTX loads the library that ``NVTX_INJECTION64_PATH`` names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_gpu.files.built_libraries import NVTX, built_library

VARIABLE: Final = "NVTX_INJECTION64_PATH"


def library_path() -> Path:
    """Return the path of the native library for this machine, which need not exist."""
    return built_library(NVTX)


def is_injected(environ: Mapping[str, str]) -> bool:
    """Return whether the environment has NVTX load this library."""
    return Path(environ.get(VARIABLE, "")).name.startswith(f"{NVTX}.")
