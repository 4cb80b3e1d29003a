"""
What a thread of the host did at each moment, of calls that lie in each other.

``walk`` goes through the time of one thread and says which call was the innermost, and what the
thread did by all of those around it: an operator inside a data loader is the data loader's.
"""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from enum import IntEnum, IntFlag
from itertools import chain
from typing import Final

from otel_gpu.decode.device import DeviceTrace, HostWork
from otel_gpu.ledger.device_steps import LOADER, PROFILER_STEP
from otel_gpu.ledger.launches import NO_ROW


class Doing(IntEnum):
    """What a thread does; of calls in each other, the greatest holds."""

    NOTHING = 0
    PYTHON = 1
    OPERATION = 2
    ALLOCATOR = 3
    SYNCHRONIZE = 4
    LOADER = 5


class Inside(IntFlag):
    """In which regions a call was made; ``CHECKPOINT``: to compute again what was computed before."""

    NOWHERE = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ZERO_GRAD = 4
    CHECKPOINT = 8
    ATTENTION = 16
    CAST = 32
    LOADER = 64


# Plain numbers, as there are millions of rows: looking a member up takes longer than what is done with it.
_BACKWARD: Final = int(Inside.BACKWARD)
_CHECKPOINT: Final = int(Inside.CHECKPOINT)
_NOTHING_DONE: Final = int(Doing.NOTHING)
_OF_PYTHON: Final = int(Doing.PYTHON)
_OF_OPERATION: Final = int(Doing.OPERATION)
_OF_WAITING: Final = int(Doing.SYNCHRONIZE)
_PYTHON: Final = int(HostWork.PYTHON)
_OPERATION: Final = int(HostWork.OPERATION)
_CALL: Final = int(HostWork.CALL)

Segment = tuple[int, int, int, int, int]
"""
A stretch in which one call was the innermost: start, end, what the thread did (``Doing``), the row of the call
that says so, and that of the innermost function of Python around it, or ``NO_ROW``. There are
millions of them.
"""


