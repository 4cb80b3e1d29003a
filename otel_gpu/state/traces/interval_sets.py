"""Spans: ordered intervals without overlaps, for times when anything was active."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import sub
from typing import Final

_NEVER_NS: Final = -(1 << 63)
_NO_CUT: Final = (1 << 63, 1 << 63)


class Spans:
    """
    Intervals as columns; none is empty, and none touches the next.

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
        """The sum of their lengths."""
        # Lengths are small numbers, and fast to add up.
        return sum(map(sub, self.ends_ns, self.starts_ns))

    def within(self, start_ns: int, end_ns: int) -> "Spans":
        """Return the parts inside a window."""
        found = Spans()
        first = bisect_right(self.ends_ns, start_ns)
        last = bisect_left(self.starts_ns, end_ns)
        if first < last:
            found.starts_ns = self.starts_ns[first:last]
            found.ends_ns = self.ends_ns[first:last]
            found.starts_ns[0] = max(found.starts_ns[0], start_ns)
            found.ends_ns[-1] = min(found.ends_ns[-1], end_ns)
        return found

    def gaps(self, start_ns: int, end_ns: int) -> "Spans":
        """Return the parts of a window that they do not cover."""
        inside = self.within(start_ns, end_ns)
        ends_ns, starts_ns = array("q", (start_ns,)), inside.starts_ns[:]
        ends_ns.extend(inside.ends_ns)
        starts_ns.append(end_ns)
        # They can fill one end of it, or both.
        first = int(ends_ns[0] >= starts_ns[0])
        last = len(starts_ns) - (len(starts_ns) > first and ends_ns[-1] >= starts_ns[-1])
        found = Spans()
        found.starts_ns, found.ends_ns = ends_ns[first:last], starts_ns[first:last]
        return found

    def minus(self, other: "Spans") -> "Spans":
        """Return the parts that others do not cover."""
        if not other or not self:
            return self
        left = Spans()
        add_start, add_end = left.starts_ns.append, left.ends_ns.append
        cuts = chain(other, (_NO_CUT,))
        cut_ns, again_ns = next(cuts)
        for start_ns, end_ns in self:
            left_ns = start_ns
            while again_ns <= left_ns:
                cut_ns, again_ns = next(cuts)
            while cut_ns < end_ns:
                if cut_ns > left_ns:
                    add_start(left_ns)
                    add_end(cut_ns)
                left_ns = again_ns
                if left_ns >= end_ns:
                    break
                cut_ns, again_ns = next(cuts)
            if left_ns < end_ns:
                add_start(left_ns)
                add_end(end_ns)
        return left

    def join(self, *others: "Spans") -> "Spans":
        """Return the union with others."""
        found = [spans for spans in (self, *others) if spans]
        # Each is in order, which sorting is fast with.
        return union(sorted(chain(*found))) if len(found) > 1 else (found or [self])[0]


def union(pairs: Iterable[tuple[int, int]]) -> Spans:
    """Return the union of pairs of start and end, which are in order of their starts."""
    found = Spans()
    add_start, add_end = found.starts_ns.append, found.ends_ns.append
    last_ns = _NEVER_NS
    for start_ns, end_ns in pairs:
        if start_ns <= last_ns:
            last_ns = end_ns if end_ns > last_ns else last_ns  # noqa: FURB136 -- twice as fast
        elif end_ns > start_ns:
            if last_ns != _NEVER_NS:
                add_end(last_ns)
            add_start(start_ns)
            last_ns = end_ns
    if last_ns != _NEVER_NS:
        add_end(last_ns)
    return found
