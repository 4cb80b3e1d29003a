"""
One name for each thread of a document.

A thread has the name that it had when it was seen. A program that executes another one continues
under the new name (taskset runs a shell), so a single culprit would appear as two.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from otel_gpu.enrich.identity.identities import Culprit, Program, Who
from otel_gpu.explain.chains import Cause, Chain, Evidence, Incident, TimeNode, VerdictClass
from otel_gpu.report.causes import walk
from otel_gpu.report.document import CulpritTime, Document, ProcessReport
from otel_gpu.report.steps import StepTotals

BY_LINK = "exe"
"""The kernel's name for a program that was started through /proc/self/exe: the link's name."""

_Thread = tuple[int, int]


def with_one_name(
    document: Document, program_of: Callable[[int], str], found_of: Callable[[int], str]
) -> Document:
    """
    Return a document in which each thread has one name.

    Args:
        document: The document.
        program_of: Returns the executable of a watched process; empty: not known.
        found_of: Returns another process's name when it was looked up; empty: it was not.
    """
    names = _Names(document, program_of, found_of)
    chains = tuple(names.of_chain(chain) for chain in document.chains)
    return document._replace(
        processes=tuple(map(names.of_process, document.processes)),
        incidents=tuple(map(names.of_incident, document.incidents)),
        chains=chains,
        culprit_times=_merged(
            one._replace(culprit=names.of(one.culprit)) for one in document.culprit_times
        ),
        steps=tuple(map(names.of_steps, document.steps)),
    )


def program_of(process: Program) -> str:
    """Return the name of a process's executable; empty: not known."""
    return str(process.attributes.get("process.executable.name", ""))


class _Names:
    def __init__(
        self, document: Document, program_of: Callable[[int], str], found_of: Callable[[int], str]
    ) -> None:
        self._program_of = program_of
        self._found_of = found_of
        # The time that each thread was seen under each name.
        self._seen: dict[_Thread, Counter[str]] = {}
        for process in document.processes:
            self._see_nodes([process.time_tree] if process.time_tree else [])
        causes = [one for incident in document.incidents for one in incident.causes]
        causes += [one for chain in document.chains for one in chain.causes]
        for cause, _, _ in walk(causes):
            for culprit in cause.culprits:
                self._see(culprit, cause.time_ns)

    def _see_nodes(self, nodes: Sequence[TimeNode]) -> None:
        for node in nodes:
            if node.who:
                self._see(Culprit(*node.who[:3]), node.time_ns)
            self._see_nodes(node.children)

    def _see(self, thread: Culprit, time_ns: int) -> None:
        self._seen.setdefault(thread[:2], Counter())[thread.comm] += time_ns

    def of(self, thread: Culprit) -> Culprit:
        pid, tid = thread[:2]
        name = self._found_of(pid) if tid in (0, pid) else ""
        # Time accounting has the process's first name: the thread's own is better.
        seen = self._seen.get((pid, tid or pid)) or self._seen.get((pid, tid))
        if not name and seen:
            # Of equals the first in order, whatever the order in which they were seen.
            name = min(seen.items(), key=lambda item: (-item[1], item[0]))[0]
        name = name or thread.comm
        if name == BY_LINK:
            name = self._program_of(pid) or name
        return thread._replace(comm=name)

    def of_process(self, process: ProcessReport) -> ProcessReport:
        tree = process.time_tree
        return process._replace(
            time_tree=tree and self._of_node(tree),
            verdict_bounds=tuple(map(self._of_bound, process.verdict_bounds)),
        )

    def of_steps(self, steps: StepTotals) -> StepTotals:
        slow = (one._replace(causes=self._of_causes(one.causes)) for one in steps.slow)
        own = self.of(Culprit(steps.process.pid, steps.tid, steps.comm))
        return steps._replace(comm=own.comm, slow=tuple(slow))

    def of_incident(self, incident: Incident) -> Incident:
        return incident._replace(
            causes=self._of_causes(incident.causes),
            chains=tuple(map(self.of_chain, incident.chains)),
        )

    def of_chain(self, chain: Chain) -> Chain:
        effect = chain.effect
        comm = self.of(Culprit(effect.process.pid, effect.tid, effect.comm)).comm
        return chain._replace(
            effect=effect._replace(comm=comm), causes=self._of_causes(chain.causes)
        )

    def _of_causes(self, causes: Iterable[Cause]) -> tuple[Cause, ...]:
        return tuple(
            cause._replace(
                culprit=cause.culprit and self.of(cause.culprit),
                others=tuple(map(self.of, cause.others)),
                evidence=tuple(map(self._of_evidence, cause.evidence)),
                via=self._of_causes(cause.via),
            )
            for cause in causes
        )

    def _of_evidence(self, evidence: Evidence) -> Evidence:
        return evidence._replace(
            culprit=evidence.culprit and self.of(evidence.culprit),
            waker=evidence.waker and self.of(evidence.waker),
        )

    def _of_node(self, node: TimeNode) -> TimeNode:
        who = node.who and self._of_who(node.who)
        return node._replace(who=who, children=tuple(map(self._of_node, node.children)))

    def _of_bound(self, bound: VerdictClass) -> VerdictClass:
        return bound._replace(path=tuple(map(self._of_node, bound.path)))

    def _of_who(self, who: Who) -> Who:
        return who._replace(comm=self.of(Culprit(*who[:3])).comm)


def _merged(times: Iterable[CulpritTime]) -> tuple[CulpritTime, ...]:
    merged: dict[tuple[int, Culprit, str], CulpritTime] = {}
    for one in times:
        key = (id(one.process), one.culprit, one.kind)
        known = merged.get(key)
        merged[key] = (
            one
            if known is None
            else known._replace(
                time_ns=known.time_ns + one.time_ns, effects=known.effects + one.effects
            )
        )
    return tuple(sorted(merged.values(), key=lambda one: -one.time_ns))
