"""Our library that counts the hot calls of the program that preloads it; see preload/calls.c."""

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from otel_gpu.errors import HostError
from otel_gpu.files.built_libraries import PRELOAD, built_library


def library_path() -> Path:
    """Return where the library for this machine is, or would be."""
    return built_library(PRELOAD)


def with_preload(environment: Mapping[str, str]) -> dict[str, str]:
    """
    Return an environment whose programs preload the library, before what they preload already.

    Raises:
        HostError: It was not built for this machine.
    """
    path = library_path()
    if not path.exists():
        raise HostError(
            f"there is no preload library for {platform.machine()}: {path} is missing",
            hint="run `make preload`, use a wheel built for this machine, or do without --preload",
        )
    # A preloaded path ends at a space or a colon, so the path itself may have neither.
    if any(sign in str(path) for sign in ": "):
        raise HostError(
            f"{path} cannot be preloaded: its path has a space or a colon",
            hint="install otel-gpu in another folder, or do without --preload",
        )
    others = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{path}{os.pathsep + others if others else ''}"}
