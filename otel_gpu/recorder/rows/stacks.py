"""
Stacks of programs as rows, and back.

The document of a stack has the form of its record's body. So one validation serves untrusted stores and
untrusted recordings.
"""

from collections.abc import Sequence

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.stack_table import find_place
from otel_gpu.enrich.stack_text import cut_frames, describe_place, stack_id_text
from otel_gpu.recorder.storable_text import clean, to_json
from otel_gpu.wire.bodies import MAX_FRAME_TEXT, MAX_FRAMES, USER_STACK
from otel_gpu.wire.frames import Frame

# Frames to try until they fit: three always do, also with the longest names.
_FRAMES = (MAX_FRAMES, 64, 16, 3)


def stack_columns(stack: CallStack) -> tuple[str, str, str]:
    """Return the columns ``id``, ``place`` and ``frames``. A stack too large loses middle frames."""
    place = describe_place(stack.place) if stack.place else ""
    documents = (_document(stack, cut_frames(stack.frames, most)) for most in _FRAMES)
    document = next((text for text in documents if text is not None), "")
    return stack_id_text(stack.id), clean(place), document


def read_stack(document: str) -> CallStack:
    """
    Decode the stack of a document; its place is computed again.

    Raises:
        ValueError: It is invalid.
    """
    body = USER_STACK.parse(document.encode())
    frames = tuple(map(Frame._make, body.frames))
    return CallStack(
        id=body.stack,
        frames=frames,
        complete=body.complete,
        native=body.native,
        python=body.python,
        place=find_place(frames),
    )


def _document(stack: CallStack, frames: Sequence[Frame]) -> str | None:
    return to_json(
        {
            "stack": stack.id,
            "complete": stack.complete,
            "native": stack.native,
            "python": stack.python,
            "frames": [
                (kind, _fit(function), _fit(file), line, _fit(module), address)
                for kind, function, file, line, module, address in frames
            ],
        }
    )


def _fit(text: str) -> str:
    # Nearly all need no change.
    if text.isascii() and len(text) <= MAX_FRAME_TEXT:
        return text
    return clean(text)[:MAX_FRAME_TEXT]
