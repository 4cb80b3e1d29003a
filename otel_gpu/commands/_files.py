"""
Files that results are written to.

Not a verb: ``explain`` and ``stacks`` use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from otel_gpu.errors import OtelGpuError


@contextmanager
def open_for_writing(path: Path) -> Iterator[TextIO]:
    """
    Open a file that a person named; an old one is replaced.

    Raises:
        OtelGpuError: It cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise OtelGpuError(
            f"{path}: cannot be written: {error.strerror}",
            hint="name a file in a folder that exists and can be written",
        ) from error
