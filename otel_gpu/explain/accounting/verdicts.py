"""
Verdicts: what bounds a process, from where the time of its launching threads went.

A wait for the device is communication while other ranks had not yet made the call of this one. How
long the device communicates after that is not visible from outside, and counts as the GPU's.
"""

# The base is all time of the launching threads, stopped time included. Work on a CPU and waiting
# for one are two classes: faster code cures the first, and changing what else uses the CPU the
# second. A verdict is the class with most of the time. If another class has nearly as much, a
# little noise would swap them, so the verdict is mixed and names both.

from collections import Counter
from collections.abc import Iterable, Mapping

from otel_gpu import wire
from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.explain import rules
from otel_gpu.explain.accounting.time_states import STATES, budget_of, state_of
from otel_gpu.explain.accounting.time_tree import LAUNCHING, grow, resources_of
from otel_gpu.explain.chains import TimeNode, Verdict, VerdictClass
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.kinds import Bound, CauseKind, TimeClass, TimeState
from otel_gpu.explain.settings import Settings
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.code_lines import NO_LINES, CodeLines, merge
from otel_gpu.wire.probe_table import API_BY_NUMBER

__all__ = [
    "STATES",
    "budget_of",
    "find_verdict",
    "find_verdicts",
    "state_of",
]

CLASS_BY_STATE: Mapping[str, TimeClass] = {
    TimeState.GPU_WAIT: TimeClass.GPU,
    TimeState.API: TimeClass.API,
    TimeState.HOST: TimeClass.CPU,
    TimeState.RUN_QUEUE: TimeClass.STARVED,
    TimeState.LOCK: TimeClass.LOCK,
    TimeState.GIL: TimeClass.LOCK,
    TimeState.IO: TimeClass.DATA,
    TimeState.IPC: TimeClass.DATA,
    TimeState.SLEEP: TimeClass.SLEEP,
    TimeState.PAGING: TimeClass.MEMORY,
    TimeState.STOPPED: TimeClass.STOPPED,
    TimeState.OTHER: TimeClass.OTHER,
    TimeState.IDLE: TimeClass.IDLE,
}
"""The class of the time in a state, judged by the state alone."""

_VERDICTS: Mapping[TimeClass, Bound] = {
    TimeClass.GPU: Bound.GPU,
    TimeClass.COMMUNICATION: Bound.COMMUNICATION,
    TimeClass.DATA: Bound.DATA,
    TimeClass.CPU: Bound.CPU,
    TimeClass.STARVED: Bound.STARVED,
    TimeClass.LOCK: Bound.LOCK,
    TimeClass.MEMORY: Bound.MEMORY,
    # Time inside calls that neither wait nor allocate is the host's work as well.
    TimeClass.API: Bound.CPU,
    # Nothing kept it waiting: it chose to do nothing, or was asked to do nothing.
    TimeClass.SLEEP: Bound.IDLE,
    TimeClass.IDLE: Bound.IDLE,
    TimeClass.STOPPED: Bound.STOPPED,
    TimeClass.OTHER: Bound.UNKNOWN,
}
# The least share of a class that leads, and the largest ratio of the next one to it: two to three.
_LEAST_SHARE = 0.4
_TIE = 0.667
# The least share of a class that is named beside the leading one.
_NAMED_SHARE = 0.2
_MOST_NAMED = 3
# A launch returns in a few microseconds. One that is far longer waits for space in the queue, which
# is a wait for the device.
_LONG_LAUNCH_NS = 50_000


def find_verdicts(
    figures: Iterable[Figures],
    settings: Settings,
    places: CodeLocations | None = None,
    around: Iterable[Figures] | None = None,
    lags: Mapping[ProcessKey, int] | None = None,
) -> list[Verdict]:
    """
    Return what bounds each process that has launching threads.

    Args:
        figures: What was counted of these processes.
        settings: The limits.
        places: Where their threads were.
        around: What was counted of all processes, if ``figures`` are not all.
        lags: How long other ranks of their communicators came later, in nanoseconds.
    """
    figures = tuple(figures)
    resources = resources_of(figures if around is None else around)
    found = (
        find_verdict(
            figures=one,
            tree=grow(one.times, places, resources),
            settings=settings,
            lag_ns=(lags or {}).get(key_of(one.process), 0),
        )
        for one in figures
    )
    return [
        verdict._replace(lines=_lines_of(verdict, places)) if places else verdict
        for verdict in found
        if verdict is not None
    ]


def find_verdict(
    figures: Figures, tree: TimeNode | None, settings: Settings, lag_ns: int = 0
) -> Verdict | None:
    """
    Return what bounds a process; None: it has no launching threads.

    Args:
        figures: What was counted of it.
        tree: Where the time of these threads went.
        settings: The limits.
        lag_ns: How long other ranks of its communicators came later.
    """
    if tree is None:
        return None
    idle = tree.child(TimeState.IDLE)
    shares = _shares_of(
        figures=figures, total_ns=tree.time_ns, idle_ns=idle.time_ns if idle else 0, lag_ns=lag_ns
    )
    is_enough = tree.time_ns >= settings.minimum_budget_ns
    verdict, named = _judge(shares) if is_enough else (Bound.UNKNOWN, ())
    bounds = tuple(VerdictClass(name, shares[name]) for name in named)
    return Verdict(
        process=figures.process,
        verdict=verdict,
        shares=shares,
        budget_ns=budget_of(figures.times),
        time_tree=tree,
        bounds=bounds,
    )


