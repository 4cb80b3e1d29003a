"""Who was cut: programs that had more than their share of a bound while others had something, too."""

from collections import Counter

from otel_gpu.enrich.identity.identities import Program

_MAX_PROGRAMS = 4_096


class CutPrograms:
    """Counts what was refused to each program, until somebody takes the counts; bounded."""

    def __init__(self) -> None:
        self._counts: Counter[Program | None] = Counter()

    def add(self, process: Program | None, count: int = 1) -> None:
        """Count what was refused to a program; None: to the agent, or it is not known to whom."""
        is_known = process in self._counts or len(self._counts) < _MAX_PROGRAMS
        self._counts[process if is_known else None] += count

    def take(self) -> Counter[Program | None]:
        """Return what was refused since the counts were taken before; None: to too many others."""
        counts, self._counts = self._counts, Counter()
        return counts
