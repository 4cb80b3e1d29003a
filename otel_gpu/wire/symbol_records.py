"""Events that describe the ids of other events: stacks, functions, resources, pids."""

from typing import NamedTuple

from otel_gpu.wire.bodies import ProcessFacts, ResourceFacts
from otel_gpu.wire.frames import Frame, PythonStatus, UnwindMethod


class Stack(NamedTuple):
    """The kernel functions of one stack, innermost first (from JSON)."""

    ktime_ns: int
    kernel_stack: int
    functions: tuple[str, ...]


class UserStack(NamedTuple):
    """
    Python and native frames of one user stack, innermost first (from JSON).

    ``stack`` is the id that calls and stalls refer to. ``complete``, ``native`` and ``python`` are
    those of ``frames.MergedStack``.
    """

    ktime_ns: int
    stack: int
    frames: tuple[Frame, ...]
    complete: bool
    native: UnwindMethod
    python: PythonStatus


class FunctionSeen(NamedTuple):
    """The name of a kernel that a process launches by a handle or an address (from JSON)."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    function: int
    name: str


class ResourceSeen(NamedTuple):
    """
    A resource behind a file descriptor that a thread waited for (from JSON).

    ``resource`` is the id that stalls and times refer to.
    """

    ktime_ns: int
    resource: int
    info: ResourceFacts


class CulpritSeen(NamedTuple):
    """Facts from /proc of an unwatched process that others waited for (from JSON)."""

    ktime_ns: int
    pid: int
    info: ProcessFacts


class ProcessSeen(NamedTuple):
    """Facts from /proc of one program while it lived (from JSON)."""

    ktime_ns: int
    program_ktime_ns: int
    pid: int
    facts: ProcessFacts
