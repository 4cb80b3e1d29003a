"""
User stacks by their ids, as records contain them, and where in the program each one was.

The agent sends a stack before the first record that refers to it, and again once enough others
were referred to for a reader to have evicted it. A reader that keeps at least as many,
and evicts the one that was not referred to for longest, has every one that is needed.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from otel_gpu.enrich.identity import libraries
from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.identity.libraries import is_standard_library, layer_of
from otel_gpu.enrich.waits.user_reasons import UserRule, find_user_rules
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Recent
from otel_gpu.wire.frames import Frame, FrameType
from otel_gpu.wire.symbol_records import UserStack

MAX_STACKS = 16_384
"""Stacks kept: at least as many as an agent of any version sends before it repeats one."""

LEAST_STACKS = 8_192
"""As many for an agent of this version, whose own table can shrink to it."""

# Texts of all frames, each frame counted once. Only a forged recording exceeds this.
_MAX_CHARACTERS = 16 << 20
_FRAME_CHARACTERS = 100
# Of a stack of 15 frames, and of a frame beside its text.
_STACK_BYTES, _FRAME_BYTES = 600, 100
_NOT_THE_PROGRAM = frozenset(
    {libraries.CUDA, libraries.DRIVER, libraries.FOREIGN_CALLS, libraries.C_LIBRARY}
)


class _Known(NamedTuple):
    stack: CallStack
    rules: tuple[UserRule, ...]


class StackTable:
    """The stacks of one capture, the latest ones; equal frames are kept once."""

    def __init__(self) -> None:
        self._stacks: Recent[int, _Known] = Recent(MAX_STACKS)
        self._frames: dict[Frame, Frame] = {}
        self._characters = 0
        CACHES.register(
            "user_stacks",
            self,
            "_stacks",
            release=StackTable._release,
            entry_bytes=_STACK_BYTES,
            least=LEAST_STACKS,
        )
        CACHES.register(
            "user_frames", self, "_frames", size_bytes="_characters", entry_bytes=_FRAME_BYTES
        )

    def learn(self, event: UserStack) -> None:
        """Add a stack; an earlier one with its id is replaced."""
        frames = tuple(self._intern(frame) for frame in event.frames)
        stack = CallStack(
            id=event.stack,
            frames=frames,
            complete=event.complete,
            native=event.native,
            python=event.python,
            place=find_place(frames),
        )
        self._stacks[event.stack] = _Known(stack, find_user_rules(frames))
        if self._characters > _MAX_CHARACTERS:
            # Frames of evicted stacks were counted until now.
            self._count_again()
            while self._characters > _MAX_CHARACTERS * 3 // 4:
                self._stacks.release(len(self._stacks) // 2 + 1)
                self._count_again()

    def find(self, stack_id: int) -> CallStack | None:
        """Return the stack with an id; None for 0, and for one that was not recorded."""
        known = self._find(stack_id)
        return None if known is None else known.stack

    def rules_of(self, stack_id: int) -> tuple[UserRule, ...]:
        """Return the rules of a stack for the reason of a wait."""
        known = self._find(stack_id)
        return () if known is None else known.rules

    def clear(self) -> None:
        """Forget everything: another capture begins."""
        self._stacks.clear()
        self._frames.clear()
        self._characters = 0

    def _find(self, stack_id: int) -> _Known | None:
        return self._stacks.use(stack_id) if stack_id else None

    def _intern(self, frame: Frame) -> Frame:
        known = self._frames.get(frame)
        if known is None:
            # Many frames are in one function, and more in one module.
            texts = map(sys.intern, (frame.function, frame.file, frame.module))
            function, file, module = texts
            known = Frame(frame.kind, function, file, frame.line, module, frame.address)
            self._frames[known] = known
            self._characters += _size_of(frame)
        return known

    def _release(self, count: int) -> None:
        self._stacks.release(count)
        self._count_again()

    def _count_again(self) -> None:
        self._frames = {
            frame: frame for known in self._stacks.values() for frame in known.stack.frames
        }
        self._characters = sum(map(_size_of, self._frames))


def find_place(frames: Sequence[Frame]) -> Frame | None:
    """
    Return the innermost frame of the program's own code; ``frames`` come innermost first.

    That is the first Python frame outside the standard library. Without Python, it is the first
    native frame outside the CUDA libraries, the C library and the code that carries calls from
    Python to C. None: not known, as the frame has no name, or was left out.
    """
    native: Frame | None = None
    library: Frame | None = None
    is_hidden = False
    for frame in frames:
        if frame.kind == FrameType.PYTHON:
            if not (frame.function or frame.file):
                return None
            if not is_standard_library(frame.file):
                return frame
            library = library or frame
        if frame.kind == FrameType.CUT and any(other.kind == FrameType.PYTHON for other in frames):
            return library
        if frame.kind == FrameType.NATIVE and native is None and not is_hidden:
            layer = layer_of(frame.module)
            if layer in (libraries.PYTHON, libraries.PYTHON_MODULE):
                # The wanted code is Python, and its frames are not known.
                is_hidden = True
            elif layer not in _NOT_THE_PROGRAM:
                native = frame
    if library is not None:
        # A thread of the standard library's own, or one whose rest was left out.
        return library
    return native if native is not None and (native.function or native.module) else None


def _size_of(frame: Frame) -> int:
    return _FRAME_CHARACTERS + len(frame.function) + len(frame.file) + len(frame.module)
