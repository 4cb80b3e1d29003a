"""
The states of the time budget of launching threads.

A launching thread is one that makes CUDA calls. It is in one state at a time, so the budget sums to
wall time.
"""

from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.enrich.thread_times import ThreadTime, Wait
from otel_gpu.explain import rules
from otel_gpu.wire.probe_table import API_BY_NUMBER

STATES: tuple[str, ...] = (
    "gpu_wait",
    "api",
    "host",
    "run_queue",
    "lock",
    "gil",
    "io",
    "ipc",
    "sleep",
    "paging",
    "stopped",
    "other",
)
_LAUNCHING_CONTEXTS = frozenset({wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL})
_STATE_BY_KIND: Mapping[str, str] = {
    "gpu_wait": "gpu_wait",
    "lock": "lock",
    "gil": "gil",
    "io": "io",
    "ipc": "ipc",
    "sleep": "sleep",
    "page_fault": "paging",
    "reclaim": "paging",
    "mmap_lock": "paging",
    "stopped": "stopped",
    "frozen": "stopped",
    "network": "ipc",
    "run_queue": "run_queue",
    "host_work": "host",
}
_PLACE_BY_CONTEXT: Mapping[int, str] = {
    wire.CONTEXT_GAP: rules.GAP,
    wire.CONTEXT_SYNCHRONIZE: rules.SYNCHRONIZE,
    wire.CONTEXT_CALL: rules.CALL,
}
_ON_CPU: Mapping[int, str] = {
    wire.CONTEXT_GAP: "host",
    wire.CONTEXT_SYNCHRONIZE: "gpu_wait",
    wire.CONTEXT_CALL: "api",
}


def state_of(state: int, context: int, reason: str) -> str | None:
    """
    Return the state of the budget that some time belongs to; None: not of a launching thread.

    Args:
        state: Enumerator of ``thread_state``.
        context: Enumerator of ``call_context``.
        reason: What the thread was blocked on, if it was.
    """
    if context not in _LAUNCHING_CONTEXTS:
        return None
    if state == wire.STATE_RUN_QUEUE:
        return "run_queue"
    if state == wire.STATE_ON_CPU:
        return _ON_CPU[context]
    if context == wire.CONTEXT_GAP and reason == "driver":
        return "other"
    kind = rules.blocked_kind(reason, _PLACE_BY_CONTEXT[context])
    return _STATE_BY_KIND.get(kind, "other")


def kind_of(time: ThreadTime) -> str:
    """Return the kind of cause of some time of a launching thread, or ``unknown``."""
    if time.state == wire.STATE_RUN_QUEUE:
        return "run_queue"
    api = API_BY_NUMBER.get(time.wait.api) if time.context == wire.CONTEXT_CALL else None
    place = rules.place_of(api.family) if api else _PLACE_BY_CONTEXT[time.context]
    if time.state == wire.STATE_ON_CPU:
        kind = rules.on_cpu_kind(place)
    else:
        kind = rules.blocked_kind(time.reason, place)
    return "unknown" if kind == "unexplained" else kind


def kind_of_end(wait: Wait) -> str:
    """Return the kind of cause of what the last thread in a chain of waits did."""
    if wait.end_state == wire.STATE_ON_CPU:
        return "host_work"
    if wait.end_state == wire.STATE_RUN_QUEUE:
        return "run_queue"
    is_blocked = wait.end_state == wire.STATE_BLOCKED
    return rules.blocked_kind(wait.end_reason, rules.GAP) if is_blocked else "unexplained"


def state_of_kind(kind: str) -> str:
    """Return the state in which a thread between calls loses time to a cause of this kind."""
    return _STATE_BY_KIND.get(kind, "other")


def budget_of(times: Iterable[ThreadTime]) -> dict[str, int]:
    """Return the time of the launching threads in each state, in nanoseconds; all states."""
    budget = dict.fromkeys(STATES, 0)
    for time in times:
        state = state_of(time.state, time.context, time.reason)
        if state is not None:
            budget[state] += max(0, time.time_ns)
    return budget
