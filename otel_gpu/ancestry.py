"""Which process made which, from forks that were seen; bounded."""

from collections.abc import Callable, Iterator

from otel_gpu.recent import Recent


class Ancestry:
    """
    Remembers who made whom: either may be gone when it matters.

    Args:
        limit: How many processes are remembered, those that were made last.
        depth: How many generations are followed.
    """

    def __init__(self, limit: int, depth: int) -> None:
        self._parents: Recent[int, int] = Recent(limit)
        self._depth = depth

    def note(self, parent_pid: int, child_pid: int) -> None:
        """Take in a fork."""
        self._parents[child_pid] = parent_pid

    def of(self, pid: int, otherwise: Callable[[int], int | None]) -> Iterator[int]:
        """
        Yield who made a process, who made that one, and so on.

        Args:
            pid: The process.
            otherwise: Returns who made one whose fork was not seen; None or 0: nobody knows.
        """
        for _ in range(self._depth):
            parent_pid = self._parents.get(pid) or otherwise(pid)
            if not parent_pid:
                return
            yield parent_pid
            pid = parent_pid
