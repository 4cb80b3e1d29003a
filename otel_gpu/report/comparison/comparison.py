"""
Two captures of one program, compared: whether that can be done, what changed, and where.

Both sides are brought to one unit (``Basis``), so that what was recorded for longer has not more
of everything. A change is a change if it is more than ``REAL`` and more than the noise: twice the
standard error of the difference of both means, and never less than ``FLOOR``.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from statistics import fmean, median, variance
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

REAL: Final = 0.05
FLOOR: Final = 0.02
SAME_WORK: Final = {"step": 0.1, "window": 0.8, "call": 0.5}
"""
How alike work has to be, by ``Basis``.

A step is one whatever makes it up: other kernels are what one may want to compare. A longer window
has more of everything.
"""
SAME_SHAPES: Final = 0.5
MAX_DELTAS: Final = 100
"""Of one kind; those that changed most."""

_ALIKE = 0.9
_FEWEST = 2


class Basis(StrEnum):
    """What times are per."""

    STEP = "step"
    WINDOW = "window"
    CALL = "call"
    NOTHING = "nothing"


class ComparisonOutcome(StrEnum):
    """What a comparison comes to."""

    FASTER = "faster"
    SLOWER = "slower"
    NEUTRAL = "neutral"
    NOT_COMPARABLE = "not_comparable"


class DeltaKind(StrEnum):
    """
    What a delta is of; those of one kind are parts of one whole, but for lines and operations.

    ``SHARE`` is what phases or states have of all of them, where no more can be compared.
    """

    PART = "part"
    PHASE = "phase"
    STATE = "state"
    CAUSE = "cause"
    KERNEL_KIND = "kernel_kind"
    KERNEL = "kernel"
    OPERATION = "operation"
    LINE = "line"
    MEMORY = "memory"
    MEMORY_LINE = "memory_line"
    MEMORY_FILE = "memory_file"
    SHARE = "share"


BYTES: Final = frozenset({DeltaKind.MEMORY, DeltaKind.MEMORY_LINE, DeltaKind.MEMORY_FILE})
T = TypeVar("T")
Sized = TypeVar("Sized", tuple[str, str], tuple[str, float])
Grids = Mapping[tuple[str, float], float]
Figures = Mapping[tuple[DeltaKind, str], float]


class Side(NamedTuple):
    """
    One of the two.

    Attributes:
        source: As it was named.
        tool: What recorded it.
        basis: What times are per.
        times_ns: How long each of these took; none: that is not known.
        devices: The models of its devices, by number; empty: not known.
        ranks: How many processes the run has; None: not known.
        programs: The names of its programs; empty: not known.
        work: How often it did what, per step, window or call.
        operators: How often operators were called, likewise; what they launch may be other kernels.
        shapes: How often each was called with which shapes, likewise.
        grids: How often each kernel ran with how many blocks for each processor, likewise; -1: not known.
        figures: Nanoseconds per step, window or call, and bytes.
        has_stacks: It was recorded with stacks, which costs time.
        verdict: What bounds it.
        faults: Why nothing of its time can be believed.
        notes: What else is to be known.
    """

    source: str
    tool: str = ""
    basis: Basis = Basis.NOTHING
    times_ns: tuple[float, ...] = ()
    devices: tuple[str, ...] = ()
    ranks: int | None = None
    programs: frozenset[str] = frozenset()
    work: Mapping[str, float] = MappingProxyType({})
    operators: Mapping[str, float] = MappingProxyType({})
    shapes: Mapping[tuple[str, str], float] = MappingProxyType({})
    grids: Grids = MappingProxyType({})
    figures: Figures = MappingProxyType({})
    has_stacks: bool = False
    verdict: str = "unknown"
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def mean_ns(self) -> float | None:
        """How long one takes on average; None: that is not known."""
        return fmean(self.times_ns) if self.times_ns else None

    @property
    def median_ns(self) -> float | None:
        """How long the one in the middle takes; None: that is not known."""
        return median(self.times_ns) if self.times_ns else None

    @property
    def error_ns(self) -> float | None:
        """The standard error of the mean; None: there are too few to tell."""
        if len(self.times_ns) < _FEWEST:
            return None
        return math.sqrt(variance(self.times_ns) / len(self.times_ns))


class Delta(NamedTuple):
    """What one thing took in both, per step, window or call; bytes or a share where ``kind`` says so."""

    kind: DeltaKind
    what: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """How much more it is in the second."""
        return self.b - self.a


class Comparison(NamedTuple):
    """
    What a comparison comes to.

    Attributes:
        comparable: Times can be compared. If not, ``deltas`` hold no time.
        reasons: Why not, and what else differs that one may not want to differ.
        noise: Which share of the first one's time a change has to be more than; None: not known.
        deltas: By kind, those that changed most first.
    """

    a: Side
    b: Side
    comparable: bool
    reasons: tuple[str, ...]
    outcome: ComparisonOutcome
    noise: float | None
    deltas: tuple[Delta, ...]

    @property
    def change(self) -> float | None:
        """How much longer the second takes, as a share of the first; None: it cannot be told."""
        a, b = self.a.mean_ns, self.b.mean_ns
        return None if not self.comparable or not a or b is None else (b - a) / a

    def of(self, kind: DeltaKind) -> tuple[Delta, ...]:
        """Return the deltas of one kind."""
        return tuple(delta for delta in self.deltas if delta.kind is kind)

    def is_slower_by(self, share: float) -> bool:
        """Say whether the second takes longer by more than a share, and by more than the noise."""
        change = self.change
        return change is not None and change > max(share, self.noise or FLOOR)


def compare(a: Side, b: Side) -> Comparison:
    """Compare two sides."""
    fatal = list(_hindrances(a, b))
    other = [] if fatal else list(_differences(a, b))
    comparable = not fatal and a.mean_ns is not None and b.mean_ns is not None
    noise = _noise(a, b) if comparable else None
    found = Comparison(
        a=a,
        b=b,
        comparable=comparable,
        reasons=(*fatal, *other),
        outcome=ComparisonOutcome.NOT_COMPARABLE,
        noise=noise,
        deltas=tuple(_deltas(a, b)),
    )
    if not comparable:
        # Memory is as large on any device, and a share is one of anything.
        kept = [one for one in found.deltas if one.kind in BYTES]
        if not (a.faults or b.faults):
            kept += _shares(a, b)
        return found._replace(deltas=tuple(kept))
    change = found.change or 0.0
    outcome = ComparisonOutcome.NEUTRAL
    if abs(change) > max(REAL, noise or FLOOR):
        outcome = ComparisonOutcome.SLOWER if change > 0 else ComparisonOutcome.FASTER
    return found._replace(outcome=outcome)


def alike(a: Mapping[T, float], b: Mapping[T, float]) -> float:
    """Return how alike two counts are: 1 if both are the same, 0 if they have nothing in common."""
    names = a.keys() | b.keys()
    most = sum(max(a.get(name, 0.0), b.get(name, 0.0)) for name in names)
    least = sum(min(a.get(name, 0.0), b.get(name, 0.0)) for name in names)
    return least / most if most else 1.0


def _hindrances(a: Side, b: Side) -> Iterator[str]:
    """Yield why times cannot be compared."""
    for side in (a, b):
        for fault in side.faults:
            yield f"{side.source}: {fault}"
        if not side.times_ns:
            yield f"{side.source} says nothing of time"
    if a.times_ns and b.times_ns:
        if a.basis is b.basis:
            yield from _other_runs(a, b)
        else:
            yield f"one is known by its {a.basis}, the other by its {b.basis}"


def _other_runs(a: Side, b: Side) -> Iterator[str]:
    if (said := _devices(a, b)) is not None:
        yield said
    if a.ranks and b.ranks and a.ranks != b.ranks:
        yield f"one run has {a.ranks:,} ranks, the other {b.ranks:,}"
    if a.programs and b.programs and not a.programs & b.programs:
        yield f"other programs: {_listed(a.programs)} against {_listed(b.programs)}"
    if (share := _alike_in_work(a, b)) < SAME_WORK.get(a.basis, 1):
        yield f"their work is {share * 100:.0f} % alike: another program, or not the same part of it"
    if (share := _alike_of_both(a.shapes, b.shapes)) < SAME_SHAPES:
        yield f"the shapes of their inputs are {share * 100:.0f} % alike: another batch, or another model"
    elif a.grids and b.grids and not (a.shapes and b.shapes):
        yield from _other_sizes(a.grids, b.grids)


def _other_sizes(a: Grids, b: Grids) -> Iterator[str]:
    """Yield why kernels may be of other inputs, of which nothing was recorded."""
    if not {name for name, _ in a} & {name for name, _ in b}:
        yield (
            "they have no kernel in common, and the shapes of inputs were not recorded in both: it can be "
            "another batch, or another model"
        )
    known = [{key: count for key, count in of.items() if key[1] >= 0} for of in (a, b)]
    if (share := _alike_of_both(*known)) < SAME_SHAPES:
        yield f"the grids of their kernels are {share * 100:.0f} % alike: another batch, or another model"


def _differences(a: Side, b: Side) -> Iterator[str]:
    """Yield what a reader has to know before the times are believed."""
    if a.has_stacks != b.has_stacks:
        which = "first" if a.has_stacks else "second"
        yield f"only the {which} was recorded with stacks, which takes time by itself"
    if a.tool != b.tool:
        yield f"recorded by different tools: {a.tool} and {b.tool}"
    if a.devices and not any(a.devices):
        yield "which devices they had is not known"
    if (share := _alike_in_work(a, b)) < _ALIKE:
        yield f"their work is {share * 100:.0f} % alike per {a.basis}"
    if (share := _alike_of_both(a.shapes, b.shapes)) < _ALIKE:
        yield f"the shapes of their inputs are {share * 100:.0f} % alike"
    if a.basis is Basis.WINDOW:
        yield "neither says where its steps are: the windows are compared, and their spread is not known"
    elif a.basis is Basis.CALL:
        yield "steps are not known: the time per CUDA call is compared"
    elif min(len(a.times_ns), len(b.times_ns)) < _FEWEST:
        yield "there is one step only: how much steps differ is not known"


def _alike_in_work(a: Side, b: Side) -> float:
    share = alike(a.work, b.work)
    return max(share, alike(a.operators, b.operators)) if a.operators and b.operators else share


def _alike_of_both(a: Mapping[Sized, float], b: Mapping[Sized, float]) -> float:
    """Say how alike the sizes are of what both do, by name: of another program it says nothing."""
    both = {name for name, _ in a} & {name for name, _ in b}
    found = [{key: count for key, count in of.items() if key[0] in both} for of in (a, b)]
    return alike(*found)


def _devices(a: Side, b: Side) -> str | None:
    if len(a.devices) != len(b.devices):
        return f"one has {len(a.devices):,} devices, the other {len(b.devices):,}"
    models = [Counter(filter(None, side.devices)) for side in (a, b)]
    if all(models) and models[0] != models[1]:
        return f"different devices: {_listed(models[0])} against {_listed(models[1])}"
    if any(models) and not all(models):
        return f"one has {_listed(models[0] or models[1])}, and what the other has is not known"
    return None


def _noise(a: Side, b: Side) -> float:
    if a.error_ns is None or b.error_ns is None or not a.mean_ns:
        return FLOOR
    return max(FLOOR, 2 * math.hypot(a.error_ns, b.error_ns) / a.mean_ns)


def _deltas(a: Side, b: Side) -> Iterator[Delta]:
    keys = a.figures.keys() | b.figures.keys()
    for kind in DeltaKind:
        found = [
            Delta(
                kind=kind,
                what=what,
                a=a.figures.get((kind, what), 0.0),
                b=b.figures.get((kind, what), 0.0),
            )
            for of, what in keys
            if of is kind
        ]
        yield from sorted(found, key=lambda one: (-abs(one.change), one.what))[:MAX_DELTAS]


def _shares(a: Side, b: Side) -> Iterator[Delta]:
    for kind in (DeltaKind.PHASE, DeltaKind.STATE):
        sides = [
            {what: value for (of, what), value in side.figures.items() if of is kind}
            for side in (a, b)
        ]
        wholes = [sum(one.values()) for one in sides]
        if not all(wholes):
            continue
        found = [
            Delta(
                DeltaKind.SHARE,
                what,
                *(one.get(what, 0.0) / whole for one, whole in zip(sides, wholes, strict=True)),
            )
            for what in sides[0].keys() | sides[1].keys()
        ]
        yield from sorted(found, key=lambda one: (-abs(one.change), one.what))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
