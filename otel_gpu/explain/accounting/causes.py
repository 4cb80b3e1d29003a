"""
Causes from time accounting: what kept the launching threads of a process waiting.

Several causes can be about one thread: it ended waits of several kinds, or for several files. They
share that thread's samples, and a sum of causes counts them once. So causes get their lines only
when it is known which of them are reported together.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.thread_times import ThreadTime
from otel_gpu.explain.accounting.thread_locations import ThreadLocations
from otel_gpu.explain.accounting.time_states import state_of_kind
from otel_gpu.explain.accounting.time_tree import LAUNCHING
from otel_gpu.explain.chains import Cause, Culprit, Evidence, NodeState, TimeNode
from otel_gpu.explain.code_locations import CodeLocations, Worker
from otel_gpu.explain.kinds import CauseKind, EvidenceKind, TimeState
from otel_gpu.explain.rules import RULE_BY_KIND, FaultSide
from otel_gpu.state.code_lines import NO_LINES, CodeLines
from otel_gpu.state.cpu_samples import AT_WORK, EVERYWHERE
from otel_gpu.state.thread_names import ThreadNames

OWN = frozenset({CauseKind.HOST_WORK, CauseKind.SLEEP})
"""
What a thread does itself while nothing keeps it waiting: time is lost, and not by the host's fault.
"""
NO_CULPRIT = 0
"""Stands for the pid of a culprit that is not known."""

_NOT_LOST = frozenset({TimeState.GPU_WAIT, TimeState.API, TimeState.IDLE})
# The culprit of these in a chain is the thread that was waited for. At the end of a chain there is
# none.
_WAITS = frozenset({CauseKind.RUN_QUEUE, CauseKind.LOCK, CauseKind.GIL, CauseKind.IPC})


_Name = tuple[CauseKind, int]
"""Kind of a cause, and the pid of its culprit. Causes are summed by it."""


class AccountCauses:
    """
    Makes causes of the nodes of a time tree.

    Args:
        process: The process whose time it is.
        start_unix_ns: Start of the window.
        end_unix_ns: End of the window.
        places: Where threads were.
        times: The times of the process.
        names: Names of unwatched processes.
    """

    def __init__(
        self,
        process: Program,
        start_unix_ns: int,
        end_unix_ns: int,
        places: CodeLocations | None,
        times: Iterable[ThreadTime],
        names: ThreadNames | None = None,
    ) -> None:
        self._names = names
        self._process = process
        self._window = start_unix_ns, end_unix_ns
        self._places = places
        self._locations = ThreadLocations(places, times) if places else None
        # Threads that worked or had the CPU, by the names of a cause and of the one below it.
        self._workers: dict[tuple[_Name, ...], dict[Worker, None]] = {}

    def causes(self, tree: TimeNode, least_ns: int = 0) -> Iterator[Cause]:
        """
        Yield the causes of lost time in a tree, without lines.

        Args:
            tree: With all its nodes.
            least_ns: Kinds whose causes take less time together are left out.
        """
        found: list[tuple[CauseKind, TimeNode, NodeState]] = []
        together_ns: Counter[CauseKind] = Counter()
        for branch in tree.children:
            if branch.state in _NOT_LOST:
                continue
            for node in branch.children or (branch,):
                is_work = node.state == TimeState.HOST
                rule = RULE_BY_KIND.get(CauseKind.HOST_WORK if is_work else node.state)
                if rule is not None and (rule.fault != FaultSide.NONE or rule.kind in OWN):
                    found.append((rule.kind, node, branch.state))
                    together_ns[rule.kind] += node.time_ns
        for kind, node, state in found:
            if together_ns[kind] >= least_ns:
                yield self._cause(kind, node, state)

    def with_lines(self, cause: Cause, pids: Iterable[int]) -> Cause:
        """
        Return a cause, or the sum of several of its kind, with lines in it and in the causes below
        it.

        Args:
            cause: The cause.
            pids: The culprits of the summed causes.
        """
        names = [(cause.kind, pid) for pid in pids]
        via = tuple(
            one._replace(lines=self._lines([(name, _name_of(one)) for name in names]))
            for one in cause.via
        )
        return cause._replace(via=via, lines=self._lines([(name,) for name in names]))

    def _cause(self, kind: CauseKind, node: TimeNode, state: NodeState) -> Cause:
        culprit = self._culprit_of(node)
        by = culprit.pid if culprit else NO_CULPRIT
        evidence = self._evidence(
            pid=self._process.pid, state=state, time_ns=node.time_ns, by=by, culprit=culprit
        )
        via = tuple(map(self._via, node.children))
        cause = Cause(
            kind=kind,
            time_ns=node.time_ns,
            share=node.share,
            culprit=culprit,
            evidence=evidence,
            via=via,
            resource=node.resource,
        )
        self._note(cause)
        for one in via:
            # Which process had the CPU that it waited for is not known here.
            if one.kind == CauseKind.HOST_WORK:
                self._note(cause, one)
        return cause

    def _via(self, node: TimeNode) -> Cause:
        # A sum of many small nodes has no kind of its own.
        rule = RULE_BY_KIND.get(node.state)
        kind = rule.kind if rule else CauseKind.UNEXPLAINED
        end = self._culprit_of(node)
        culprit = None if kind in _WAITS or kind == CauseKind.UNEXPLAINED else end
        state = state_of_kind(kind)
        evidence = (
            self._evidence(
                pid=end.pid,
                state=state,
                time_ns=node.time_ns,
                by=NO_CULPRIT,
                culprit=end,
                tid=end.tid,
            )
            if end
            else ()
        )
        return Cause(
            kind=kind,
            time_ns=node.time_ns,
            share=node.share,
            culprit=culprit,
            evidence=evidence,
            via=(),
            resource=node.resource,
        )

    def _culprit_of(self, node: TimeNode) -> Culprit | None:
        if node.who is None:
            return None
        culprit = Culprit(*node.who[:3])
        return self._names.named(culprit) if self._names else culprit

    def _note(self, *causes: Cause) -> None:
        # The thread that worked, or had the CPU, for the last of these causes. No culprit: the
        # process itself.
        kind, who = causes[-1].kind, causes[-1].culprit
        if kind == CauseKind.HOST_WORK:
            worker = (
                (who.pid, who.tid or None, AT_WORK) if who else (self._process.pid, None, LAUNCHING)
            )
        elif kind == CauseKind.RUN_QUEUE and who is not None:
            # One process is one hog; none of its threads is named.
            worker = (who.pid, who.tid or None, EVERYWHERE)
        else:
            return
        self._workers.setdefault(tuple(map(_name_of, causes)), {})[worker] = None

    def _lines(self, names: Collection[tuple[_Name, ...]]) -> CodeLines:
        # Lines of all threads that worked for causes of these names, each thread once.
        if self._places is None:
            return NO_LINES
        workers = {worker: None for name in names for worker in self._workers.get(name, ())}
        return self._places.lines_of(
            [
                (pid, tid, contexts)
                for pid, tid, contexts in workers
                if tid is None or (pid, None, contexts) not in workers
            ]
        )

    def _evidence(
        self,
        pid: int,
        state: NodeState,
        time_ns: int,
        by: int,
        culprit: Culprit | None,
        tid: int = 0,
    ) -> tuple[Evidence, ...]:
        found = self._locations
        seen = found.find(pid, state, time_ns=time_ns, by=by, tid=tid) if found else None
        name = f"account-{pid}-{tid}-{state}-{by}-{self._window[0]}"
        stack = seen.stack if seen else None
        return (Evidence(name, EvidenceKind.ACCOUNT, *self._window, culprit, stack=stack),)


def _name_of(cause: Cause) -> _Name:
    return cause.kind, cause.culprit.pid if cause.culprit else NO_CULPRIT
