"""
Verdicts: what bounds a process, from where the time of its feeder threads went.

A feeder thread is one that makes CUDA calls. Each moment of it is in one state of the
budget, so the budget sums to wall time. ``communication-bound`` is not said: waits for
collectives cannot be told from other waits for the device before NCCL calls are seen.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.decode.events import SeriesKey
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CaptureActivity,
    ThreadTime,
    TimesActivity,
)
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Verdict
from otel_gpu.explain.settings import Settings

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

_ImageKey = tuple[int, int]
_TimeKey = tuple[int, int, str]

_FEEDER_CONTEXTS = frozenset({wire.CONTEXT_GAP, wire.CONTEXT_SYNCHRONIZE, wire.CONTEXT_CALL})
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


class Verdicts:
    """Keeps the latest time account of each process; bounded."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._times: OrderedDict[_ImageKey, dict[_TimeKey, ThreadTime]] = OrderedDict()
        self._series: OrderedDict[_ImageKey, dict[SeriesKey, tuple[int, int, int]]] = OrderedDict()
        self._ends_unix_ns: dict[_ImageKey, int] = {}
        self._start_unix_ns = 0

    def learn_start(self, activity: CaptureActivity) -> None:
        """Take in when the capture began."""
        self._start_unix_ns = activity.unix_ns

    def observe_times(self, activity: TimesActivity) -> None:
        """Take in the time account; its values are cumulative and replace what was known."""
        fresh: dict[_ImageKey, dict[_TimeKey, ThreadTime]] = {}
        for time in activity.times:
            image = (time.process.pid, time.process.image_ktime_ns)
            key = (time.state, time.context, time.reason)
            times = fresh.setdefault(image, {})
            known = times.get(key)
            # Several stacks may have one reason.
            times[key] = (
                time if known is None else time._replace(time_ns=known.time_ns + time.time_ns)
            )
        for image, times in fresh.items():
            self._times.setdefault(image, {}).update(times)
            self._ends_unix_ns[image] = activity.unix_ns
            if len(self._times) > self._settings.max_processes:
                oldest, _ = self._times.popitem(last=False)
                self._ends_unix_ns.pop(oldest, None)

    def observe_aggregates(self, activity: AggregatesActivity) -> None:
        """Take in how long allocations and launches took altogether."""
        for series in activity.series:
            key, api = series.key, series.api
            if key.metric != wire.METRIC_CALL_DURATION or key.nested or api is None:
                continue
            if api.family in rules.LAUNCH_FAMILIES or api.family in rules.ALLOCATOR_FAMILIES:
                image = (key.pid, key.image_ktime_ns)
                sums = self._series.setdefault(image, {})
                aggregate = series.aggregate
                sums[key] = (api.family, aggregate.sum, aggregate.counted)
                if len(self._series) > self._settings.max_processes:
                    self._series.popitem(last=False)

    def all(self) -> list[Verdict]:
        """Return a verdict per process that has feeder threads, by pid."""
        verdicts = []
        for image, times in sorted(self._times.items()):
            budget_ns = budget_of(times.values())
            if not sum(budget_ns.values()):
                continue
            shares = self._shares_of(image, times.values(), budget_ns)
            process = next(reversed(times.values())).process
            verdicts.append(
                Verdict(
                    process,
                    max(self._start_unix_ns, process.start_unix_ns),
                    self._ends_unix_ns[image],
                    self._judge(shares, sum(budget_ns.values())),
                    shares,
                    budget_ns,
                )
            )
        return verdicts

    def _judge(self, shares: Mapping[str, float], total_ns: int) -> str:
        if total_ns < self._settings.minimum_budget_ns:
            return UNKNOWN
        most = max(CLASSES, key=lambda name: shares[name])
        if shares[most] <= _MAJORITY:
            # Launching is work of the host, like what it does between calls.
            return "cpu-bound" if shares[CPU] + shares[API] > _MAJORITY else MIXED
        return _VERDICTS.get(most, UNKNOWN)

    def _shares_of(
        self, image: _ImageKey, times: Iterable[ThreadTime], budget_ns: Mapping[str, int]
    ) -> dict[str, float]:
        classes = dict.fromkeys(CLASSES, 0)
        in_calls_ns = 0
        for time in times:
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
        allocating_ns, queueing_ns = self._inside_calls_ns(image, in_calls_ns)
        classes[API] -= allocating_ns + queueing_ns
        classes[MEMORY] += allocating_ns
        classes[GPU] += queueing_ns
        total_ns = sum(budget_ns.values())
        return {name: time_ns / total_ns for name, time_ns in classes.items()}

    def _inside_calls_ns(self, image: _ImageKey, in_calls_ns: int) -> tuple[int, int]:
        """Return how much of the time inside calls went to allocators and to full queues."""
        allocating_ns = queueing_ns = 0
        for family, sum_ns, count in self._series.get(image, {}).values():
            if family in rules.ALLOCATOR_FAMILIES:
                allocating_ns += max(0, sum_ns)
            else:
                queueing_ns += max(0, sum_ns - count * _LONG_LAUNCH_NS)
        allocating_ns = min(allocating_ns, in_calls_ns)
        return allocating_ns, min(queueing_ns, in_calls_ns - allocating_ns)
