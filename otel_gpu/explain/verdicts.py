"""
Verdicts: what bounds a process, from where the time of its feeder threads went.

A wait for the device is communication as far as other ranks had not yet called what this one had. How
long the device takes to communicate once all have is not known from outside, and counts as the GPU's.
"""

from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.identities import ImageKey, key_of
from otel_gpu.explain import rules
from otel_gpu.explain.chains import Node, Verdict
from otel_gpu.explain.places import Places
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.states import STATES, budget_of, state_of
from otel_gpu.explain.time_tree import FEEDING, HOST_WORK, grow, resources_of
from otel_gpu.ledger.ledger import Figures
from otel_gpu.ledger.lines import NO_LINES, Lines, merge

__all__ = [
    "CLASSES",
    "IDLE",
    "MIXED",
    "STATES",
    "UNKNOWN",
    "budget_of",
    "find_verdict",
    "find_verdicts",
    "state_of",
]

GPU, COMMUNICATION, DATA, CPU, LOCK = "gpu", "communication", "data", "cpu", "lock"
MEMORY, API, SLEEP, IDLE, OTHER = "memory", "api", "sleep", "idle", "other"
CLASSES: tuple[str, ...] = (
    *(GPU, COMMUNICATION, DATA, CPU, LOCK),
    *(MEMORY, API, SLEEP, IDLE, OTHER),
)
MIXED = "mixed"
UNKNOWN = "unknown"

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
    COMMUNICATION: "communication-bound",
    DATA: "data-bound",
    CPU: "cpu-bound",
    LOCK: "lock-bound",
    MEMORY: "memory-bound",
    # Time inside calls that neither wait nor allocate is the host's work as well.
    API: "cpu-bound",
    # Nothing kept it waiting: it had chosen to do nothing, or was asked to do nothing.
    SLEEP: IDLE,
    IDLE: IDLE,
}
_MAJORITY = 0.5
# A launch is over in a few microseconds; what is far beyond that waits for room in the
# queue, which is a wait for the device.
_LONG_LAUNCH_NS = 50_000


def find_verdicts(
    figures: Iterable[Figures],
    settings: Settings,
    places: Places | None = None,
    around: Iterable[Figures] | None = None,
    lags: Mapping[ImageKey, int] | None = None,
) -> list[Verdict]:
    """
    Return what bounds each process that has feeder threads.

    Args:
        figures: What was counted of them.
        settings: What matters.
        places: Where their threads were.
        around: What was counted of all processes, if these are not all.
        lags: For how long other ranks of their communicators came later than they.
    """
    figures = tuple(figures)
    resources = resources_of(figures if around is None else around)
    found = (
        find_verdict(
            one,
            grow(one.times, places, resources),
            settings,
            (lags or {}).get(key_of(one.process), 0),
        )
        for one in figures
    )
    return [
        verdict._replace(lines=_lines_of(verdict, places)) if places else verdict
        for verdict in found
        if verdict is not None
    ]


def find_verdict(
    figures: Figures, tree: Node | None, settings: Settings, lag_ns: int = 0
) -> Verdict | None:
    """
    Return what bounds a process; None: it has no feeder threads.

    Args:
        figures: What was counted of it.
        tree: Where the time of these threads went.
        settings: What matters.
        lag_ns: For how long other ranks of its communicators came later than it did.
    """
    if tree is None:
        return None
    idle = tree.child(IDLE)
    shares = _shares_of(figures, tree.time_ns, idle.time_ns if idle else 0, lag_ns)
    verdict = _judge(shares) if tree.time_ns >= settings.minimum_budget_ns else UNKNOWN
    return Verdict(figures.process, verdict, shares, budget_of(figures.times), tree)


def _lines_of(verdict: Verdict, places: Places) -> Lines:
    """Return where the work was that a verdict is due to."""
    if verdict.verdict == _VERDICTS[CPU]:
        return places.lines(verdict.process.pid, None, FEEDING)
    of = next((name for name in (DATA, LOCK) if verdict.verdict == _VERDICTS[name]), None)
    if of is None or verdict.time_tree is None:
        return NO_LINES
    workers = {
        (node.who.pid, node.who.tid)
        for branch in verdict.time_tree.children
        if _CLASS_BY_STATE.get(branch.state) == of
        for waited in branch.children
        for node in waited.children
        if node.state == HOST_WORK and node.who is not None
    }
    return merge(places.lines(*thread) for thread in sorted(workers))


def _judge(shares: Mapping[str, float]) -> str:
    most = max(CLASSES, key=lambda name: shares[name])
    if shares[most] <= _MAJORITY:
        # Launching is work of the host, like what it does between calls.
        return "cpu-bound" if shares[CPU] + shares[API] > _MAJORITY else MIXED
    return _VERDICTS.get(most, UNKNOWN)


def _shares_of(figures: Figures, total_ns: int, idle_ns: int, lag_ns: int) -> dict[str, float]:
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
    classes[DATA] -= idle_ns
    classes[IDLE] += idle_ns
    classes[API] -= allocating_ns + queueing_ns
    classes[MEMORY] += allocating_ns
    classes[GPU] += queueing_ns
    # What else it did meanwhile was no wait for them.
    communication_ns = min(max(0, lag_ns), classes[GPU])
    classes[GPU] -= communication_ns
    classes[COMMUNICATION] += communication_ns
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
