"""
Incidents: effects of one process with the same leading cause, close to each other.

An incident grows with its effects and is over when none was added for a while. What it keeps of
each is bounded; its sums are exact. A chronic cause is an incident as well; ``chronic.py`` explains
how the two relate.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from otel_gpu.enrich.identity.identities import Program, key_of
from otel_gpu.explain.accounting.attributed_time import AttributedTimes, attributed_of
from otel_gpu.explain.accounting.chronic import Chronic, ChronicFinding
from otel_gpu.explain.advice import ADAPTER_ADVICE, KILLED_ADVICE, advise, advise_failed
from otel_gpu.explain.chains import COLLECTIVE, Cause, Chain, Incident
from otel_gpu.explain.examples import best_of
from otel_gpu.explain.kinds import SEVERITY_RANK, CauseKind, EffectKind, Severity
from otel_gpu.explain.memory import advice as memory_advice
from otel_gpu.explain.ranking import CauseSums, added_to
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import (
    Judged,
    at_most,
    explained_ns,
    fault_ns,
    judge,
    judge_chronic,
    lost_to_host_ns,
)
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Fifo

_MAX_CAUSES = 32
_KILLED = EffectKind.KILLED_CALL

_Key = tuple[int, int, CauseKind | EffectKind, int]
"""
pid and program_ktime_ns, kind of the leading cause, its culprit's pid.

