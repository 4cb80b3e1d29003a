"""
Progress of ranks in collectives as rows, and back.

A reading has the calls since the previous one; the first one in a chunk has all known calls. The state
of changed ranks is also written at the end of a chunk, so a reader can begin at any chunk.
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
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.rows.events import WORDS, signed
from otel_gpu.recorder.storable_text import from_json, to_json
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.wire.communicators import MAX_SPLITS, Communicator, QueuedCollective, Signature

MAX_PROCESSES: Final = 1_024
"""Processes whose ranks are remembered."""
MAX_RANKS: Final = 64
"""Ranks of one process to remember."""
MAX_CALLS: Final = 64
"""Calls of a rank that a reader keeps; an import has more than a reading of the agent."""

_Handle = tuple[int, int]


class CommunicatorRows:
    """Turns readings of ranks into rows, and remembers the state of all ranks."""

    def __init__(self, names: StoredNames, lost: Counter[str]) -> None:
        self._names = names
        self._lost = lost
        self._known: Recent[int, Recent[_Handle, CommunicatorActivity]] = Recent(
            MAX_PROCESSES, evict=self._evict_process
        )
        self._touched: set[int] = set()
        # The number of the last call of a rank that is in rows of this chunk.
        self._written: dict[tuple[int, _Handle], int] = {}

    def clear(self) -> None:
        """Forget all ranks, because another capture begins."""
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
        batch.add("communicator_readings", row, unix_ns=unix_ns, text_bytes=len(figures[-1]))
        known = self._known.use(process)
        if known is None:
            evict = partial(self._evict_rank, process)
            known = self._known[process] = Recent(MAX_RANKS, evict=evict)
        known[handle] = activity
        self._written[process, handle] = activity.communicator.called
        self._touched.add(process)

    def _evict_rank(self, process: int, handle: _Handle, _: CommunicatorActivity) -> None:
        self._written.pop((process, handle), None)
        self._lost[RowLoss.NOT_FOLLOWED] += 1

    def _evict_process(self, process: int, ranks: Iterable[_Handle]) -> None:
        for handle in ranks:
            self._written.pop((process, handle), None)

    def end_chunk(self, chunk: int) -> None:
        """Write the state of ranks that changed in the chunk; the next chunk writes all calls again."""
        for process in sorted(self._touched & self._known.keys()):
            # All ranks of a process together, where a reader finds them.
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
    """Makes activities of rows, in their order, because a row has only new calls."""

    def __init__(self, dictionary: Dictionary) -> None:
        self._dictionary = dictionary
        self._calls: Recent[tuple[int, _Handle], list[tuple[QueuedCollective, int]]] = Recent(
            MAX_PROCESSES
        )

    def read(self, row: Row) -> CommunicatorActivity | None:
        """Return the reading of a row of ``communicator_readings``; None: it is invalid."""
        _, process, device, unix_ns, handle, generation, *figures = row
        return self._activity(
            process=process,
            device=device,
            unix_ns=unix_ns,
            handle=(handle % WORDS, generation),
            figures=figures,
        )

    def read_totals(
        self, unix_ns: int, totals: Iterable[Row]
    ) -> Iterator[CommunicatorActivity | None]:
        """Yield the state at a time, from rows of ``communicator_totals``; None for invalid rows."""
        for process, _, handle, generation, device, *figures in totals:
            yield self._activity(
                process=process,
                device=device,
                unix_ns=unix_ns,
                handle=(handle % WORDS, generation),
                figures=figures,
            )

    def _activity(
        self,
        process: int,
        device: int | None,
        unix_ns: int,
        handle: _Handle,
        figures: Sequence[Any],
    ) -> CommunicatorActivity | None:
        program = self._dictionary.process(process)
        *numbers, operations, completed_unix_ns, title, calls = figures
        try:
            made = _read_operations(from_json(operations, dict))
            written = from_json(calls, dict)
            fresh = list(_read_calls(written))
            kept = min(_integer(written.get("kept", wire.RECENT_COLLECTIVES)), MAX_CALLS)
            identity = int(numbers[0], 16)
        except (TypeError, ValueError, KeyError, IndexError):
            return None
        if program is None or not 0 <= identity < WORDS:
            return None
        name = (process, handle)
        known = {one.number: (one, at) for one, at in (*self._calls.get(name, ()), *fresh)}
        called = numbers[1]
        latest = [known[n] for n in sorted(known) if n <= called][-kept:]
        self._calls[name] = latest
        recent = tuple(one for one, _ in latest)
        values = (identity, *numbers[1:], made, recent, title)
        stacks = tuple(self._dictionary.program_stack(one.stack or None) for one in recent)
        return CommunicatorActivity(
            unix_ns=unix_ns,
            process=program,
            handle=handle,
            device=self._dictionary.device(device),
            communicator=Communicator._make(values),
            recent_unix_ns=tuple(at for _, at in latest),
            completed_unix_ns=completed_unix_ns,
            stacks=stacks if any(stacks) else (),
        )


def _handle(handle: _Handle) -> _Handle:
    return signed(handle[0]), handle[1]


def _calls(calls: Sequence[tuple[QueuedCollective, int]], kept: int) -> dict[str, object]:
    # Each signature is stored once. ``kept``: how many latest calls the reading has in all.
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
