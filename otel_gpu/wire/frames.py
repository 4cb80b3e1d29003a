"""What a merged stack is made of."""

import json
import re
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

# profile.frame.type of the semantic conventions.
PYTHON: Final = "cpython"
NATIVE: Final = "native"
KERNEL: Final = "kernel"
# Ours: stands for frames in the middle of a deep stack; its function says how many.
CUT: Final = "cut"

_ID_BYTES: Final = 8
_ID_MASK: Final = (1 << 63) - 1

CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
"""
What no text of a frame may hold: what a terminal or a log would act on, what hides text or
turns it around, and halves of surrogate pairs.
"""


MAX_TEXT: Final = 512
"""Characters of a name; a longer one is cut, and ends with an ellipsis."""


def clean(text: str) -> str:
    """Return a text as a frame may hold it: without ``CONTROLS``, and not too long."""
    text = CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text[: MAX_TEXT + 1])
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "\N{HORIZONTAL ELLIPSIS}"


class Frame(NamedTuple):
    """
    One function on a stack.

    ``function`` is the qualified name of Python code or the demangled name of native code;
    empty when no symbol is known. ``line`` is the current line, 0 when it is not known.
    ``module`` is the file name of the library or executable (native only), and ``address``
    the address in it, as its symbol table counts.
    """

    kind: str
    function: str
    file: str = ""
    line: int = 0
    module: str = ""
    address: int = 0


def cut_frame(count: int) -> Frame:
    """Return a frame that stands for frames which were left out."""
    return Frame(CUT, f"{count} frame{'' if count == 1 else 's'} left out")


class NativeStack(NamedTuple):
    """
    Code addresses of one thread in user space, innermost first.

    The first is where the thread goes on; the others are return addresses, so the call is
    before them: look symbols up at ``address - 1``. ``complete`` says that the walk ended at
    the beginning of the thread and not for want of memory or tables. ``method`` is
    ``eh_frame``, ``frame_pointer`` if that was followed at least once, ``none`` for no step.
    ``words`` are the positions in the copied stack (in 8-byte words) that the walk read: the
    same registers and the same words give the same walk, and if not ``uses_frame_pointer``
    that register may differ. ``stack_pointers`` are the stack pointer in each frame, where
    they are known of all.
    """

    addresses: tuple[int, ...]
    complete: bool
    method: Literal["eh_frame", "frame_pointer", "none"]
    words: tuple[int, ...] = ()
    uses_frame_pointer: bool = True
    stack_pointers: tuple[int, ...] = ()


class PythonStack(NamedTuple):
    """
    Python frames of one thread, innermost first.

    ``entries`` are the positions in ``frames`` of those that were called from C: each is
    the outermost of one evaluation loop. One that is not above the one before it, or -1, is
    of a loop without a frame. ``status`` is ``enum python_status``. ``places`` are addresses
    on the stack, one for each entry, that are in the native frame of its loop; 0: not known.
    """

    frames: tuple[Frame, ...]
    entries: tuple[int, ...]
    status: int
    places: tuple[int, ...] = ()


class MergedStack(NamedTuple):
    """
    One stack of Python and native frames, innermost first.

    ``complete`` is true when both walks reached the beginning of the thread and fit
    together. ``native`` and ``python`` say how each was obtained, or why it is missing:
    NativeStack's methods, and ``ok``, ``none``, ``no_thread``, ``cut`` or ``broken``.
    """

    frames: tuple[Frame, ...]
    complete: bool
    native: str
    python: str

    @property
    def identity(self) -> int:
        """
        A hash of what the stack shows, in 63 bits and never 0.

        So the same stack has the same id in every process, on every host and in every run.
        """
        order = ("complete", "native", "python", "frames")
        body = {name: getattr(self, name) for name in order}
        canonical = json.dumps(body, separators=(",", ":")).encode("ascii")
        digest = blake2b(canonical, digest_size=_ID_BYTES).digest()
        return int.from_bytes(digest, "little") & _ID_MASK or 1
