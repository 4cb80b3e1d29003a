"""Stacks in JSON documents: the same form wherever a document holds one."""

from typing import Any

from otel_gpu.enrich.activities import CallStack
from otel_gpu.enrich.stack_text import cut_frames, frame_type
from otel_gpu.stacks.frames import Frame

MAX_FRAMES = 64
"""Of one stack in a document; in the place of others there is one of type ``cut``."""


def stack_document(stack: CallStack) -> dict[str, Any]:
    """Return a stack, its frames innermost first."""
    return {
        "complete": stack.complete,
        "native": stack.native,
        "python": stack.python,
        "frames": [frame_document(frame) for frame in cut_frames(stack.frames, MAX_FRAMES)],
    }


def frame_document(frame: Frame) -> dict[str, Any]:
    """Return a frame; what is not known of it is left out."""
    document: dict[str, Any] = {"type": frame_type(frame), "function": frame.function}
    for name in ("file", "line", "module", "address"):
        value = getattr(frame, name)
        if value:
            document[name] = value
    return document
