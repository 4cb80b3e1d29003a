"""
What a thread of the host did over time, from nested calls.

``walk`` goes through the time of one thread. The innermost call and all calls around it decide what
the thread did: an operator inside a data loader belongs to the data loader.
"""

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag
from itertools import chain
from typing import Final

from otel_gpu.state.traces.device_steps import LOADER, PROFILER_STEP
from otel_gpu.state.traces.launches import NO_ROW
from otel_gpu.wire.device_activity import DeviceTrace, HostWork


class Doing(IntEnum):
    """What a thread does; of nested calls, the greatest value counts."""

    NOTHING = 0
    PYTHON = 1
    OPERATION = 2
    ALLOCATOR = 3
    SYNCHRONIZE = 4
    LOADER = 5


class Inside(IntFlag):
    """The regions of a call; ``CHECKPOINT``: recomputing what was computed before."""

    NOWHERE = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ZERO_GRAD = 4
    CHECKPOINT = 8
    ATTENTION = 16
    CAST = 32
    LOADER = 64


# Plain numbers, as there are millions of rows: attribute access on an enum takes longer than the
# rest.
_BACKWARD: Final = int(Inside.BACKWARD)
_CHECKPOINT: Final = int(Inside.CHECKPOINT)
_NOTHING_DONE: Final = int(Doing.NOTHING)
_OF_PYTHON: Final = int(Doing.PYTHON)
_OF_OPERATION: Final = int(Doing.OPERATION)
_OF_WAITING: Final = int(Doing.SYNCHRONIZE)
_PYTHON: Final = int(HostWork.PYTHON)
_OPERATION: Final = int(HostWork.OPERATION)
_CALL: Final = int(HostWork.CALL)

Take = Callable[[int, int, int, int, int], int]
"""
Takes an interval in which one call was the innermost: start, end, what the thread did (``Doing``),
the row of the call that decided that, and that of the innermost Python function around it, or
``NO_ROW``. Returns a time before which nothing more is wanted. It is called millions of times.
"""


class HostTime:
    """
    Times of each row of the host, after threads were walked through.

    Attributes:
        self_ns: Its time without that of calls inside it.
        owners: Of calls: the innermost operation around it; ``NO_ROW``: none.
        inside: Of calls: ``Inside``.
    """

    def __init__(self, trace: DeviceTrace, ordered: Sequence[int] | None = None) -> None:
        ordered = rows_by_start(trace) if ordered is None else ordered
        rows = len(trace.host)
        self.self_ns = array("q", bytes(8 * rows))
        self.owners = array("i", (NO_ROW,)) * rows
        self.inside = bytearray(rows)
        self._trace = trace
        self._names, self._kinds = trace.host.names, trace.host.kinds
        self._starts_ns, self._durations_ns = trace.host.starts_ns, trace.host.durations_ns
        self._doings = [int(_doing(name)) for name in trace.names]
        self._regions = [_region(name) for name in trace.names]
        # Names that mark time, without doing anything.
        self._marks = [
            not name or PROFILER_STEP.fullmatch(name) is not None for name in trace.names
        ]
        kinds = dict(zip(trace.host.names, trace.host.kinds, strict=True))
        self._is_plain = [
            doing == _OF_OPERATION and not region and kinds.get(name) == _CALL
            for name, (doing, region) in enumerate(zip(self._doings, self._regions, strict=True))
        ]
        self._rows = _by_thread(trace, ordered)

    @property
    def threads(self) -> Sequence[int]:
        """The threads that did anything."""
        return sorted(self._rows)

    def is_wait(self, row: int) -> bool:
        """Return whether a thread waits for a device in a row."""
        return self._doings[self._names[row]] == _OF_WAITING

    def is_mark(self, row: int) -> bool:
        """Return whether a row only marks time."""
        return self._marks[self._names[row]]

    def rows_within(self, thread: int, start_ns: int, end_ns: int) -> Sequence[int]:
        """
        Return the rows of a thread that were open in a window, in order, outer ones first.

        Rows that began before it count only if that was no longer ago than the length of the
        window.
        """
        rows, host = self._rows[thread], self._trace.host
        start_of = host.starts_ns.__getitem__
        oldest = bisect_left(rows, 2 * start_ns - end_ns, key=start_of)
        first = bisect_left(rows, start_ns, lo=oldest, key=start_of)
        last = bisect_left(rows, end_ns, lo=first, key=start_of)
        found = [
            row for row in rows[oldest:first] if start_of(row) + host.durations_ns[row] > start_ns
        ]
        return [*found, *rows[first:last]]

    def walk(self, thread: int, wanted_ns: int, take: Take) -> None:  # noqa: C901, PLR0912, PLR0915 -- see below
        """
        Call ``take`` for what a thread did after a time, in order, without the time in which it did
        nothing.
        """
        # One loop with local names: it is most of the work on a trace.
        rows, starts_ns, durations_ns = self._rows[thread], self._starts_ns, self._durations_ns
        names, kinds, is_plain, marks = self._names, self._kinds, self._is_plain, self._marks
        doings, regions = self._doings, self._regions
        self_ns, owners, insides = self.self_ns, self.owners, self.inside
        at_ns = reached_ns = 0
        # Of the innermost call: its end, its row, what is left of its time without the calls inside
        # it, what the thread does, the row that decides that, the Python function, the operation,
        # and the regions.
        top_ns, inner, left_ns, doing, named, python, owner, inside = _NOTHING
        stack: list[_Open] = []
        ordered = zip(rows, map(starts_ns.__getitem__, rows), strict=True)
        for row, start_ns in chain(ordered, ((NO_ROW, _END_NS),)):
            while top_ns <= start_ns:
                if top_ns > at_ns:
                    if top_ns > wanted_ns:
                        wanted_ns = take(at_ns, top_ns, doing, named, python)
                    at_ns = top_ns
                self_ns[inner] = left_ns
                top_ns, inner, left_ns, doing, named, python, owner, inside = stack.pop()
            if row == NO_ROW:
                return
            name = names[row]
            end_ns = start_ns + durations_ns[row]
            # Rounding can let it end after the call around it.
            end_ns = end_ns if end_ns < top_ns else top_ns  # noqa: FURB136 -- twice as fast
            if is_plain[name] and doing >= _OF_OPERATION:
                # Most are such calls, and only their owner is needed.
                owners[row], insides[row] = owner, inside
                reached_ns = reached_ns if reached_ns > start_ns else start_ns  # noqa: FURB136 -- as above
                own_ns = end_ns - reached_ns
                if own_ns > 0:
                    self_ns[row] = own_ns
                    left_ns -= own_ns
                    reached_ns += own_ns
                continue
            if start_ns > wanted_ns and start_ns > at_ns and stack:
                wanted_ns = take(at_ns, start_ns, doing, named, python)
            at_ns = start_ns
            left_ns -= end_ns - start_ns
            stack.append((top_ns, inner, left_ns, doing, named, python, owner, inside))
            top_ns, inner, left_ns = end_ns, row, end_ns - start_ns
            kind = kinds[row]
            if not marks[name]:
                region = regions[name]
                if kind == _PYTHON:
                    python, own = row, _OF_PYTHON
                    inside |= region & _CHECKPOINT
                else:
                    own = doings[name]
                    if region & _BACKWARD:
                        # The missing values are recomputed now, and are used.
                        inside &= ~_CHECKPOINT
                    inside |= region
                    if kind == _OPERATION:
                        owner = row
                # The outermost call of a region names it, but the innermost one of operations, and
                # there the operator rather than the call that it makes.
                if own > doing or (own == doing <= _OF_OPERATION and kind != _CALL):
                    doing, named = own, row
            if kind == _CALL:
                owners[row], insides[row] = owner, inside


