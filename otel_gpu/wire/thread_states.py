"""What the scheduler does with a thread."""

from collections.abc import Mapping
from enum import StrEnum

from otel_gpu import wire


class ThreadState(StrEnum):
    """Whether a thread runs, and else why it does not."""

    ON_CPU = "on_cpu"
    RUN_QUEUE = "run_queue"
    BLOCKED = "blocked"


THREAD_STATES: Mapping[int, ThreadState] = {
    wire.STATE_ON_CPU: ThreadState.ON_CPU,
    wire.STATE_RUN_QUEUE: ThreadState.RUN_QUEUE,
    wire.STATE_BLOCKED: ThreadState.BLOCKED,
}
"""By the enumerator of ``thread_state`` in ``bpf/events.h``."""
