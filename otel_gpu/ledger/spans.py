"""Stretches of time that do not overlap, in order: what was done at all, however many did it."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge


class Spans:
    """
    Stretches of time as columns; none of them is empty, and none touches the next.

        >>> busy = union([(0, 4), (2, 6), (9, 12)])
        >>> busy.length_ns, list(busy)
        (9, [(0, 6), (9, 12)])
    """

    __slots__ = ("ends_ns", "starts_ns")

    def __init__(self) -> None:
        self.starts_ns = array("q")
        self.ends_ns = array("q")

    def __len__(self) -> int:
        return len(self.starts_ns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts_ns, self.ends_ns, strict=True)

    @property
    def length_ns(self) -> int:
        """All of their time."""
        return sum(self.ends_ns) - sum(self.starts_ns)

    def within(self, start_ns: int, end_ns: int) -> "Spans":
        """Return what of them is in a stretch."""
        found = Spans()
        first = bisect_right(self.ends_ns, start_ns)
        last = bisect_left(self.starts_ns, end_ns)
        if first < last:
            found.starts_ns = self.starts_ns[first:last]
            found.ends_ns = self.ends_ns[first:last]
            found.starts_ns[0] = max(found.starts_ns[0], start_ns)
            found.ends_ns[-1] = min(found.ends_ns[-1], end_ns)
        return found

    def minus(self, other: "Spans") -> "Spans":
        """Return what of them is not in others."""
        if not other:
            return self
        left = Spans()
        starts_ns, ends_ns = left.starts_ns, left.ends_ns
        cuts = iter(other)
        cut = next(cuts, None)
        for start_ns, end_ns in self:
            left_ns = start_ns
            while cut is not None and cut[1] <= left_ns:
                cut = next(cuts, None)
            while cut is not None and cut[0] < end_ns:
                if cut[0] > left_ns:
                    starts_ns.append(left_ns)
                    ends_ns.append(cut[0])
                left_ns = cut[1]
                if left_ns >= end_ns:
                    break
                cut = next(cuts, None)
            if left_ns < end_ns:
                starts_ns.append(left_ns)
                ends_ns.append(end_ns)
        return left

    def join(self, *others: "Spans") -> "Spans":
        """Return what is in any of them."""
        return union(merge(self, *others))


def stretch(start_ns: int, end_ns: int) -> Spans:
    """Return one stretch, or none if it is empty."""
    return union([(start_ns, end_ns)])


def union(pairs: Iterable[tuple[int, int]]) -> Spans:
    """Return what is in any of the pairs of start and end, which are in order of their starts."""
    found = Spans()
    starts_ns, ends_ns = found.starts_ns, found.ends_ns
    last_ns: int | None = None
    for start_ns, end_ns in pairs:
        if end_ns <= start_ns:
            continue
        if last_ns is not None and start_ns <= last_ns:
            if end_ns > last_ns:
                last_ns = ends_ns[-1] = end_ns
            continue
        starts_ns.append(start_ns)
        ends_ns.append(end_ns)
        last_ns = end_ns
    return found