_Open = tuple[int, int, int, int, int, int, int, int]
_END_NS: Final = 1 << 63
_NOTHING: Final[_Open] = (_END_NS + 1, NO_ROW, 0, _NOTHING_DONE, NO_ROW, NO_ROW, NO_ROW, 0)

_SYNCHRONIZES: Final = re.compile(
    r"(?:cuda|hip)(?:Device|Stream|Event)Synchronize|(?:cu|hip)(?:Ctx|Stream|Event)Synchronize"
    r"|(?:cuda|hip)Memcpy|hipMemcpyWithStream|aten::(?:item|_local_scalar_dense|nonzero)"
)
_ALLOCATES: Final = re.compile(
    r"(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostFree)\w*"
    r"|cuMem(?:Alloc|Free|Create|Map|Unmap|Release|AddressReserve|AddressFree|SetAccess)\w*"
)
_REGIONS: Final = (
    (Inside.BACKWARD, re.compile(r"autograd::engine|Backward\d*$")),
    (Inside.OPTIMIZER, re.compile(r"Optimizer\.step")),
    (Inside.ZERO_GRAD, re.compile(r"Optimizer\.zero_grad")),
    (
        Inside.CHECKPOINT,
        re.compile(
            r"CheckpointFunctionBackward|torch/utils/checkpoint\.py\(\d+\): (?:backward|unpack_hook)"
        ),
    ),
    (Inside.ATTENTION, re.compile(r"aten::scaled_dot_product_attention")),
    (Inside.CAST, re.compile(r"aten::(?:to|_to_copy)$")),
    (Inside.LOADER, LOADER),
)


def _doing(name: str) -> Doing:
    if LOADER.search(name):
        return Doing.LOADER
    if _SYNCHRONIZES.fullmatch(name):
        return Doing.SYNCHRONIZE
    return Doing.ALLOCATOR if _ALLOCATES.fullmatch(name) else Doing.OPERATION


def _region(name: str) -> int:
    return sum(flag for flag, pattern in _REGIONS if pattern.search(name))


def rows_by_start(trace: DeviceTrace) -> "array[int]":
    """Return the rows of the host in order of their starts."""
    host = trace.host
    return array("I", sorted(range(len(host)), key=host.starts_ns.__getitem__))


def _by_thread(trace: DeviceTrace, ordered: Sequence[int]) -> dict[int, "array[int]"]:
    # By start; of those that start together, the longest first.
    host, threads = trace.host, dict[int, "array[int]"]()
    start_of, duration_of = host.starts_ns.__getitem__, host.durations_ns.__getitem__
    tied: set[tuple[int, int]] = set()
    last_ns = -1
    columns = map(host.threads.__getitem__, ordered), map(start_of, ordered)
    for row, thread, start_ns in zip(ordered, *columns, strict=True):
        rows = threads.get(thread)
        if rows is None:
            rows = threads[thread] = array("I")
        rows.append(row)
        if start_ns == last_ns:
            tied.add((thread, start_ns))
        last_ns = start_ns
    for thread, start_ns in tied:
        rows = threads[thread]
        first = bisect_left(rows, start_ns, key=start_of)
        last = bisect_right(rows, start_ns, lo=first, key=start_of)
        rows[first:last] = array("I", sorted(rows[first:last], key=duration_of, reverse=True))
    return threads
