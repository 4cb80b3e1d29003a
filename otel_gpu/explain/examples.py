"""
Examples: recorded calls and gaps that show what a chronic cause is.

A chronic cause comes from totals, and need not make any call slower than usual. So calls and gaps
that are not effects, and whose time can be mostly due to such a cause, are explained as well, and
the longest are kept. A report shows one of them to the microsecond, and an incident's span links to
them.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from otel_gpu.enrich.activities import CallActivity
from otel_gpu.enrich.identity.identities import ProcessKey, key_of
from otel_gpu.explain.accounting.chronic import Chronic
from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.explain.effects import Candidate
from otel_gpu.explain.kinds import CauseKind, EffectKind, EvidenceKind
from otel_gpu.explain.memory.allocator_churn import KINDS as CHURN_KINDS
from otel_gpu.explain.rules import ALLOCATOR_FAMILIES
from otel_gpu.limits.recent import Recent
from otel_gpu.state.window import Window
from otel_gpu.wire.events import OpenCall
from otel_gpu.wire.probe_table import APIS

MAX_EXAMPLES = 2
"""Of one cause of one program."""
_MAX_CAUSES = 32
# Explaining a call takes time: only those that can show much more than the best one are explained.
_MORE = 1.25
# Time accounting has one kind for a CPU that was taken away and one that was not free.
_ALIKE: frozenset[CauseKind] = frozenset({CauseKind.RUN_QUEUE, CauseKind.PREEMPTION})

# The losses of calls that take device memory cover all of their time, whatever each waited for.
_ALLOCATION = "allocation"
_ALLOCATING = frozenset(api.name for api in APIS if api.family in ALLOCATOR_FAMILIES)

_Name = tuple[str, int]
"""Kind of a cause and the pid of its culprit, 0: none."""


class _Shown(NamedTuple):
    time_ns: int
    chain: Chain


class _OfProgram:
    def __init__(self) -> None:
        # The longest explained time, by what it seems to be.
        self.tried_ns: Recent[tuple[str, object], int] = Recent(_MAX_CAUSES)
        self.kept: Recent[_Name, list[_Shown]] = Recent(_MAX_CAUSES)


class Examples:
    """
    Keeps the best examples of each cause; bounded.

    Args:
        explain: Makes the chain of a call or gap that took no longer than usual.
        max_processes: The most programs.

    Attributes:
        window: Examples overlap it.
    """

    def __init__(self, explain: Callable[[Candidate], Chain], max_processes: int) -> None:
        self._explain = explain
        self._programs: Recent[ProcessKey, _OfProgram] = Recent(max_processes, cache="examples")
        self.window = Window()

    def consider(self, candidate: Candidate) -> None:
        """Add a call or gap that is not an effect."""
        activity = candidate.activity
        if isinstance(activity.event, OpenCall) or not self.window.overlaps(
            activity.start_unix_ns, candidate.end_unix_ns
        ):
            return
        known = self._of(key_of(activity.process))
        if any(_promises(known, *one) for one in _times_of(candidate)):
            self.add(self._explain(candidate))

    def add(self, chain: Chain) -> None:
        """Add a call or gap that was explained, an effect or not."""
        effect = chain.effect
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        if not effect.duration_ns or not self.window.overlaps(effect.start_unix_ns, end_unix_ns):
            return
        known = self._of(key_of(effect.process))
        took: list[tuple[_Name, int]] = [
            ((cause.kind, _pid_of(cause)), cause.time_ns) for cause in chain.causes
        ]
        took.append(((_ALLOCATION, 0), _allocating_ns(chain)))
        for name, time_ns in took:
            if time_ns:
                shown = [*known.kept.get(name, ()), _Shown(time_ns, chain)]
                shown.sort(key=lambda one: (-one.time_ns, one.chain.id))
                known.kept[name] = shown[:MAX_EXAMPLES]

    def find(self, chronic: Chronic) -> Iterator[Chain]:
        """Yield the examples of a chronic cause, those of its culprit first, then the longest."""
        known = self._programs.get(key_of(chronic.process))
        kinds = kinds_like(chronic.cause.kind)
        shown: list[tuple[bool, _Shown]] = [
            (name[1] != chronic.culprit_pid, one)
            for name, found in (known.kept.items() if known else ())
            if name[0] in kinds
            for one in found
            if one.chain.effect.start_unix_ns <= chronic.end_unix_ns
            and chronic.start_unix_ns
            <= one.chain.effect.start_unix_ns + one.chain.effect.duration_ns
        ]
        shown.sort(key=lambda one: (one[0], -one[1].time_ns, one[1].chain.id))
        yield from [one.chain for _, one in shown[:MAX_EXAMPLES]]

    def forget(self, program: ProcessKey) -> None:
        """Drop the examples of a program: its window or the program ended."""
        self._programs.pop(program, None)

    def _of(self, program: ProcessKey) -> _OfProgram:
        known = self._programs.use(program)
        if known is None:
            known = self._programs[program] = _OfProgram()
        return known


def best_of(examples: Iterable[Chain], leading: Cause) -> tuple[Chain, ...]:
    """Return the best examples of a cause, those of its culprit first, then by its time."""
    kinds, pid = kinds_like(leading.kind), _pid_of(leading)

    def rank(chain: Chain) -> tuple[int, int, str]:
        alike = [cause for cause in chain.causes if cause.kind in kinds]
        its_ns = sum(cause.time_ns for cause in alike if _pid_of(cause) == pid)
        all_ns = sum(cause.time_ns for cause in alike)
        return -its_ns, -(_allocating_ns(chain) if _ALLOCATION in kinds else all_ns), chain.id

    return tuple(sorted(examples, key=rank)[:MAX_EXAMPLES])


def kinds_like(kind: CauseKind) -> frozenset[str]:
    """Return the kinds of causes that examples of a chronic cause can have."""
    if kind in CHURN_KINDS:
        return frozenset({_ALLOCATION})
    return _ALIKE if kind in _ALIKE else frozenset({kind})


def _pid_of(cause: Cause) -> int:
    return cause.culprit.pid if cause.culprit else 0


def _allocating_ns(chain: Chain) -> int:
    # Duration of a call that takes or releases memory; 0 for others and for gaps.
    effect = chain.effect
    is_gap = effect.kind in (EffectKind.SLOW_GAP, EffectKind.USUAL_GAP)
    return effect.duration_ns if effect.api in _ALLOCATING and not is_gap else 0


def _times_of(candidate: Candidate) -> Iterator[tuple[tuple[str, object], int]]:
    # What a call or gap seems to have been spent on, and how long.
    event = candidate.activity.event
    assert not isinstance(event, OpenCall)  # noqa: S101 -- an effect always
    yield (EvidenceKind.RUN_QUEUE, _culprit_of(candidate)), event.run_queue_ns
    yield (EvidenceKind.BLOCKED, _reason_of(candidate)), event.blocked_ns
    duration_ns = event.end_ktime_ns - event.start_ktime_ns
    kind = type(event).__name__
    activity = candidate.activity
    if isinstance(activity, CallActivity) and activity.api.family in ALLOCATOR_FAMILIES:
        yield (_ALLOCATION, 0), duration_ns
    yield ("cpu", kind), duration_ns - event.run_queue_ns - event.blocked_ns


def _promises(known: _OfProgram, name: tuple[str, object], time_ns: int) -> bool:
    if time_ns <= _MORE * known.tried_ns.get(name, 0):
        return False
    known.tried_ns[name] = time_ns
    return True


def _culprit_of(candidate: Candidate) -> int:
    longest = max(
        candidate.stalls,
        key=lambda stall: stall.end_unix_ns - stall.runnable_unix_ns,
        default=None,
    )
    return longest.event.culprit_pid if longest else 0


def _reason_of(candidate: Candidate) -> str:
    longest = max(
        candidate.stalls,
        key=lambda stall: stall.runnable_unix_ns - stall.start_unix_ns,
        default=None,
    )
    return longest.reason if longest else ""
