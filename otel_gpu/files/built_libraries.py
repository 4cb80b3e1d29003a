"""Where the libraries are that programs load: those of ``preload/``, for this machine."""

import platform
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).resolve().parent.parent / "_preload"
MARKS: Final = "libotel_gpu_marks"
"""By which programs say what they do."""
NVTX: Final = "libotel_gpu_nvtx"
"""By which ranges of NVTX are seen."""
CONTEXT: Final = "thread_context"
"""By which threads publish in which span they are."""
PRELOAD: Final = "otel_gpu_preload"
"""
The preload library, by which programs count their own calls.

Its name does not begin with ``libotel_``: programs stop when they load such a file
(``bpf/core/linker.bpf.c``), and this one is also preloaded into programs without CUDA.
"""


def built_library(name: str) -> Path:
    """Return where a library for this machine is, or would be."""
    return _FOLDER / f"{name}.{platform.machine()}.so"
