"""One stack of a window, by its id."""

from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    OpenCallActivity,
    SampleActivity,
    StallActivity,
)
from otel_gpu.enrich.identity.identities import CallStack

MAX_OPEN = 10_000
"""Calls that had not returned, as far as they are counted."""


class StackFinder:
    """
    Watches activities for one stack.

    Attributes:
        found: The stack; None: nothing was there.
    """

    def __init__(self, stack_id: int) -> None:
        self._id = stack_id
        self.found: CallStack | None = None
        self._open_calls: set[tuple[int, int]] = set()

    @property
    def open_calls(self) -> int:
        """How many calls that had not returned were there."""
        return len(self._open_calls)

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        if isinstance(activity, CallActivity | StallActivity | SampleActivity | OpenCallActivity):
            stack = activity.stack
            if stack is not None and stack.id == self._id:
                self.found = stack
                if isinstance(activity, OpenCallActivity) and len(self._open_calls) < MAX_OPEN:
                    # One that goes on is reported again and again.
                    self._open_calls.add((activity.event.tid, activity.start_unix_ns))
