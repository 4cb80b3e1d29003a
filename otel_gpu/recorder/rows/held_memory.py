"""
Holders of device memory as rows, and back.

A reading has a row, and a row for each holder that changed. The state of changed processes is also
written at the end of a chunk, so a reader can begin at any chunk.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from otel_gpu.enrich.activities import BlocksActivity, OutOfMemoryActivity
from otel_gpu.enrich.identity.identities import CallStack, Program
from otel_gpu.enrich.ids import SpanIds
from otel_gpu.limits.recent import Recent
from otel_gpu.recorder.batch import RowBatch
from otel_gpu.recorder.dictionary import Dictionary
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.rows.events import WORDS, event_rows, signed
from otel_gpu.recorder.storable_text import to_json
from otel_gpu.recorder.tables.columns import Row
from otel_gpu.wire.blocks import Holder, MemoryTotals, OutOfMemory
from otel_gpu.wire.bodies import MEMORY_MAP, MemoryMapFacts
from otel_gpu.wire.probe_table import Api

MAX_HOLDERS: Final = 16_384
"""Holders of all processes to remember."""
MAX_PROCESSES: Final = 1_024

_NO_TOTALS = (None,) * len(MemoryTotals._fields)
_flatten, _restore = event_rows(OutOfMemory)


class _Known(NamedTuple):
    # The devices of one process: rows of both tables of totals by their keys.

    devices: dict[int, Row]
    holders: dict[tuple[int, int], Row]


class HeldMemory:
    """Turns readings of memory into rows, and remembers the state of all processes."""

    def __init__(self, names: StoredNames, lost: Counter[str]) -> None:
        self._names = names
        self._lost = lost
        self._known: Recent[int, _Known] = Recent(MAX_PROCESSES, evict=self._evict)
        self._touched: set[int] = set()
        self._count = 0

    def clear(self) -> None:
        """Forget all processes, because another capture begins."""
        self._known.clear()
        self._touched.clear()
        self._count = 0

    def add(self, batch: RowBatch, seq: int, activity: BlocksActivity) -> None:
        """Add a reading and its holders."""
        process = self._names.follow(activity.process).number
        number = activity.number
        totals = _NO_TOTALS if activity.totals is None else tuple(activity.totals)
        device = self._names.device(activity.device)
        row = (seq, process, number, device, activity.unix_ns, *totals)
        batch.add("memory_readings", row, activity.unix_ns)
        known = self._find(process)
        if activity.totals is not None or number not in known.devices:
            known.devices[number] = (device, *totals)
        for place, (key, holder, stack) in enumerate(activity.holders):
            held = (signed(key), self._names.program_stack(stack), *holder)
            batch.add_part("memory_holders", (seq, place, *held))
            name = (number, held[0])
            if name not in known.holders:
                if self._count >= MAX_HOLDERS:
                    self._lost[RowLoss.NOT_FOLLOWED] += 1
                    continue
                self._count += 1
            known.holders[name] = held[1:]

    def add_failure(self, batch: RowBatch, seq: int, activity: OutOfMemoryActivity) -> None:
        """Add a failed request, and the stacks of its memory map."""
        names = self._names
        if activity.api is not None:
            names.api(activity.api)
        text = None if activity.map is None else _map_text(activity.map)
        if activity.map is not None and text is None:
            self._lost[RowLoss.TOO_LARGE] += 1
        row = (
            seq,
            names.follow(activity.process).number,
            names.device(activity.device),
            names.program_stack(activity.stack),
            activity.unix_ns,
            *_flatten(activity.event),
            text,
        )
        batch.add("out_of_memory", row, unix_ns=activity.unix_ns, text_bytes=len(text or ""))
        for key, stack in sorted(activity.stacks.items()):
            part = (seq, signed(key), names.program_stack(stack))
            batch.add_part("out_of_memory_stacks", part)

    def end_chunk(self, chunk: int) -> None:
        """Write the state of processes that changed in the chunk."""
        keep = self._names.keep
        for process in sorted(self._touched & self._known.keys()):
            known = self._known[process]
            # All rows of a process together, where a reader finds them.
            for number, totals in known.devices.items():
                keep("memory_totals", process, chunk, number, *totals)
            for (number, key), held in known.holders.items():
                keep("memory_holder_totals", process, chunk, number, key, *held)
        self._touched.clear()

    def _find(self, process: int) -> _Known:
        known = self._known.use(process)
        if known is None:
            known = self._known[process] = _Known({}, {})
        self._touched.add(process)
        return known

    def _evict(self, _: int, known: _Known) -> None:
        self._count -= len(known.holders)


def _map_text(info: MemoryMapFacts) -> str | None:
    # A map that is too large loses half of its blocks until it fits.
    text = to_json(info)
    while text is None and info["blocks"]:
        kept = info["blocks"][: len(info["blocks"]) // 2]
        left_out = info["left_out"] + len(info["blocks"]) - len(kept)
        info = {**info, "blocks": kept, "left_out": left_out}
        text = to_json(info)
    return text


def read_blocks(dictionary: Dictionary, row: Row, parts: Iterable[Row]) -> BlocksActivity | None:
    """Return the reading of a row of ``memory_readings`` and its holders; None: it is invalid."""
    _, process, number, device, unix_ns, *totals = row
    held = ((key, number, figures) for _, _, key, number, *figures in parts)
    return _blocks(
        dictionary=dictionary,
        of=(process, number, device),
        unix_ns=unix_ns,
        totals=totals,
        held=held,
    )


def read_totals(
    dictionary: Dictionary, unix_ns: int, devices: Iterable[Row], holders: Iterable[Row]
) -> Iterable[BlocksActivity | None]:
    """Yield the state at a time, from rows of both tables of totals; None for invalid rows."""
    held: dict[tuple[int, int], list[tuple[int, int | None, list[object]]]] = {}
    for process, _, number, key, stack, *figures in holders:
        held.setdefault((process, number), []).append((key, stack, figures))
    for process, _, number, device, *totals in devices:
        found = held.pop((process, number), [])
        yield _blocks(
            dictionary=dictionary,
            of=(process, number, device),
            unix_ns=unix_ns,
            totals=totals,
            held=found,
        )


def read_failure(
    dictionary: Dictionary, ids: SpanIds, row: Row, parts: Iterable[Row]
) -> OutOfMemoryActivity | None:
    """Return the request of a row of ``out_of_memory`` and of its stacks; None: it is invalid."""
    _, process, device, stack, unix_ns, *columns, text = row
    program = dictionary.process(process)
    if program is None:
        return None
    event = _restore(columns)
    api: Api | None = dictionary.api(event.api) if event.api else None
    try:
        memory_map = None if text is None else MEMORY_MAP.parse(text.encode())
    except ValueError:
        return None
    find: Callable[[int | None], CallStack | None] = dictionary.program_stack
    found = ((key % WORDS, find(number)) for _, key, number in parts)
    return OutOfMemoryActivity(
        unix_ns,
        program,
        event,
        dictionary.device(device),
        api,
        find(stack),
        memory_map,
        {key: one for key, one in found if one is not None},
        *ids.of_out_of_memory(event),
    )


def _blocks(
    dictionary: Dictionary,
    of: tuple[int, int, int | None],
    unix_ns: int,
    totals: list[Any],
    held: Iterable[tuple[int, int | None, list[Any]]],
) -> BlocksActivity | None:
    process, number, device = of
    program: Program | None = dictionary.process(process)
    if program is None:
        return None
    find = dictionary.program_stack
    return BlocksActivity(
        unix_ns=unix_ns,
        process=program,
        number=number,
        device=dictionary.device(device),
        totals=None if None in totals else MemoryTotals(*totals),
        holders=tuple((key % WORDS, Holder(*figures), find(stack)) for key, stack, figures in held),
    )