class HostTime:
    """
    What is known of each row of the host, when threads were walked through.

    Attributes:
        self_ns: Its time without that of calls in it.
        owners: The innermost operation around it, or it itself; ``NO_ROW``: none.
        inside: ``Inside``.
    """

    def __init__(self, trace: DeviceTrace) -> None:
        count = len(trace.host)
        self.self_ns = array("q", bytes(8 * count))
        self.owners = array("i", (NO_ROW,)) * count
        self.inside = bytearray(count)
        self._trace = trace
        self._names, self._kinds = trace.host.names, trace.host.kinds
        self._doings = [int(_doing(name)) for name in trace.names]
        self._regions = [_region(name) for name in trace.names]
        # Names that mark time, and do nothing.
        self._marks = [
            not name or PROFILER_STEP.fullmatch(name) is not None for name in trace.names
        ]
        kinds = dict(zip(trace.host.names, trace.host.kinds, strict=True))
        self._is_plain = [
            doing == _OF_OPERATION and not region and kinds.get(name) == _CALL
            for name, (doing, region) in enumerate(zip(self._doings, self._regions, strict=True))
        ]
        self._rows = _by_thread(trace)
        self._walked: set[int] = set()

    @property
    def threads(self) -> Sequence[int]:
        """The threads that did anything."""
        return sorted(self._rows)

    def is_wait(self, row: int) -> bool:
        """Say whether a thread waits for a device in a row."""
        return self._doings[self._names[row]] == _OF_WAITING

    def is_mark(self, row: int) -> bool:
        """Say whether a row only marks time."""
        return self._marks[self._names[row]]

    def rows_within(self, thread: int, start_ns: int, end_ns: int) -> Sequence[int]:
        """
        Return the rows of a thread that were open in a stretch, in order, what lies in another one after it.

        Of those that began before it, only if that was no longer ago than the stretch is.
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

    def walk(self, thread: int) -> Iterator[Segment]:
        """Yield what a thread did, in order; not the time in which it did nothing."""
        starts_ns, durations_ns = self._trace.host.starts_ns, self._trace.host.durations_ns
        names, is_plain, self_ns = self._names, self._is_plain, self.self_ns
        owners, insides, open_ = self.owners, self.inside, self._open
        at_ns = reached_ns = 0
        stack: list[_Open] = []
        for row in chain(self._rows_of(thread), (NO_ROW,)):
            start_ns = _END_NS if row == NO_ROW else starts_ns[row]
            while stack and stack[-1][0] <= start_ns:
                end_ns, inner, doing, named, python, _, _ = stack.pop()
                if end_ns > at_ns:
                    self_ns[inner] += end_ns - at_ns
                    yield at_ns, end_ns, doing, named, python
                    at_ns = end_ns
            if row == NO_ROW:
                return
            end_ns = start_ns + durations_ns[row]
            if stack:
                top = stack[-1]
                top_ns, inner, doing, named, python, owner, inside = top
                if is_plain[names[row]] and doing >= _OF_OPERATION:
                    # Most are such calls, of which nothing more is to be said than whose they are.
                    owners[row], insides[row] = owner, inside
                    reached_ns = reached_ns if reached_ns > start_ns else start_ns  # noqa: FURB136 -- twice as fast
                    own_ns = (end_ns if end_ns < top_ns else top_ns) - reached_ns  # noqa: FURB136 -- twice as fast
                    if own_ns > 0:
                        self_ns[row] += own_ns
                        self_ns[inner] -= own_ns
                        reached_ns += own_ns
                    continue
                if start_ns > at_ns:
                    self_ns[inner] += start_ns - at_ns
                    yield at_ns, start_ns, doing, named, python
                # Rounding may let it end after what it lies in.
                end_ns = end_ns if end_ns < top_ns else top_ns  # noqa: FURB136 -- twice as fast
            else:
                top = _NOTHING
            at_ns = at_ns if at_ns > start_ns else start_ns  # noqa: FURB136 -- twice as fast
            stack.append(open_(row, end_ns, top))

    def _rows_of(self, thread: int) -> Sequence[int]:
        rows = self._rows.get(thread, array("I"))
        if thread in self._walked:
            # For another device: time does not count twice.
            for row in rows:
                self.self_ns[row] = 0
        self._walked.add(thread)
        return rows

    def _open(self, row: int, end_ns: int, around: "_Open") -> "_Open":
        _, _, doing, named, python, owner, inside = around
        name, kind = self._names[row], self._kinds[row]
        if not self._marks[name]:
            region = self._regions[name]
            if kind == _PYTHON:
                python, own = row, _OF_PYTHON
                inside |= region & _CHECKPOINT
            else:
                own = self._doings[name]
                if region & _BACKWARD:
                    # What was missing is there now, and is used.
                    inside &= ~_CHECKPOINT
                inside |= region
                if kind == _OPERATION:
                    owner = row
            # Of one region the outermost call names it, but of operations the innermost, and of
            # those rather the operator than the call that it makes.
            is_finer = own == doing <= _OF_OPERATION
            if own > doing or (is_finer and kind != _CALL):
                doing, named = own, row
        self.owners[row], self.inside[row] = owner, inside
        return end_ns, row, doing, named, python, owner, inside


# Of a call that is open: its end, its row, what the thread does, who says so, the function of
# Python, the operation, and the regions.
_Open = tuple[int, int, int, int, int, int, int]
_END_NS: Final = 1 << 63
_NOTHING: Final[_Open] = (0, NO_ROW, _NOTHING_DONE, NO_ROW, NO_ROW, NO_ROW, 0)

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


def _by_thread(trace: DeviceTrace) -> dict[int, "array[int]"]:
    """Return the rows of each thread by start; of what begins at once, the longest first."""
    host, threads = trace.host, dict[int, "array[int]"]()
    for row, thread in enumerate(host.threads):
        rows = threads.get(thread)
        if rows is None:
            rows = threads[thread] = array("I")
        rows.append(row)
    for thread, rows in threads.items():
        threads[thread] = array("I", sorted(rows, key=host.starts_ns.__getitem__))
        _longest_first(trace, threads[thread])
    return threads


def _longest_first(trace: DeviceTrace, rows: "array[int]") -> None:
    starts_ns, durations_ns = trace.host.starts_ns, trace.host.durations_ns
    first, first_ns = 0, -1
    for at, row in enumerate(chain(rows, (NO_ROW,))):
        start_ns = -1 if row == NO_ROW else starts_ns[row]
        if start_ns == first_ns:
            continue
        if at - first > 1:
            same = sorted(rows[first:at], key=lambda row: -durations_ns[row])
            rows[first:at] = array("I", same)
        first, first_ns = at, start_ns
