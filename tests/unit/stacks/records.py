"""Records of the kernel side, made from what a test says."""

import sys
from types import CodeType

from otel_gpu import wire

IMAGE_KTIME_NS = 77
STACK_POINTER = 0x7FFF_0000_1000
FIXED_BYTES = 80
"""Of a sample, before what there can be more or less of."""


def sample(
    token=1_000,
    *,
    pid=42,
    tid=43,
    program_ktime_ns=IMAGE_KTIME_NS,
    place=(0x1000, STACK_POINTER, 0, 0),
    words=(),
    returns=(),
    python=(),
    status=wire.PYTHON_COMPLETE,
    room=0,
    stack_bytes=None,
):
    """
    A RECORD_SAMPLE; ``python`` holds (code, offset, flags), ``returns`` pairs of addresses.

    ``room`` bytes follow the stack, as the kernel side leaves them; ``stack_bytes`` is what
    the record says, if not the truth.
    """
    stack = b"".join(word.to_bytes(8, "little") for word in words)
    frames = b"".join(wire.PYTHON_FRAME.pack(*frame) for frame in python)
    replaced = b"".join(wire.SAVED_RETURN.pack(*pair) for pair in returns)
    size = FIXED_BYTES + len(frames) + len(replaced) + len(stack) + room
    whole = wire.SAMPLE_RECORD.pack(
        wire.RECORD_SAMPLE,
        0,
        size,
        token,
        program_ktime_ns,
        pid,
        tid,
        *place,
        len(returns),
        len(python),
        status,
        len(stack) if stack_bytes is None else stack_bytes,
        b"",
        b"",
    )
    return b"".join((whole[:FIXED_BYTES], frames, replaced, stack, b"\xaa" * room))


def code(name: int, source: CodeType, *, pid=42, program_ktime_ns=IMAGE_KTIME_NS):
    """A RECORD_CODE of a code object of this interpreter, which frames call ``name``."""
    file, qualified_name = (
        text.encode("latin-1") for text in (source.co_filename, source.co_qualname)
    )
    table = source.co_linetable
    return wire.CODE_RECORD.pack(
        wire.RECORD_CODE,
        0,
        wire.CODE_RECORD.size,
        1,
        program_ktime_ns,
        pid,
        43,
        name,
        0,
        source.co_firstlineno,
        sys.version_info.major << 8 | sys.version_info.minor,
        len(table),
        len(table),
        len(file),
        1,
        file,
        len(qualified_name),
        1,
        qualified_name,
        table,
    )


def cuda_call(user_stack, *, api=10, **values):
    """A RECORD_CUDA_CALL with the token of a sample; 10 is cudaMalloc."""
    kind = wire.RECORD_CUDA_CALL
    return _of_a_thread(wire.CUDA_CALL_RECORD, kind=kind, user_stack=user_stack, api=api, **values)


def stall(user_stack, **values):
    """A RECORD_STALL with the token of a sample."""
    return _of_a_thread(wire.STALL_RECORD, kind=wire.RECORD_STALL, user_stack=user_stack, **values)


def _of_a_thread(layout, **values):
    thread = {"program_ktime_ns": IMAGE_KTIME_NS, "pid": 42, "tid": 43, "comm": b"python"}
    return layout.build(**{"size": layout.size, "ktime_ns": 2_000} | thread | values)


def cpu_sample(user_stack, **values):
    return _of_a_thread(
        wire.CPU_SAMPLE_RECORD, kind=wire.RECORD_CPU_SAMPLE, user_stack=user_stack, **values
    )


def block_stack(user_stack, **values):
    """A RECORD_BLOCK_STACK with the token of a sample."""
    thread = {"program_ktime_ns": IMAGE_KTIME_NS, "pid": 42, "tid": 43, "ktime_ns": 2_000}
    layout, kind = wire.BLOCK_STACK_RECORD, wire.RECORD_BLOCK_STACK
    return layout.build(size=layout.size, kind=kind, user_stack=user_stack, **thread | values)


_LAYOUTS = {
    wire.RECORD_BLOCK_STACK: wire.BLOCK_STACK_RECORD,
    wire.RECORD_CUDA_CALL: wire.CUDA_CALL_RECORD,
    wire.RECORD_STALL: wire.STALL_RECORD,
    wire.RECORD_CPU_SAMPLE: wire.CPU_SAMPLE_RECORD,
}


def user_stack_of(record):
    """The id, or token, in a call, stall or sample of a thread on a CPU."""
    return _LAYOUTS[int.from_bytes(record[:2], "little")].named(record)["user_stack"]
