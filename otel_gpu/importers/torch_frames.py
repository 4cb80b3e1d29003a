"""Frames of stacks as PyTorch writes them: a file, a line and a name."""

from typing import Final

from otel_gpu.wire.frames import Frame, FrameType, clean

_MAX_LINE: Final = (1 << 31) - 1


def frame_of(file: str, line: int, function: str) -> Frame:
    """Return a Python frame, or a native one if the file is not Python source."""
    path = file.replace("\\", "/") if file[1:3] == ":\\" else file
    is_python = path.endswith((".py", ".pyx", ">")) or path.startswith("<")
    known = "" if path == "??" else clean(path)
    return Frame(
        kind=FrameType.PYTHON if is_python else FrameType.NATIVE,
        function=clean(function),
        file=known,
        line=max(0, min(line, _MAX_LINE)),
    )
