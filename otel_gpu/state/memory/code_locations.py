"""Where in a program memory was allocated: the line of its own code, not of its framework."""

import re
from collections.abc import Sequence
from typing import Final

from otel_gpu.enrich.stack_table import find_place
from otel_gpu.state.memory.snapshot import NOWHERE
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.memory_snapshot import NO_STACK

# Code that allocates for its caller.
_FRAMEWORK: Final = re.compile(
    r"(?:.*/)?(?:site|dist)-packages/(?:torch|torchgen|functorch|triton|einops|einx|jaxtyping)/.*"
    r"|<@beartype.*|<eval_with_key>.*"
)
_BACKWARD: Final = "torch::autograd::"
_ALLOCATOR: Final = re.compile(r"torch::unwind|torch::CapturedTraceback|torch::cuda::|c10::|at::")


class StackLocations:
    """Finds the code location of stacks by their number."""

    def __init__(self, stacks: Sequence[tuple[Frame, ...]]) -> None:
        self._stacks = stacks
        self._known: dict[int, Frame] = {NO_STACK: NOWHERE}

    def __call__(self, stack: int) -> Frame:
        """Return the code location of a stack; ``NOWHERE``: not known."""
        known = self._known.get(stack)
        if known is None:
            frames = self._stacks[stack] if stack < len(self._stacks) else ()
            known = self._known[stack] = find_allocating_place(frames)
        return known


def find_allocating_place(frames: Sequence[Frame]) -> Frame:
    """
    Return the innermost frame of the program's own code, like ``find_place``, but not of PyTorch.

    Threads of the backward pass have no Python frames: theirs is the one of autograd.
    """
    python = [frame for frame in frames if frame.kind == FrameType.PYTHON]
    own = [frame for frame in python if not _FRAMEWORK.fullmatch(frame.file)]
    found = find_place(own) or find_place(python)
    if found is None:
        backward = (frame for frame in frames if frame.function.startswith(_BACKWARD))
        native = (frame for frame in frames if not _ALLOCATOR.match(frame.function))
        found = next(backward, None) or next(native, None) or find_place(frames)
    return found or NOWHERE
