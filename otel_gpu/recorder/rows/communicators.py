"""
How far ranks are, as rows and back.

A reading holds the calls since the one before, and in a chunk the first one holds all that are known.
What all ranks stand at when a chunk ends is kept as well, so that a reader can begin at any chunk.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from otel_gpu import wire
from otel_gpu.enrich.activities import CommunicatorActivity
from otel_gpu.limits.recent import Recent
from otel_gpu.recorder.batch import RowBatch
from otel_gpu.recorder.dictionary import Dictionary
from otel_gpu.recorder.losses import NOT_FOLLOWED
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.rows.events import WORDS, signed
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.text import from_json, to_json
from otel_gpu.wire.communicators import MAX_SPLITS, Communicator, QueuedCollective, Signature

MAX_PROCESSES: Final = 1_024
"""Of which it is kept what they stand at."""
MAX_RANKS: Final = 64
"""Of one process, the same."""
MAX_CALLS: Final = 64
"""Of a rank, that a reader knows; an import has more of them than a reading of our own."""

_Handle = tuple[int, int]


class CommunicatorRows:
    """Turns readings of ranks into rows, and keeps what they all stand at."""

    def __init__(self, names: StoredNames, lost: Counter[str]) -> None:
        self._names = names
        self._lost = lost
        self._known: Recent[int, Recent[_Handle, CommunicatorActivity]] = Recent(
            MAX_PROCESSES, evict=self._evict_process
        )
        self._touched: set[int] = set()
        # Up to which number the calls of a rank are in rows of this chunk.
        self._written: dict[tuple[int, _Handle], int] = {}

    def clear(self) -> None:
        """Forget what is known: another capture begins."""
        self._known.clear()
        self._touched.clear()
        self._written.clear()

    def add(self, batch: RowBatch, seq: int, activity: CommunicatorActivity) -> None:
        """Add a reading."""
        process = self._names.follow(activity.process).number
        handle, unix_ns = activity.handle, activity.unix_ns
        written = self._written.get((process, handle), 0)
        figures, device = self._figures(activity, written), self._names.device(activity.device)
        row = (seq, process, device, unix_ns, *_handle(handle), *figures)
        batch.add("communicator_readings", row, unix_ns, len(figures[-1]))
        known = self._known.use(process)
        if known is None:
            evict = partial(self._evict_rank, process)
            known = self._known[process] = Recent(MAX_RANKS, evict=evict)
        known[handle] = activity
        self._written[process, handle] = activity.communicator.called
        self._touched.add(process)

    def _evict_rank(self, process: int, handle: _Handle, _: CommunicatorActivity) -> None:
        self._written.pop((process, handle), None)
        self._lost[NOT_FOLLOWED] += 1

    def _evict_process(self, process: int, ranks: Iterable[_Handle]) -> None:
        for handle in ranks:
            self._written.pop((process, handle), None)

    def end_chunk(self, chunk: int) -> None:
        """Keep what everything stands at that the chunk added to, and let the next say all calls."""
        for process in sorted(self._touched & self._known.keys()):
            # All of a process, so that a reader finds them in one place.
            for handle, activity in self._known[process].items():
                device = self._names.device(activity.device)
                key = (process, chunk, *_handle(handle), device)
                self._names.keep("communicator_totals", *key, *self._figures(activity, 0))
        self._touched.clear()
        self._written.clear()

    def _figures(self, activity: CommunicatorActivity, written: int) -> tuple[Any, ...]:
        identity, *numbers, operations, recent, name = activity.communicator
        counted = {str(number): list(made) for number, made in operations.items()}
        stacks = activity.stacks or (None,) * len(recent)
        calls = [
            (one._replace(stack=self._names.program_stack(stack) or 0), at)
            for one, at, stack in zip(recent, activity.recent_unix_ns, stacks, strict=True)
            if one.number > written
        ]
        return (
            f"{identity:016x}",
            *numbers,
            to_json(counted) or "{}",
            activity.completed_unix_ns,
            name,
            to_json(_calls(calls, len(recent))) or "{}",
        )


class RankReader:
    """Makes activities of rows, in their order; each row has what is new of the calls."""

    def __init__(self, directory: Dictionary) -> None:
        self._directory = directory
        self._calls: Recent[tuple[int, _Handle], list[tuple[QueuedCollective, int]]] = Recent(
            MAX_PROCESSES
        )

    def read(self, row: Row) -> CommunicatorActivity | None:
        """Return the reading of a row of ``communicator_readings``; None: it is none."""
        _, process, device, unix_ns, handle, generation, *figures = row
        return self._activity(process, device, unix_ns, (handle % WORDS, generation), figures)

    def read_totals(
        self, unix_ns: int, totals: Iterable[Row]
    ) -> Iterator[CommunicatorActivity | None]:
        """Yield what was known at a moment, of rows of ``communicator_totals``."""
        for process, _, handle, generation, device, *figures in totals:
            yield self._activity(process, device, unix_ns, (handle % WORDS, generation), figures)

    def _activity(
        self,
        process: int,
        device: int | None,
        unix_ns: int,
        handle: _Handle,
        figures: Sequence[Any],
    ) -> CommunicatorActivity | None:
        image = self._directory.process(process)
        *numbers, operations, completed_unix_ns, title, calls = figures
        try:
            made = _read_operations(from_json(operations, dict))
            written = from_json(calls, dict)
            fresh = list(_read_calls(written))
            kept = min(_integer(written.get("kept", wire.RECENT_COLLECTIVES)), MAX_CALLS)
            identity = int(numbers[0], 16)
        except (TypeError, ValueError, KeyError, IndexError):
            return None
        if image is None or not 0 <= identity < WORDS:
            return None
        name = (process, handle)
        known = {one.number: (one, at) for one, at in (*self._calls.get(name, ()), *fresh)}
        called = numbers[1]
        latest = [known[n] for n in sorted(known) if n <= called][-kept:]
        self._calls[name] = latest
        recent = tuple(one for one, _ in latest)
        values = (identity, *numbers[1:], made, recent, title)
        stacks = tuple(self._directory.program_stack(one.stack or None) for one in recent)
        return CommunicatorActivity(
            unix_ns,
            image,
            handle,
            self._directory.device(device),
            Communicator._make(values),
            tuple(at for _, at in latest),
            completed_unix_ns,
            stacks if any(stacks) else (),
        )


def _handle(handle: _Handle) -> _Handle:
    return signed(handle[0]), handle[1]


def _calls(calls: Sequence[tuple[QueuedCollective, int]], kept: int) -> dict[str, Any]:
    """Return calls so that many that ask for the same take little room; ``kept``: of how many latest."""
    if not calls:
        return {}
    more = {"kept": kept} if kept > wire.RECENT_COLLECTIVES else {}
    signatures: dict[Signature, int] = {}
    rows = [
        [
            call.number,
            call.called_ktime_ns,
            signatures.setdefault(call.signature, len(signatures)),
            *([call.stack] if call.stack or call.sends or call.receives else []),
            *([call.sends, call.receives] if call.sends or call.receives else []),
        ]
        for call, _ in calls
    ]
    call, unix_ns = calls[-1]
    return more | {
        "offset_ns": unix_ns - call.called_ktime_ns,
        "signatures": [list(signature) for signature in signatures],
        "calls": rows,
    }


def _read_calls(written: Mapping[str, Any]) -> Iterator[tuple[QueuedCollective, int]]:
    if not written:
        return
    offset_ns = _integer(written["offset_ns"], -MAX_INTEGER)
    signatures = [
        Signature(*(_integer(value, -1) for value in values)) for values in written["signatures"]
    ]
    for number, ktime_ns, signature, *more in written["calls"][-MAX_CALLS:]:
        asked = signatures[_integer(signature)]
        splits = [tuple(map(_integer, one[:MAX_SPLITS])) for one in more[1:3]]
        made = QueuedCollective(
            _integer(number), _integer(ktime_ns), asked, _integer(more[0]) if more else 0, *splits
        )
        yield made, made.called_ktime_ns + offset_ns


def _read_operations(written: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    found = {}
    for number, (calls, size_bytes) in written.items():
        found[_integer(int(number))] = _integer(calls), _integer(size_bytes)
    return dict(list(found.items())[: wire.MAX_COLLECTIVE_OPERATIONS])


def _integer(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_INTEGER:
        raise ValueError("number out of range")
    return value
