"""Frames and stacks: native, Python and merged."""

import json
import re
from enum import StrEnum
from hashlib import blake2b
from typing import Final, NamedTuple

_ID_BYTES: Final = 8
_ID_MASK: Final = (1 << 63) - 1

CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
"""
Characters that no text of a frame contains: control characters, characters that hide or
reverse text, and halves of surrogate pairs.
"""


MAX_TEXT: Final = 512
"""Characters of a name; a longer one is cut, and ends with an ellipsis."""


def clean(text: str) -> str:
    """Replace ``CONTROLS`` in a text, and cut it to ``MAX_TEXT`` characters."""
    text = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text[: MAX_TEXT + 1])
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"


class FrameType(StrEnum):
    """The type of a frame, in ``profile.frame.type`` and in graphs of stacks."""

    PYTHON = "cpython"
    NATIVE = "native"
    KERNEL = "kernel"
    CUT = "cut"
    """Replaces frames in the middle of a deep stack; its function states how many."""
    # Those below are in reports only, and not in records.
    CUDA = "cuda"
    """A native frame in a CUDA library; no ``Frame`` has it."""
    WAIT = "wait"
    """The reason of a wait."""
    PROCESS = "process"
    THREAD = "thread"
    DEVICE = "device"
    UNKNOWN = "unknown"
    """Stands for unknown code."""
    NONE = ""
    """Of a place that is no function."""


RECORDED_TYPES: Final = frozenset(
    {FrameType.PYTHON, FrameType.NATIVE, FrameType.KERNEL, FrameType.CUT}
)
"""Those that frames of records can have."""


class UnwindMethod(StrEnum):
    """How the native frames of a stack were found."""

    EH_FRAME = "eh_frame"
    FRAME_POINTER = "frame_pointer"
    """The frame pointer was followed at least once."""
    NONE = "none"


class PythonStatus(StrEnum):
    """Whether a stack has its Python frames, and else why not."""

    COMPLETE = "ok"
    NONE = "none"
    """The process runs no Python."""
    NO_THREAD = "no_thread"
    CUT = "cut"
    BROKEN = "broken"


class Frame(NamedTuple):
    """
    One function on a stack.

    ``function`` is the qualified name of Python code or the demangled name of native code;
    empty: unknown. ``line`` is the current line; 0: unknown. ``module`` is the file name of the
    library or executable (native only), and ``address`` the address in its symbol table.
    """

    kind: FrameType
    function: str
    file: str = ""
    line: int = 0
    module: str = ""
    address: int = 0


def cut_frame(count: int) -> Frame:
    """Return a frame that replaces ``count`` frames."""
    return Frame(FrameType.CUT, f"{count} frame{'' if count == 1 else 's'} left out")


class NativeStack(NamedTuple):
    """
    Code addresses of one thread in user space, innermost first.

    The first is the instruction pointer. The others are return addresses, so the call is before
    them: look symbols up at ``address - 1``.

    Attributes:
        complete: The walk ended at the start of the thread, not for lack of memory or tables.
        method: ``NONE``: no step.
        words: Positions in the copied stack, in 8-byte words, that the walk read. The same
            registers and words give the same walk.
        uses_frame_pointer: False: that register can differ as well.
        stack_pointers: The stack pointer in each frame; empty: not all are known.
    """

    addresses: tuple[int, ...]
    complete: bool
    method: UnwindMethod
    words: tuple[int, ...] = ()
    uses_frame_pointer: bool = True
    stack_pointers: tuple[int, ...] = ()


class PythonStack(NamedTuple):
    """
    Python frames of one thread, innermost first.

    Attributes:
        entries: Positions in ``frames`` of the outermost frame of each evaluation loop, which C
            code called. A position not above the one before it, or -1, is of a loop without
            a frame.
        status: ``enum python_status``.
        places: For each entry an address on the stack in the native frame of its loop; 0:
            unknown.
    """

    frames: tuple[Frame, ...]
    entries: tuple[int, ...]
    status: int
    places: tuple[int, ...] = ()


class MergedStack(NamedTuple):
    """
    One stack of Python and native frames, innermost first.

    ``complete`` is True when both walks reached the start of the thread and fit together.
    """

    frames: tuple[Frame, ...]
    complete: bool
    native: UnwindMethod
    python: PythonStatus

    @property
    def identity(self) -> int:
        """
        A hash of the stack, in 63 bits and never 0.

        The same stack has the same id in every process, on every host and in every run.
        """
        order = ("complete", "native", "python", "frames")
        body = {name: getattr(self, name) for name in order}
        canonical = json.dumps(body, separators=(",", ":")).encode("ascii")
        digest = blake2b(canonical, digest_size=_ID_BYTES).digest()
        return int.from_bytes(digest, "little") & _ID_MASK or 1
