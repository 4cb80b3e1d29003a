"""
Verdicts: what bounds a process, from where the time of its feeder threads went.

A feeder thread is one that makes CUDA calls. Each moment of it is in one state of the
budget, so the budget sums to wall time. ``communication-bound`` is not said: waits for
collectives cannot be distinguished from other waits for the device before NCCL calls are seen.
"""

from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.enrich.activities import Series, ThreadTime
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Verdict
from otel_gpu.explain.settings import Settings
from otel_gpu.ledger.ledger import Figures

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
    "other",
)
GPU, DATA, CPU, LOCK = "gpu", "data", "cpu", "lock"
MEMORY, API, SLEEP, OTHER = "memory", "api", "sleep", "other"
CLASSES: tuple[str, ...] = (GPU, DATA, CPU, LOCK, MEMORY, API, SLEEP, OTHER)
IDLE = "idle"
MIXED = "mixed"
UNKNOWN = "unknown"

_FEEDER_CONTEXTS = frozenset({wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL})
_STATE_BY_KIND: Mapping[str, str] = {
    "gpu_wait": "gpu_wait",
    "lock": "lock",
    "gil": "gil",
    "io": "io",
    "ipc": "ipc",
    "network": "ipc",
    "sleep": "sleep",
    "page_fault": "paging",
    "reclaim": "paging",
    "mmap_lock": "paging",
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
_CLASS_BY_STATE: Mapping[str, str] = {
    "gpu_wait": GPU,
    "api": API,
    "host": CPU,
    "run_queue": CPU,
    "lock": LOCK,
    "gil": LOCK,
    "io": DATA,
    "ipc": DATA,
    "sleep": SLEEP,
    "paging": MEMORY,
    "other": OTHER,
}
_VERDICTS: Mapping[str, str] = {
    GPU: "gpu-bound",
    DATA: "data-bound",
    CPU: "cpu-bound",
    LOCK: "lock-bound",
    MEMORY: "memory-bound",
    # Time inside calls that neither wait nor allocate is the host's work as well.
    API: "cpu-bound",
    # Nothing kept it waiting: it had chosen to do nothing.
    SLEEP: IDLE,
}
_MAJORITY = 0.5
# A launch is over in a few microseconds; what is far beyond that waits for room in the
# queue, which is a wait for the device.
_LONG_LAUNCH_NS = 50_000


def state_of(state: int, context: int, reason: str) -> str | None:
    """
    Return which part of the budget some time belongs to; None if no feeder's.

    Args:
        state: Enumerator of ``thread_state``.
        context: Enumerator of ``call_context``.
        reason: What the thread was blocked on, if it was.
    """
    if context not in _FEEDER_CONTEXTS:
        return None
    if state == wire.STATE_RUN_QUEUE:
        return "run_queue"
    if state == wire.STATE_ON_CPU:
        return _ON_CPU[context]
    if context == wire.CONTEXT_GAP and reason == "driver":
        return "other"
    kind = rules.blocked_kind(reason, _PLACE_BY_CONTEXT[context])
    return _STATE_BY_KIND.get(kind, "other")


def budget_of(times: Iterable[ThreadTime]) -> dict[str, int]:
    """Return the time of the feeder threads in each state, in nanoseconds; all states."""
    budget = dict.fromkeys(STATES, 0)
    for time in times:
        state = state_of(time.state, time.context, time.reason)
        if state is not None:
            budget[state] += max(0, time.time_ns)
    return budget


def find_verdicts(figures: Iterable[Figures], settings: Settings) -> list[Verdict]:
    """Return what bounds each process that has feeder threads, from what was counted of it."""
    verdicts = []
    for one in figures:
        budget_ns = budget_of(one.times)
        total_ns = sum(budget_ns.values())
        if total_ns:
            shares = _shares_of(one, total_ns)
            verdict = _judge(shares) if total_ns >= settings.minimum_budget_ns else UNKNOWN
            verdicts.append(Verdict(one.process, verdict, shares, budget_ns))
    return verdicts


def _judge(shares: Mapping[str, float]) -> str:
    most = max(CLASSES, key=lambda name: shares[name])
    if shares[most] <= _MAJORITY:
        # Launching is work of the host, like what it does between calls.
        return "cpu-bound" if shares[CPU] + shares[API] > _MAJORITY else MIXED
    return _VERDICTS.get(most, UNKNOWN)


def _shares_of(figures: Figures, total_ns: int) -> dict[str, float]:
    classes = dict.fromkeys(CLASSES, 0)
    in_calls_ns = 0
    for time in figures.times:
        state = state_of(time.state, time.context, time.reason)
        if state is None:
            continue
        name = _CLASS_BY_STATE[state]
        in_call = time.context == wire.CONTEXT_CALL
        if in_call and name in (DATA, SLEEP, OTHER):
            # Not the program's data: the driver slept, or waited for a file of its own.
            name = API
        if in_call and name == API:
            in_calls_ns += max(0, time.time_ns)
        classes[name] += max(0, time.time_ns)
    allocating_ns, queueing_ns = _inside_calls_ns(figures.series, in_calls_ns)
    classes[API] -= allocating_ns + queueing_ns
    classes[MEMORY] += allocating_ns
    classes[GPU] += queueing_ns
    return {name: time_ns / total_ns for name, time_ns in classes.items()}


def _inside_calls_ns(counted: Iterable[Series], in_calls_ns: int) -> tuple[int, int]:
    """Return how much of the time inside calls went to allocators and to full queues."""
    allocating_ns = queueing_ns = 0
    for _, key, api, _, aggregate in counted:
        if api is None or key.nested:
            continue
        if api.family in rules.ALLOCATOR_FAMILIES:
            allocating_ns += max(0, aggregate.sum)
        elif api.family in rules.LAUNCH_FAMILIES:
            queueing_ns += max(0, aggregate.sum - aggregate.counted * _LONG_LAUNCH_NS)
    allocating_ns = min(allocating_ns, in_calls_ns)
    return allocating_ns, min(queueing_ns, in_calls_ns - allocating_ns)
