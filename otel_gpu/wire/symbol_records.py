"""The events that say what numbers in other events stand for: stacks, functions, resources, pids."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from otel_gpu.wire.frames import Frame


class Stack(NamedTuple):
    """The kernel functions of one stack, innermost first (from JSON)."""

    ktime_ns: int
    kernel_stack: int
    functions: tuple[str, ...]


class UserStack(NamedTuple):
    """
    Python and native frames of one user stack, innermost first (from JSON).

    ``stack`` is the id that calls and stalls name it by. ``complete``, ``native`` and
    ``python`` are those of ``capture.stacks.frames.MergedStack``.
    """

    ktime_ns: int
    stack: int
    frames: tuple[Frame, ...]
    complete: bool
    native: str
    python: str


class FunctionSeen(NamedTuple):
    """The name of a kernel that a process launches by a handle or an address (from JSON)."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    function: int
    name: str


class ResourceSeen(NamedTuple):
    """
    What a resource is: something behind a file descriptor that a thread waited for (from JSON).

    ``resource`` is the id that stalls and times name it by; ``info`` has what of these is known:
    ``kind``, ``name``, ``file_system``, ``mount``, ``source``, ``is_remote``, ``is_incoming``,
    ``peers`` and ``retransmits``.
    """

    ktime_ns: int
    resource: int
    info: Mapping[str, Any]


class CulpritSeen(NamedTuple):
    """What /proc said about a process that is not watched, and kept others waiting (from JSON)."""

    ktime_ns: int
    pid: int
    info: Mapping[str, Any]


class ProcessSeen(NamedTuple):
    """What /proc said about one process image while it lived (from JSON)."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    facts: Mapping[str, Any]
