"""Finds one stack of a window by its id."""

from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    OpenCallActivity,
    SampleActivity,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import CallStack

MAX_OPEN = 10_000
"""The limit of counted open calls."""


class StackFinder:
    """
    Searches activities for one stack.

    Attributes:
        found: The stack; None: not found.
    """

    def __init__(self, stack_id: int) -> None:
        self._id = stack_id
        self.found: CallStack | None = None
        self._open_calls: set[tuple[int, int]] = set()

    @property
    def open_calls(self) -> int:
        """The number of open calls at this stack."""
        return len(self._open_calls)

    def observe(self, activity: Activity) -> None:
        """Search one activity."""
        if isinstance(activity, CallActivity | StallActivity | SampleActivity | OpenCallActivity):
            stack = activity.stack
            if stack is not None and stack.id == self._id:
                self.found = stack
                if isinstance(activity, OpenCallActivity) and len(self._open_calls) < MAX_OPEN:
                    # An open call is reported repeatedly.
                    self._open_calls.add((activity.event.tid, activity.start_unix_ns))
