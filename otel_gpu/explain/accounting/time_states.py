"""
The states of the time budget of launching threads.

A launching thread is one that makes CUDA calls. It is in one state at a time, so the budget sums to
wall time.
"""

from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.enrich.thread_times import ThreadTime, Wait
from otel_gpu.enrich.waits.reasons import WaitReason
from otel_gpu.explain import rules
from otel_gpu.explain.kinds import CauseKind, NodeKind, TimeState
from otel_gpu.wire.probe_table import API_BY_NUMBER

STATES: tuple[TimeState, ...] = tuple(state for state in TimeState if state != TimeState.IDLE)
"""Those of a budget."""
_LAUNCHING_CONTEXTS = frozenset({wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL})
_STATE_BY_KIND: Mapping[str, TimeState] = {
    CauseKind.GPU_WAIT: TimeState.GPU_WAIT,
    CauseKind.LOCK: TimeState.LOCK,
    CauseKind.GIL: TimeState.GIL,
    CauseKind.IO: TimeState.IO,
    CauseKind.IPC: TimeState.IPC,
    CauseKind.SLEEP: TimeState.SLEEP,
    CauseKind.PAGE_FAULT: TimeState.PAGING,
    CauseKind.RECLAIM: TimeState.PAGING,
    CauseKind.MMAP_LOCK: TimeState.PAGING,
    CauseKind.STOPPED: TimeState.STOPPED,
    CauseKind.FROZEN: TimeState.STOPPED,
    CauseKind.NETWORK: TimeState.IPC,
    CauseKind.RUN_QUEUE: TimeState.RUN_QUEUE,
    CauseKind.HOST_WORK: TimeState.HOST,
}
_PLACE_BY_CONTEXT: Mapping[int, rules.Place] = {
    wire.CONTEXT_GAP: rules.Place.GAP,
    wire.CONTEXT_SYNCHRONIZE: rules.Place.SYNCHRONIZE,
    wire.CONTEXT_CALL: rules.Place.CALL,
}
_ON_CPU: Mapping[int, TimeState] = {
    wire.CONTEXT_GAP: TimeState.HOST,
    wire.CONTEXT_SYNCHRONIZE: TimeState.GPU_WAIT,
    wire.CONTEXT_CALL: TimeState.API,
}


def state_of(state: int, context: int, reason: WaitReason) -> TimeState | None:
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
        return TimeState.RUN_QUEUE
    if state == wire.STATE_ON_CPU:
        return _ON_CPU[context]
    if context == wire.CONTEXT_GAP and reason == WaitReason.DRIVER:
        return TimeState.OTHER
    kind = rules.blocked_kind(reason, _PLACE_BY_CONTEXT[context])
    return _STATE_BY_KIND.get(kind, TimeState.OTHER)


def kind_of(time: ThreadTime) -> CauseKind | NodeKind:
    """Return the kind of cause of some time of a launching thread, or ``UNKNOWN``."""
    if time.state == wire.STATE_RUN_QUEUE:
        return CauseKind.RUN_QUEUE
    api = API_BY_NUMBER.get(time.wait.api) if time.context == wire.CONTEXT_CALL else None
    place = rules.place_of(api.family) if api else _PLACE_BY_CONTEXT[time.context]
    if time.state == wire.STATE_ON_CPU:
        kind = rules.on_cpu_kind(place)
    else:
        kind = rules.blocked_kind(time.reason, place)
    return NodeKind.UNKNOWN if kind == CauseKind.UNEXPLAINED else kind


def kind_of_end(wait: Wait) -> CauseKind:
    """Return the kind of cause of what the last thread in a chain of waits did."""
    if wait.end_state == wire.STATE_ON_CPU:
        return CauseKind.HOST_WORK
    if wait.end_state == wire.STATE_RUN_QUEUE:
        return CauseKind.RUN_QUEUE
    is_blocked = wait.end_state == wire.STATE_BLOCKED
    return (
        rules.blocked_kind(wait.end_reason, rules.Place.GAP)
        if is_blocked
        else CauseKind.UNEXPLAINED
    )


def state_of_kind(kind: CauseKind | NodeKind) -> TimeState:
    """Return the state in which a thread between calls loses time to a cause of this kind."""
    return _STATE_BY_KIND.get(kind, TimeState.OTHER)


def budget_of(times: Iterable[ThreadTime]) -> dict[TimeState, int]:
    """Return the time of the launching threads in each state, in nanoseconds; all states."""
    budget = dict.fromkeys(STATES, 0)
    for time in times:
        state = state_of(time.state, time.context, time.reason)
        if state is not None:
            budget[state] += max(0, time.time_ns)
    return budget
