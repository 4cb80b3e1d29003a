"""
Two captures of one program, compared: whether that is possible, what changed, and where.

Both sides are converted to one unit (``Basis``), so that the length of a recording does not matter.
A change counts if it is more than ``REAL`` and more than the noise: twice the standard error of the
difference of the means, but at least ``FLOOR``.
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
The minimal similarity of work, by ``Basis``.

A step is comparable even if its kernels differ, since that can be the point of the comparison. A
longer window has more of everything.
"""
SAME_SHAPES: Final = 0.5
MAX_DELTAS: Final = 100
"""Of one kind; the largest changes."""

_ALIKE = 0.9
_FEWEST = 2


class Basis(StrEnum):
    """The unit of times."""

    STEP = "step"
    WINDOW = "window"
    CALL = "call"
    NOTHING = "nothing"


class ComparisonOutcome(StrEnum):
    """The result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    NEUTRAL = "neutral"
    NOT_COMPARABLE = "not_comparable"


class DeltaKind(StrEnum):
    """
    The kind of a delta; those of one kind are parts of a whole, except lines and operations.

    ``share`` is the share of phases or states, where only shares can be compared.
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
    One side of a comparison.

    Attributes:
        source: Its name as given.
        tool: The tool that recorded it.
        basis: The unit of times.
        times_ns: The length of each unit; empty: not known.
        devices: The models of its devices, by number; empty: not known.
        ranks: The number of processes of the run; None: not known.
        programs: The names of its programs; empty: not known.
        work: Counts of work by name, per step, window or call.
        operators: Counts of operator calls per unit; they can launch different kernels.
        shapes: Counts of operator calls by shapes, per unit.
        grids: Counts of kernels by blocks per processor, per unit; -1: not known.
        figures: Nanoseconds per step, window or call, and bytes.
        has_stacks: Whether it was recorded with stacks, which costs time.
        verdict: Its verdict.
        faults: Reasons why its times are not valid.
        notes: Further notes.
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
        """The mean length of a unit; None: not known."""
        return fmean(self.times_ns) if self.times_ns else None

    @property
    def median_ns(self) -> float | None:
        """The median length of a unit; None: not known."""
        return median(self.times_ns) if self.times_ns else None

    @property
    def error_ns(self) -> float | None:
        """The standard error of the mean; None: too few units."""
        if len(self.times_ns) < _FEWEST:
            return None
        return math.sqrt(variance(self.times_ns) / len(self.times_ns))


class Delta(NamedTuple):
    """
    One figure of both sides, per step, window or call; bytes or a share, depending on ``kind``.
    """

    kind: DeltaKind
    what: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """The growth from the first side to the second."""
        return self.b - self.a


class Comparison(NamedTuple):
    """
    The result of a comparison.

    Attributes:
        comparable: Times can be compared. If not, ``deltas`` hold no time.
        reasons: Reasons against it, and further differences of the sides.
        noise: The share of the first side's time that a change has to exceed; None: not known.
        deltas: By kind, the largest changes first.
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
        """How much longer the second takes, as a share of the first; None: not comparable."""
        a, b = self.a.mean_ns, self.b.mean_ns
        return None if not self.comparable or not a or b is None else (b - a) / a

    def of(self, kind: DeltaKind) -> tuple[Delta, ...]:
        """Return the deltas of one kind."""
        return tuple(delta for delta in self.deltas if delta.kind is kind)

    def is_slower_by(self, share: float) -> bool:
        """
        Return whether the second takes longer by more than a share, and by more than the noise.
        """
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
        # Memory sizes and shares are comparable in any case.
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
    """
    Return the similarity of two counts: 1 if they are equal, 0 if they have nothing in common.
    """
    names = a.keys() | b.keys()
    most = sum(max(a.get(name, 0.0), b.get(name, 0.0)) for name in names)
    least = sum(min(a.get(name, 0.0), b.get(name, 0.0)) for name in names)
    return least / most if most else 1.0


def _hindrances(a: Side, b: Side) -> Iterator[str]:
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
    if (reason := _devices(a, b)) is not None:
        yield reason
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
    # Reasons why kernels may have different inputs, without recorded shapes.
    if not {name for name, _ in a} & {name for name, _ in b}:
        yield (
            "they have no kernel in common, and the shapes of inputs were not recorded in both: it can be "
            "another batch, or another model"
        )
    known = [{key: count for key, count in of.items() if key[1] >= 0} for of in (a, b)]
    if (share := _alike_of_both(*known)) < SAME_SHAPES:
        yield f"the grids of their kernels are {share * 100:.0f} % alike: another batch, or another model"


def _differences(a: Side, b: Side) -> Iterator[str]:
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
    # The similarity of sizes, of names that both have; for different programs it means nothing.
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
