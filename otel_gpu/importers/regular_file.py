"""A file that is named to be imported: checked before it is opened."""

import stat
from pathlib import Path

from otel_gpu.importers.plain_pickle import UnreadableError


def check_file(path: Path, max_bytes: int) -> int:
    """
    Return when a file was written, in Unix nanoseconds; it is not opened.

    Raises:
        UnreadableError: It is a folder, a pipe or a device, or is larger than ``max_bytes``.
        OSError: It cannot be looked at.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableError("it is not a regular file")
    if status.st_size > max_bytes:
        raise UnreadableError(f"it has more than {max_bytes:,} bytes")
    return status.st_mtime_ns
