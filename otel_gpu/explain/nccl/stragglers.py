"""
Stragglers: ranks that repeatedly come last.

If every step waits for one rank, no step is slower than usual. What the other ranks wait for it in
a window proves it, and the times of that rank show why.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Resource, key_of
from otel_gpu.explain.accounting.causes import AccountCauses
from otel_gpu.explain.accounting.chronic import Chronic, FiguresOf
from otel_gpu.explain.accounting.time_states import budget_of, state_of_kind
from otel_gpu.explain.accounting.time_tree import Resources, grow
from otel_gpu.explain.chains import Cause, Culprit
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.kinds import CauseKind, Severity, TimeState
from otel_gpu.explain.nccl.collective_names import late_name
from otel_gpu.explain.ranking import CauseSums, rank, scaled
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.severity import fault_ns
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.nccl.communicators import CommunicatorStates, Lags
from otel_gpu.wire.bodies import ResourceKind

_MAX_CAUSES = 32


def lags_since(lags: Lags, before: Lags) -> Lags:
    """Return how long ranks waited for others since an earlier reading."""
    return {
        program: {
            name: time_ns - known
            for name, time_ns in found.items()
            if time_ns > (known := before.get(program, {}).get(name, 0))
        }
        for program, found in lags.items()
    }


class _Window(NamedTuple):
    # A window, and what is known of all processes in it.

    figures_of: FiguresOf
    lags: Lags
    edges: tuple[int, int]
    settings: Settings
    places: CodeLocations | None
    resources: Resources | None


def find_stragglers(
    figures: Figures,
    figures_of: FiguresOf,
    lags: Lags,
    times_unix_ns: tuple[int, int],
    settings: Settings,
    places: CodeLocations | None = None,
    resources: Resources | None = None,
) -> Iterator[Chronic]:
    """
    Yield the ranks that a rank waited for during much of a window.

    Args:
        figures: What was counted of it in the window.
        figures_of: Returns the same of other processes.
        lags: How much later which ranks came than which, in nanoseconds.
        times_unix_ns: Start and end of the window.
        settings: The limits.
        places: Where threads were.
        resources: What other processes wait for.
    """
    budget = budget_of(figures.times)
    launching_ns, start_unix_ns, end_unix_ns = sum(budget.values()), *times_unix_ns
    if key_of(figures.process) not in lags or launching_ns < settings.minimum_budget_ns:
        return
    start_unix_ns = max(start_unix_ns, figures.process.start_unix_ns)
    length_ns = min(end_unix_ns - start_unix_ns, launching_ns)
    least_ns = max(
        1,
        round(settings.chronic_share * launching_ns),
        settings.chronic_lost_ns * length_ns // 1_000_000_000,
    )
    edges = start_unix_ns, end_unix_ns
    window = _Window(
        figures_of=figures_of,
        lags=lags,
        edges=edges,
        settings=settings,
        places=places,
        resources=resources,
    )
    for cause in _waits(figures, window, least_ns):
        lost_ns = fault_ns(cause)
        if lost_ns >= least_ns and cause.culprit is not None:
            yield Chronic(
                process=figures.process,
                start_unix_ns=start_unix_ns,
                end_unix_ns=end_unix_ns,
                cause=cause,
                lost_ns=lost_ns,
                least_ns=least_ns,
                launching_ns=launching_ns,
                most=Severity.HIGH,
                pids=frozenset({cause.culprit.pid}),
            )


def _waits(
    figures: Figures, window: _Window, least_ns: int, path: tuple[ProcessKey, ...] = ()
) -> Iterator[Cause]:
    # The ranks that a rank waited for, the longest wait first, and what delayed them.
    own = key_of(figures.process)
    path = (*path, own)
    budget = budget_of(figures.times)
    launching_ns = max(1, sum(budget.values()))
    # Other time during the lag was no wait for ranks.
    left_ns = budget[TimeState.GPU_WAIT]
    found = window.lags.get(own, {})
    for (program, *which), lag_ns in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        time_ns = min(lag_ns, left_ns)
        late = window.figures_of(program)
        if time_ns < least_ns or late is None or program in path:
            continue
        left_ns -= time_ns
        usual = _shares(
            {**budget, TimeState.GPU_WAIT: budget[TimeState.GPU_WAIT] - time_ns}, launching_ns
        )
        via = tuple(_own_causes(late=late, usual=usual, time_ns=time_ns, window=window, path=path))
        culprit = Culprit(late.process.pid, late.process.pid, late.process.comm)
        yield Cause(
            kind=CauseKind.COLLECTIVE_WAIT,
            time_ns=time_ns,
            share=time_ns / launching_ns,
            culprit=culprit,
            evidence=(),
            via=via,
            resource=Resource(ResourceKind.COLLECTIVE, late_name(*which)),
        )


def _state_of(cause: Cause) -> TimeState:
    return (
        TimeState.GPU_WAIT if cause.kind == CauseKind.COLLECTIVE_WAIT else state_of_kind(cause.kind)
    )


def _shares(budget: Mapping[TimeState, int], whole_ns: int) -> dict[TimeState, float]:
    return {state: max(0, time_ns) / max(1, whole_ns) for state, time_ns in budget.items()}


def _own_causes(
    late: Figures,
    usual: Mapping[TimeState, float],
    time_ns: int,
    window: _Window,
    path: tuple[ProcessKey, ...],
) -> Iterator[Cause]:
    # What a late rank did more than the one that waited, as parts of that wait.
    tree = grow(late.times, None, window.resources)
    if tree is None:
        return
    account = AccountCauses(late.process, *window.edges, window.places, late.times)
    sums = CauseSums(_MAX_CAUSES, window.settings.max_evidence)
    sums.add(account.causes(tree))
    waiting = tree.child(TimeState.GPU_WAIT)
    # It can have waited for a third rank, in another communicator.
    waits = (
        [] if waiting is None else list(_waits(figures=late, window=window, least_ns=1, path=path))
    )
    sums.add(waits)
    waited_ns = sum(one.time_ns for one in waits)
    if waiting is not None and waiting.time_ns > waited_ns:
        left_ns = waiting.time_ns - waited_ns
        sums.add(
            [
                Cause(
                    kind=CauseKind.GPU_WAIT,
                    time_ns=left_ns,
                    share=left_ns / max(1, tree.time_ns),
                    culprit=None,
                    evidence=(),
                )
            ]
        )
    shares = _shares(budget_of(late.times), tree.time_ns)
    more = {
        state: max(0.0, share - usual.get(state, 0.0)) / share
        for state, share in shares.items()
        if share
    }
    own = [scaled(cause, more.get(_state_of(cause), 1.0)) for cause in sums.causes(tree.time_ns)]
    total_ns = sum(cause.time_ns for cause in own)
    scale = time_ns / max(total_ns, 1)
    for cause in rank((one for one in own if one.time_ns), 0):
        length_ns = min(time_ns, int(cause.time_ns * scale))
        cut = scaled(cause, length_ns / cause.time_ns)
        culprit = cause.culprit.pid if cause.culprit else 0
        is_wait = cause.kind == CauseKind.COLLECTIVE_WAIT
        yield cut if is_wait else account.with_lines(cut, (culprit,))


class Stragglers:
    """
    Finds stragglers in consecutive windows of the stream's time.

    Attributes:
        places: Where threads were, since the window began.
    """

    def __init__(self, communicators: CommunicatorStates, settings: Settings) -> None:
        self._communicators = communicators
        self._settings = settings
        self.places: CodeLocations | None = None
        self._edges = (0, 0)
        self._before: Lags = {}
        self._now: Lags = {}
        self._found: Lags = {}

    def __bool__(self) -> bool:
        return bool(self._communicators)

    def find(
        self,
        figures: Figures,
        figures_of: FiguresOf,
        start_unix_ns: int,
        end_unix_ns: int,
    ) -> Iterator[Chronic]:
        """
        Yield the ranks that a rank waited for in a window, by its figures and those of others.
        """
        if start_unix_ns != self._edges[0]:
            self._before = self._now
        if (start_unix_ns, end_unix_ns) != self._edges:
            self._edges = start_unix_ns, end_unix_ns
            self._now = self._communicators.lags_by(end_unix_ns)
            self._found = lags_since(self._now, self._before)
        return find_stragglers(
            figures=figures,
            figures_of=figures_of,
            lags=self._found,
            times_unix_ns=self._edges,
            settings=self._settings,
            places=self.places,
        )