def _judge(shares: Mapping[TimeClass, float]) -> tuple[Bound, tuple[TimeClass, ...]]:
    # The verdict, and the classes that it names, by their time.
    sums: dict[Bound, float] = {}
    for name in TimeClass:
        # Launching is the host's work, like its work between calls.
        sums[_VERDICTS[name]] = sums.get(_VERDICTS[name], 0.0) + shares[name]
    first, second = sorted(sums, key=lambda verdict: -sums[verdict])[:2]
    is_clear = sums[first] >= _LEAST_SHARE and sums[second] <= _TIE * sums[first]
    led = (first,) if is_clear else (first, second)
    ranked = sorted(TimeClass, key=lambda name: -shares[name])
    leading = [next(name for name in ranked if _VERDICTS[name] == verdict) for verdict in led]
    others = [one for one in ranked if one not in leading and shares[one] >= _NAMED_SHARE]
    named = sorted([*leading, *others][:_MOST_NAMED], key=ranked.index)
    return first if is_clear else Bound.MIXED, tuple(named)


def _lines_of(verdict: Verdict, places: CodeLocations) -> CodeLines:
    # Lines of the work that took most of the time of the leading class.
    tree = verdict.time_tree
    if tree is None or not verdict.bounds:
        return NO_LINES
    of = verdict.bounds[0].name
    work_ns, all_ns = 0, 0
    workers: set[tuple[int, int]] = set()
    for branch in tree.children:
        if CLASS_BY_STATE.get(branch.state) != of:
            continue
        all_ns += branch.time_ns
        if branch.state == TimeState.HOST:
            work_ns += branch.time_ns
        for waited in branch.children:
            for node in waited.children:
                if node.state == CauseKind.HOST_WORK and node.who is not None:
                    work_ns += node.time_ns
                    workers.add((node.who.pid, node.who.tid))
    if 2 * work_ns < all_ns:
        # The threads slept, or waited in turn: lines of other work do not explain that.
        return NO_LINES
    if of == TimeClass.CPU:
        return places.lines(verdict.process.pid, None, LAUNCHING)
    return merge(places.lines(*thread) for thread in sorted(workers))


def _shares_of(
    figures: Figures, total_ns: int, idle_ns: int, lag_ns: int
) -> dict[TimeClass, float]:
    classes = dict.fromkeys(TimeClass, 0)
    in_calls_ns = 0
    # Time lost inside calls to something else than the call, by family.
    kept_ns: Counter[int] = Counter()
    for time in figures.times:
        state = state_of(time.state, time.context, time.reason)
        if state is None:
            continue
        name = CLASS_BY_STATE[state]
        in_call = time.context == wire.CONTEXT_CALL
        if in_call and name in (TimeClass.DATA, TimeClass.SLEEP, TimeClass.OTHER):
            # Not the program's data: the driver slept, or waited for a file of its own.
            name = TimeClass.API
        if in_call and name == TimeClass.API:
            in_calls_ns += max(0, time.time_ns)
        elif in_call:
            known = API_BY_NUMBER.get(time.wait.api)
            kept_ns[known.family if known else wire.FAMILY_LAUNCH] += max(0, time.time_ns)
        classes[name] += max(0, time.time_ns)
    allocating_ns, queueing_ns = _inside_calls_ns(figures.series, in_calls_ns, kept_ns)
    classes[TimeClass.DATA] -= idle_ns
    classes[TimeClass.IDLE] += idle_ns
    classes[TimeClass.API] -= allocating_ns + queueing_ns
    classes[TimeClass.MEMORY] += allocating_ns
    classes[TimeClass.GPU] += queueing_ns
    # Other time during the lag was no wait for ranks.
    communication_ns = min(max(0, lag_ns), classes[TimeClass.GPU])
    classes[TimeClass.GPU] -= communication_ns
    classes[TimeClass.COMMUNICATION] += communication_ns
    return {name: time_ns / total_ns for name, time_ns in classes.items()}


def _inside_calls_ns(
    counted: Iterable[Series], in_calls_ns: int, kept_ns: Mapping[int, int]
) -> tuple[int, int]:
    # How much of the time inside calls went to allocators and to full queues.
    allocating_ns = queueing_ns = 0
    for _, key, api, _, aggregate in counted:
        if api is None or key.nested:
            continue
        if api.family in rules.ALLOCATOR_FAMILIES:
            allocating_ns += max(0, aggregate.sum)
        elif api.family in rules.LAUNCH_FAMILIES:
            queueing_ns += max(0, aggregate.sum - aggregate.counted * _LONG_LAUNCH_NS)
    # A launch that lost its TimeClass.CPU, or was stopped, did not wait for a full queue.
    allocating_ns -= sum(kept_ns.get(family, 0) for family in rules.ALLOCATOR_FAMILIES)
    queueing_ns -= sum(kept_ns.get(family, 0) for family in rules.LAUNCH_FAMILIES)
    allocating_ns = max(0, min(allocating_ns, in_calls_ns))
    return allocating_ns, max(0, min(queueing_ns, in_calls_ns - allocating_ns))
