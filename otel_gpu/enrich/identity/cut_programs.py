"""Programs that exceeded their share of a limit while other users needed it."""

from collections import Counter

from otel_gpu.enrich.identity.identities import Program

_MAX_PROGRAMS = 4_096


class CutPrograms:
    """Counts what each program was refused, until ``take``; bounded."""

    def __init__(self) -> None:
        self._counts: Counter[Program | None] = Counter()

    def add(self, process: Program | None, count: int = 1) -> None:
        """Count what a program was refused; None: the agent, or not known."""
        is_known = process in self._counts or len(self._counts) < _MAX_PROGRAMS
        self._counts[process if is_known else None] += count

    def take(self) -> Counter[Program | None]:
        """Return and reset the counts; None: the agent, not known, or too many programs."""
        counts, self._counts = self._counts, Counter()
        return counts
