"""
Code locations, as answers write them.

Names of functions and files are chosen by the program, as names of threads are. They are never put
into a sentence, or next to each other in one string: a function can be called ``main
(train.py:1)``.
"""

from otel_gpu.mcp.answers import name_of, present, sanitize
from otel_gpu.mcp.tool import share
from otel_gpu.report.document import CallStack, CodeLines, Frame, FrameType
from otel_gpu.report.wording.formats import cut_frames, frame_type, stack_id_text

FRAME = ("type", "function", "where", "line")
"""The values of a frame; an unknown line is omitted."""
_MAX_LINES = 3
MAX_FUNCTION = 200
"""Length of a function's name or a path, in characters: C++ has long ones."""


def code_of(stack: CallStack | None) -> dict[str, object]:
    """Return the program's own innermost code, and the id for ``get_stacks``."""
    if stack is None:
        return {}
    code = {} if stack.place is None else {"code": _place(stack.place)}
    return code | {"stack_id": stack_id_text(stack.id)}


def lines_of(lines: CodeLines) -> dict[str, object]:
    """Return the lines that worked, with their samples; empty without samples."""
    each = [
        present(
            function=sanitize(line.where.function, MAX_FUNCTION),
            file=sanitize(line.where.file, MAX_FUNCTION),
            line=line.where.line,
            work=line.work,
        )
        | {"share": share(lines.share_of(line)), "samples": line.samples}
        for line in lines.each[:_MAX_LINES]
    ]
    return {"lines": each, "samples": lines.samples} if each else {}


def describe_stack(stack: CallStack, most: int, *, addresses: bool = False) -> dict[str, object]:
    """
    Return a stack, how it was unwound, and at most ``most`` frames, innermost first.

    ``addresses`` distinguish two calls in one native function.
    """
    return code_of(stack) | {
        "complete": stack.complete,
        "native": name_of(stack.native),
        "python": name_of(stack.python),
        "frames": [_frame(frame, addresses) for frame in cut_frames(stack.frames, most)],
    }


def names_of(stack: CallStack, most: int) -> tuple[tuple[str, str, str, int], ...]:
    """Return a key that is equal for stacks that look the same in an answer."""
    return tuple(
        (frame.function, frame.file, frame.module, frame.line)
        for frame in cut_frames(stack.frames, most)
    )


def _place(frame: Frame) -> dict[str, object]:
    names = {n: sanitize(getattr(frame, n), MAX_FUNCTION) for n in ("function", "file", "module")}
    return present(**names, line=frame.line)


def _frame(frame: Frame, addresses: bool) -> list[object]:
    row: list[object] = [name_of(frame_type(frame)), sanitize(frame.function, MAX_FUNCTION)]
    where = sanitize(frame.file or frame.module, MAX_FUNCTION)
    # Without a symbol, the address is all that is known.
    needs_address = not frame.function or (addresses and not frame.file)
    if frame.kind == FrameType.NATIVE and needs_address and frame.address:
        where += f"+{frame.address:#x}"
    if where or frame.line:
        row.append(where if frame.kind != FrameType.KERNEL else "")
    if frame.line:
        row.append(frame.line)
    return row