What the ranks of a communicator wait for together is one incident. It has no pid, and the second
number identifies the collective.
"""

OpenKey = tuple[int, int, int]


@dataclass(slots=True)
class _Group:
    key: _Key
    causes: CauseSums
    start_unix_ns: int
    end_unix_ns: int
    # The worst ones; the sums are over all.
    chains: dict[str, Chain] = field(default_factory=dict)
    effects: int = 0
    failures: int = 0
    # Failures that a network adapter reported.
    adapter_events: int = 0
    # Failed requests for memory, and the advice for the last one.
    out_of_memory: int = 0
    # The least severity of what a device's driver reported.
    floor: Severity = Severity.LOW
    memory_advice: tuple[str, ...] = ()
    duration_ns: int = 0
    excess_ns: int = 0
    lost_ns: int = 0
    lost_to_host_ns: int = 0
    unexplained_ns: int = 0
    # What time accounting adds to the effects; None: nothing.
    account: CauseSums | None = None
    account_ns: int = 0
    launching_ns: int = 0
    most: Severity = Severity.LOW
    process: Program | None = None
    examples: dict[str, Chain] = field(default_factory=dict)


FindExamples = Callable[[Chronic], Iterable[Chain]]
"""Finds recorded calls and gaps that show a chronic cause."""


class Incidents:
    """Groups chains into incidents; counts in ``given_up`` what exceeds the limits."""

    def __init__(
        self,
        settings: Settings,
        *,
        keeps_closed: bool = True,
        find_examples: FindExamples | None = None,
    ) -> None:
        self._settings = settings
        self._find_examples = find_examples
        self._keeps_closed = keeps_closed
        self._open: dict[_Key, _Group] = {}
        self._closed: list[Incident] = []
        self._fresh: list[Incident] = []
        # Not added before they return or the stream ends: they still grow.
        self._hung: Fifo[OpenKey, Chain] = Fifo(settings.max_incidents, evict=self._count_hung)
        self._attributed = AttributedTimes(settings.max_processes)
        self.given_up: Counter[str] = Counter()
        CACHES.register("incidents", self, "_open")

    def add(self, chain: Chain) -> None:
        """Add an effect to its incident."""
        effect = chain.effect
        self._add_to(self._find(_key_of(chain), effect.start_unix_ns), chain)
        self._attributed.add(effect, chain.causes)
        self._keep_to_limit()

    def add_chronic(self, finding: ChronicFinding) -> None:
        """Add the chronic causes of a process in a window, after the effects in it."""
        attributed = self._attributed.take(finding.process, finding.end_unix_ns)
        for one in finding.chronic:
            same, better_ns = attributed_of(one, attributed)
            lost_ns = one.lost_ns - better_ns
            left_ns = lost_ns - same.time_ns
            # What is slow often is slow always, whatever it is compared with.
            is_usual = same.effects >= self._settings.minimum_calls
            if (lost_ns if is_usual else left_ns) >= one.least_ns:
                self._add_account(one.without(better_ns), max(0, left_ns))

    def _add_account(self, chronic: Chronic, left_ns: int) -> None:
        key = (*key_of(chronic.process), chronic.cause.kind, chronic.culprit_pid)
        preempted = (*key_of(chronic.process), CauseKind.PREEMPTION, chronic.culprit_pid)
        # Time accounting has one kind for a CPU that was taken away and one that was not free.
        if (
            chronic.cause.kind == CauseKind.RUN_QUEUE
            and preempted in self._open
            and key not in self._open
        ):
            key = preempted
        group = self._find(key, chronic.start_unix_ns)
        if group.account is None:
            group.account = CauseSums(_MAX_CAUSES, self._settings.max_evidence)
        group.process = chronic.process
        group.account.add([chronic.cause])
        if self._find_examples is not None:
            group.examples |= {chain.id: chain for chain in self._find_examples(chronic)}
        group.account_ns += chronic.lost_ns
        group.launching_ns += chronic.launching_ns
        group.most = min(group.most, chronic.most, key=SEVERITY_RANK.__getitem__)
        group.lost_ns += left_ns
        group.start_unix_ns = min(group.start_unix_ns, chronic.start_unix_ns)
        group.end_unix_ns = max(group.end_unix_ns, chronic.end_unix_ns)
        if self._keeps_closed:
            self._keep_to_limit()
        else:
            # It can go on for days, and users of closed incidents get each window.
            self._close(key)

    def _find(self, key: _Key, start_unix_ns: int) -> _Group:
        group = self._open.get(key)
        if group is not None and start_unix_ns > group.end_unix_ns + self._settings.incident_gap_ns:
            self._close(key)
            group = None
        if group is None:
            group = self._open[key] = self._begin(key, start_unix_ns)
        return group

    def _keep_to_limit(self) -> None:
        # Not before the chain is in: the one that ended first can be its own.
        if len(self._open) > self._settings.max_incidents:
            self._close(min(self._open, key=lambda key: self._open[key].end_unix_ns))

    def add_hung(self, key: OpenKey, chain: Chain) -> None:
        """Set the chain of a call that hangs; replaces the previous one."""
        self._hung[key] = chain

    def _count_hung(self, _: OpenKey, __: Chain) -> None:
        self.given_up["hung_calls"] += 1

    @property
    def hung(self) -> Collection[OpenKey]:
        """The calls that hang now, as a live view."""
        return self._hung.keys()

    def is_hung(self, key: OpenKey) -> bool:
        """Return whether a call hangs now."""
        return key in self._hung

    def end_hung(self, key: OpenKey, *, is_killed: bool) -> None:
        """
        End a hung call. One that a signal ended is added as hung; any other returns as a call.
        """
        chain = self._hung.pop(key, None)
        if chain is not None and is_killed:
            self.add(chain)

    def forget_hung(self, key: OpenKey) -> None:
        """Drop what is reported otherwise, or is over."""
        self._hung.pop(key, None)

    def advance(self, unix_ns: int) -> None:
        """Close the incidents that nothing was added to for long enough."""
        limit_ns = unix_ns - self._settings.incident_gap_ns
        for key in [key for key, group in self._open.items() if group.end_unix_ns < limit_ns]:
            self._close(key)

    def close(self) -> None:
        """Close all incidents; nothing follows. Calls that hang are added as hung."""
        while self._hung:
            self.add(self._hung.popitem(last=False)[1])
        for key in list(self._open):
            self._close(key)

    def take_closed(self) -> Sequence[Incident]:
        """Return the incidents that were closed since the last call."""
        if not self._fresh:
            return ()
        fresh, self._fresh = self._fresh, []
        return fresh

    def all(self) -> list[Incident]:
        """Return all incidents, open ones too, the worst first."""
        hung = self._describe_hung()
        groups = map(self._describe, self._open.values())
        return sorted([*self._closed, *groups, *hung], key=worst_first)

    def _begin(self, key: _Key, start_unix_ns: int) -> _Group:
        causes = CauseSums(_MAX_CAUSES, self._settings.max_evidence)
        return _Group(
            key=key, causes=causes, start_unix_ns=start_unix_ns, end_unix_ns=start_unix_ns
        )

    def _add_to(self, group: _Group, chain: Chain) -> None:
        effect = chain.effect
        group.start_unix_ns = min(group.start_unix_ns, effect.start_unix_ns)
        group.end_unix_ns = max(group.end_unix_ns, effect.start_unix_ns + effect.duration_ns)
        group.process = effect.process
        group.effects += 1
        group.failures += effect.kind == EffectKind.FAILED_CALL
        group.adapter_events += effect.kind == EffectKind.NETWORK_EVENT
        if chain.failure is not None:
            group.out_of_memory += 1
            group.memory_advice = tuple(memory_advice.advise(chain.failure))
        if effect.kind == EffectKind.DEVICE_FAULT:
            group.floor = min(group.floor, chain.severity, key=SEVERITY_RANK.__getitem__)
        group.duration_ns += effect.duration_ns
        group.excess_ns += effect.excess_ns
        group.lost_ns += explained_ns(effect, chain.causes)
        group.lost_to_host_ns += lost_to_host_ns(effect, chain.causes)
        group.unexplained_ns += chain.unexplained_ns
        group.causes.add(chain.causes)
        group.chains[chain.id] = chain
        if len(group.chains) > self._settings.max_chains:
            least = min(group.chains.values(), key=lambda one: one.effect.excess_ns)
            del group.chains[least.id]
            self.given_up["chains"] += 1

    def _describe_hung(self) -> Iterator[Incident]:
        together: dict[_Key, _Group] = {}
        for chain in self._hung.values():
            key = _key_of(chain)
            is_shared = key[2] in COLLECTIVE
            group = together.get(key) if is_shared else None
            if group is None:
                group = self._begin(key, chain.effect.start_unix_ns)
            self._add_to(group, chain)
            if is_shared:
                together[key] = group
            else:
                yield self._describe(group)
        yield from map(self._describe, together.values())

    def _close(self, key: _Key) -> None:
        incident = self._describe(self._open.pop(key))
        if self._keeps_closed:
            self._closed.append(incident)
        self._fresh.append(incident)
        for incidents in (self._closed, self._fresh):
            if len(incidents) > self._settings.max_incidents:
                least = max(range(len(incidents)), key=lambda i: worst_first(incidents[i]))
                del incidents[least]
                self.given_up["incidents"] += incidents is self._closed

    def _describe(self, group: _Group) -> Incident:
        pid, _, kind, culprit_pid = group.key
        usual_ns = group.duration_ns - group.excess_ns
        added = added_to(group.causes.causes(group.duration_ns), usual_ns)
        leading = [one for one in added if _leads(one.cause, kind, culprit_pid)]
        others = [one for one in added if one not in leading]
        if group.account is not None:
            # All of it; the effects are examples.
            leading = added_to(group.account.causes(group.launching_ns), 0)
            kind = leading[0].cause.kind
        added = [*leading, *others]
        failed = 0 < group.failures == group.effects
        advice: tuple[str, ...] = (KILLED_ADVICE,)
        if isinstance(kind, CauseKind):
            advice = (advise_failed if failed else advise)(added, kind, group.lost_ns)
        if group.adapter_events:
            advice = (ADAPTER_ADVICE,)
        judged = self._judge(group, kind)
        pid = pid or (group.process.pid if group.process else 0)
        return Incident(
            id=f"incident-{pid}-{group.start_unix_ns}-{kind}-{culprit_pid}",
            severity=judged.severity,
            start_unix_ns=group.start_unix_ns,
            end_unix_ns=group.end_unix_ns,
            lost_ns=group.lost_ns,
            causes=tuple(one.cause for one in added),
            unexplained_ns=group.unexplained_ns + group.causes.left_out_ns,
            advice=group.memory_advice or advice,
            chains=tuple(sorted(group.chains.values(), key=_by_start)),
            effects=group.effects,
            chronic=group.account is not None,
            process=group.process,
            examples=best_of(group.examples.values(), added[0].cause) if group.examples else (),
            severity_reason=judged.reason,
        )

    def _judge(self, group: _Group, kind: CauseKind | EffectKind) -> Judged:
        if group.out_of_memory:
            return Judged(Severity.HIGH, "a request for memory failed")
        if group.adapter_events:
            return Judged(Severity.HIGH, "a network adapter reported a failure")
        if kind == _KILLED:
            return Judged(Severity.HIGH, "a signal ended it")
        settings = self._settings
        window_ns = max(group.end_unix_ns - group.start_unix_ns, settings.incident_gap_ns)
        judged = judge(
            lost_to_host_ns=group.lost_to_host_ns,
            excess_ns=group.excess_ns,
            window_ns=window_ns,
            settings=settings,
            leading=kind,
            effects=group.effects,
        )
        if judged.severity == Severity.LOW and group.failures == group.effects > 0:
            judged = Judged(
                Severity.LOW, "the calls failed, and lost little or no time to the host"
            )
        if SEVERITY_RANK[group.floor] < SEVERITY_RANK[judged.severity]:
            judged = Judged(group.floor, "the driver reported an error of the device")
        if group.account is None:
            return judged
        chronic = judge_chronic(group.account_ns, group.launching_ns, settings)
        return min(at_most(chronic, group.most, kind), judged, key=_rank_of)


def _rank_of(judged: Judged) -> int:
    return SEVERITY_RANK[judged.severity]


def leading_cause(chain: Chain) -> Cause | None:
    """
    Return what an effect is due to: the longest fault if faults made it long, else the first cause.
    """
    effect = chain.effect
    if 2 * lost_to_host_ns(effect, chain.causes) >= effect.excess_ns > 0:
        faults = [cause for cause in chain.causes if fault_ns(cause)]
        return max(faults, key=fault_ns)
    if effect.kind == EffectKind.NETWORK_EVENT:
        return chain.causes[0]
    # A cause without a known time is not what made it long.
    return next((cause for cause in chain.causes if not cause.is_counted), None)


def _key_of(chain: Chain) -> _Key:
    process = chain.effect.process
    if chain.effect.kind == EffectKind.KILLED_CALL:
        return process.pid, process.program_ktime_ns, _KILLED, 0
    cause = leading_cause(chain)
    if cause is None:
        return process.pid, process.program_ktime_ns, CauseKind.UNEXPLAINED, 0
    if cause.kind in COLLECTIVE:
        cause = _root_of(cause)
    culprit_pid = cause.culprit.pid if cause.culprit else 0
    if cause.kind in COLLECTIVE:
        is_known = cause.kind != CauseKind.COLLECTIVE_WAIT and cause.resource is not None
        name = cause.resource.name if is_known and cause.resource else ""
        return 0, zlib.crc32(name.encode()), cause.kind, culprit_pid
    return process.pid, process.program_ktime_ns, cause.kind, culprit_pid


def _root_of(cause: Cause) -> Cause:
    # What the ranks that others waited for waited for, from communicator to communicator.
    inner = next((one for one in cause.via if one.kind in COLLECTIVE), None)
    return cause if inner is None or 2 * inner.time_ns < cause.time_ns else _root_of(inner)


def _leads(cause: Cause, kind: CauseKind | EffectKind, culprit_pid: int) -> bool:
    return cause.kind == kind and (cause.culprit.pid if cause.culprit else 0) == culprit_pid


def worst_first(incident: Incident) -> tuple[int, bool, int, int, str]:
    """Sort key: by severity, then by lost time; failures come before slow effects."""
    rank_of_severity = SEVERITY_RANK.get(incident.severity, SEVERITY_RANK[Severity.LOW])
    is_slow = not any(chain.is_failure for chain in incident.chains)
    return rank_of_severity, is_slow, -incident.lost_ns, incident.start_unix_ns, incident.id


def _by_start(chain: Chain) -> tuple[int, str]:
    return chain.effect.start_unix_ns, chain.id
