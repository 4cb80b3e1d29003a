"""Why a thread does not run."""

from collections.abc import Mapping
from enum import StrEnum


class WaitReason(StrEnum):
    """What a blocked thread waits for; in a run queue, whether its CPU was taken away."""

    NONE = ""
    """It is not blocked, or what it waits for was not read yet."""
    UNKNOWN = "unknown"
    GIL = "gil"
    LOCK = "lock"
    IO = "io"
    IPC = "ipc"
    SLEEP = "sleep"
    PAGE_FAULT = "page_fault"
    RECLAIM = "reclaim"
    MMAP_LOCK = "mmap_lock"
    CHILD_WAIT = "child_wait"
    STOPPED = "stopped"
    FROZEN = "frozen"
    """By its cgroup, and not by a signal."""
    CAPTURE = "capture"
    """The agent stopped it, until its probes are in place."""
    DRIVER = "driver"
    QUEUE = "queue"
    """For an item that another thread or process puts in. Only user stacks show it."""
    NETWORK = "network"
    """For a host that this one connected to. Only the resource of the system call shows it."""
    PREEMPTED = "preempted"
    """Only of a thread in a run queue: its CPU was taken away. Others were woken."""

    # Times are sorted by their whole kind; a member sorts like its text.
    __repr__ = str.__repr__


REASONS = frozenset(WaitReason) - {WaitReason.NONE, WaitReason.PREEMPTED}
"""Those of blocked threads."""

_BY_TEXT: Mapping[str, WaitReason] = {reason.value: reason for reason in WaitReason}


def read_reason(text: str) -> WaitReason:
    """Return the reason with a text; ``unknown`` for one that this version does not have."""
    return _BY_TEXT.get(text, WaitReason.UNKNOWN)
