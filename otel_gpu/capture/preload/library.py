"""The preload library, which counts frequent CUDA calls inside a program; see preload/calls.c."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from otel_gpu.errors import HostError
from otel_gpu.files.built_libraries import PRELOAD, built_library


def library_path() -> Path:
    """Return the path of the library for this machine, which may not exist."""
    return built_library(PRELOAD)


def with_preload(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Return an environment with the library first in LD_PRELOAD.

    Raises:
        HostError: The library is missing for this machine, or LD_PRELOAD cannot contain its path.
    """
    path = library_path()
    if not path.exists():
        raise HostError(
            f"there is no preload library for {platform.machine()}: {path} is missing",
            hint="run `make preload`, use a wheel built for this machine, or do without --preload",
        )
    # Paths in LD_PRELOAD end at a space or a colon.
    if any(sign in str(path) for sign in ": "):
        raise HostError(
            f"{path} cannot be preloaded: its path has a space or a colon",
            hint="install otel-gpu in another folder, or do without --preload",
        )
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{path}{os.pathsep + others if others else ''}"}
