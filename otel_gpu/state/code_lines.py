"""Code lines: where time on CPUs went, by the lines of programs that caused it."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack
from otel_gpu.enrich.known_work import WorkKind

MAX_LINES = 128
"""Lines kept of one thread, or of one answer; those with the least time are evicted."""


class Where(NamedTuple):
    """A location in a program; a line of 0 is not known."""

    function: str
    file: str
    line: int


class Line(NamedTuple):
    """
    A line that a thread worked on.

    Attributes:
        where: The line; a native function has none, and one without a name has its library as the
            file.
        work: Most of the work that the line caused; empty: not known.
        samples: The number of samples.
        weight_ns: The time on CPUs that they stand for.
        stack: The stack with most of that time; its ``place`` is the line.
    """

    where: Where
    work: str
    samples: int
    weight_ns: int
    stack: CallStack


class CodeLines(NamedTuple):
    """
    The lines of some time on CPUs, those with the most time first.

    ``samples`` and ``weight_ns`` are of all, also of samples without a known line.
    """

    samples: int
    weight_ns: int
    each: tuple[Line, ...]
    work: str = ""
    """What at least half of all time was; empty: not known."""
    is_older: bool = False
    """Whether they are of the window before. Sums over windows have them already."""

    @property
    def first(self) -> Line | None:
        """The line with the most time."""
        return self.each[0] if self.each else None

    def share_of(self, line: Line) -> float:
        """Return a line's share of the time."""
        return line.weight_ns / self.weight_ns if self.weight_ns else 0.0


NO_LINES = CodeLines(0, 0, ())
"""Of no samples."""


class KnownStack(NamedTuple):
    """A stack whose ``place`` is the line that caused its work; None: not known."""

    where: Where | None
    work: WorkKind | None
    stack: CallStack | None


NOWHERE = KnownStack(None, None, None)
"""Of a sample whose stack was lost."""


class _Entry:
    __slots__ = ("left_ns", "samples", "stack", "weight_ns")

    def __init__(self, stack: CallStack) -> None:
        self.samples = self.weight_ns = 0
        self.stack = stack
        # Time of other stacks is subtracted, so the stack with most of the time remains.
        self.left_ns = 0

    def add(self, stack: CallStack, samples: int, weight_ns: int) -> None:
        self.samples += samples
        self.weight_ns += weight_ns
        if stack.id == self.stack.id:
            self.left_ns += weight_ns
        elif weight_ns <= self.left_ns:
            self.left_ns -= weight_ns
        else:
            self.stack, self.left_ns = stack, weight_ns - self.left_ns


class LineSums:
    """Sums samples by line."""

    __slots__ = ("_by_work", "_entries", "samples", "weight_ns")

    def __init__(self) -> None:
        self.samples = self.weight_ns = 0
        self._entries: dict[tuple[Where, str], _Entry] = {}
        self._by_work: Counter[str] = Counter()

    def add(self, known: KnownStack, samples: int, weight_ns: int) -> None:
        """Add samples of one stack."""
        self.samples += samples
        self.weight_ns += weight_ns
        work = str(known.work or "")
        self._by_work[work] += weight_ns
        where, stack = known.where, known.stack
        if where is None or stack is None:
            return
        entry = self._entries.get((where, work))
        if entry is None:
            if len(self._entries) >= MAX_LINES:
                self._evict()
            entry = self._entries[where, work] = _Entry(stack)
        entry.add(stack, samples, weight_ns)

    def add_lines(self, lines: CodeLines) -> None:
        """Add the sums of other samples."""
        for line in lines.each:
            known = KnownStack(line.where, WorkKind(line.work) if line.work else None, line.stack)
            self.add(known, line.samples, line.weight_ns)
        rest = lines.samples - sum(line.samples for line in lines.each)
        rest_ns = lines.weight_ns - sum(line.weight_ns for line in lines.each)
        if rest or rest_ns:
            self.add(NOWHERE, rest, rest_ns)

    def lines(self) -> CodeLines:
        """Return the lines of all that was added."""
        if not self.samples:
            return NO_LINES
        by_line: dict[Where, list[tuple[str, _Entry]]] = {}
        for (where, work), entry in self._entries.items():
            by_line.setdefault(where, []).append((work, entry))
        each = [_line_of(where, entries) for where, entries in by_line.items()]
        each.sort(key=lambda line: (-line.weight_ns, -line.samples, line.where))
        work, most_ns = max(self._by_work.items(), key=lambda item: (item[1], item[0]))
        is_clear = 2 * most_ns >= self.weight_ns > 0
        return CodeLines(
            self.samples, self.weight_ns, each=tuple(each), work=work if is_clear else ""
        )

    def _evict(self) -> None:
        # Half of them at once, so that a line that comes late has its chance.
        ranked = sorted(self._entries.items(), key=lambda item: -item[1].weight_ns)
        self._entries = dict(ranked[: MAX_LINES // 2])


def _line_of(where: Where, entries: list[tuple[str, _Entry]]) -> Line:
    work, most = max(entries, key=lambda item: (item[1].weight_ns, item[0]))
    samples = sum(entry.samples for _, entry in entries)
    return Line(
        where,
        work,
        samples=samples,
        weight_ns=sum(entry.weight_ns for _, entry in entries),
        stack=most.stack,
    )


def merge(lines: Iterable[CodeLines]) -> CodeLines:
    """Return the lines of several intervals or threads, summed."""
    several = [one for one in lines if one.samples]
    if len(several) <= 1:
        return several[0] if several else NO_LINES
    sums = LineSums()
    for one in several:
        sums.add_lines(one)
    return sums.lines()
