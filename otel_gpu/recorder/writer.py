"""
The writer turns activities, chains and incidents into batches of rows.

Live, it never waits for a disk: the journal's thread does. Rows above the limits of memory are lost
while the disk is busy, and counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    BlocksActivity,
    CallActivity,
    CaptureActivity,
    CommunicatorActivity,
    CountersActivity,
    DevicesActivity,
    DeviceTraceActivity,
    ExitActivity,
    FabricActivity,
    MemoryActivity,
    OutOfMemoryActivity,
    PressureActivity,
    ProbesActivity,
    ResourceActivity,
    StatusActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.explain.budget import ChainLimit
from otel_gpu.explain.chains import Cause, Chain, Incident
from otel_gpu.recorder.batch import ROW_BYTES, ChunkExtent, RowBatch
from otel_gpu.recorder.journal import Journal
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.losses import CHAINS, RowLoss
from otel_gpu.recorder.names import StoredNames
from otel_gpu.recorder.processes import End
from otel_gpu.recorder.rows.chains import cause_rows, chain_row, incident_row
from otel_gpu.recorder.rows.communicators import CommunicatorRows
from otel_gpu.recorder.rows.device_traces import RowChunk, TraceRows
from otel_gpu.recorder.rows.device_uses import found_rows
from otel_gpu.recorder.rows.held_memory import HeldMemory
from otel_gpu.recorder.rows.readings import Reading, Readings
from otel_gpu.recorder.rows.resource_text import resource_text
from otel_gpu.recorder.storable_text import clean, to_json
from otel_gpu.recorder.tables.events import EVENT_TABLES

# Share of the file that a trace can take; other rows need space, too.
_TRACE_SHARE = 0.8


class StoreWriter:
    """
    Writes a store; ``recorder.open_writer`` makes it.

    Args:
        first: The first free number of ``seq`` and of each numbered table.
        live: Whether to write a batch also when it is old, not only when it is full.
        reach: Called with the next ``seq`` once that exceeds the result of the last call.
    """

    def __init__(
        self,
        journal: Journal,
        limits: StoreLimits,
        first: Mapping[str, int],
        *,
        live: bool,
        reach: Callable[[int], int],
    ) -> None:
        self._journal = journal
        self._reach = reach
        self._limits = limits
        self._batch_rows, self._batch_bytes = limits.batch_rows, limits.batch_bytes
        self._trace_rows = max(1, min(limits.batch_rows, limits.batch_bytes // ROW_BYTES))
        self._live = live
        self._seq = first["seq"]
        self._unreached_seq = 0
        self._lost: Counter[str] = Counter()
        self._names = StoredNames(first, self._lost)
        self._names.begin_chunk(first["chunks"])
        self._batch = RowBatch(first["chunks"])
        self._due_s = time.monotonic() + limits.batch_interval_s
        self._chunk_start_unix_ns: int | None = None
        self._chunk_rows = self._chunk_bytes = 0
        self._readings = Readings(self._names, self._lost)
        self._memory = HeldMemory(self._names, self._lost)
        self._ranks = CommunicatorRows(self._names, self._lost)
        self._is_closed = False
        self._capture_unix_ns = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            AggregatesActivity: partial(self._observe_reading, "aggregates"),
            BlocksActivity: lambda one: self._memory.add(self._batch, self._next_seq(), one),
            CaptureActivity: self._observe_capture,
            CommunicatorActivity: lambda one: self._ranks.add(self._batch, self._next_seq(), one),
            CountersActivity: partial(self._observe_reading, "counters"),
            DeviceTraceActivity: self._observe_trace,
            ExitActivity: self._observe_exit,
            MemoryActivity: lambda _: None,
            OutOfMemoryActivity: lambda one: self._memory.add_failure(
                self._batch, self._next_seq(), one
            ),
            PressureActivity: partial(self._observe_info, "pressure"),
            DevicesActivity: partial(self._observe_info, "device_readings"),
            FabricActivity: partial(self._observe_info, "fabric_readings"),
            ProbesActivity: self._observe_probes,
            ResourceActivity: self._observe_resource,
            StatusActivity: partial(self._observe_info, "statuses"),
            TimesActivity: partial(self._observe_reading, "times"),
            WhoActivity: self._observe_who,
        }
        self._events = {
            kind.activity: (kind.name, kind.row_maker(self._names)) for kind in EVENT_TABLES
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def observe(self, activity: Activity) -> None:
        """Add an activity; call it in the order of the stream."""
        if event := self._events.get(type(activity)):
            table, make_row = event
            seq, batch = self._seq, self._batch
            self._seq = seq + 1
            # Inlined add_part(), as nearly all rows come here.
            batch.rows[table].append(make_row(seq, activity))
            batch.count += 1
            if type(activity) is CallActivity and activity.kernel:
                batch.add_part("launches", (seq, self._names.kernel(activity.kernel)))
        else:
            self._handlers[type(activity)](activity)
            batch = self._batch
        if self._seq > self._unreached_seq:
            self._unreached_seq = self._reach(self._seq)
        if (
            batch.count >= self._batch_rows
            # Inlined batch.bytes, which takes longer.
            or batch.count * ROW_BYTES + batch.text_bytes + self._names.pending.bytes
            >= self._batch_bytes
            or (self._live and time.monotonic() >= self._due_s)
        ):
            self._hand_over()

    def observe_chain(self, chain: Chain) -> None:
        """Add a causal chain, after the activities that it was made from."""
        effect = chain.effect
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        seq = self._next_seq()
        self._batch.add("chains", chain_row(seq, chain, self._names), end_unix_ns)
        self._add_causes(seq, chain.causes)

    def limit_chains(self, reason: ChainLimit, count: int) -> None:
        """Count causal chains that are not stored."""
        self._lost[CHAINS + reason] += count

    def observe_incident(self, incident: Incident) -> None:
        """Add an incident, after its chains."""
        seq = self._next_seq()
        self._batch.add("incidents", incident_row(seq, incident), incident.end_unix_ns)
        self._add_causes(seq, incident.causes)
        for name in dict.fromkeys(clean(chain.id) for chain in incident.chains):
            self._batch.add_part("incident_chains", (seq, name))

    def conclude_import(
        self, source: str, notes: Sequence[str], rejected: Mapping[str, int]
    ) -> None:
        """Add the row of an import, at its end."""
        texts = self._json(list(notes), "[]"), self._json(rejected)
        row = (self._next_seq(), self._capture_unix_ns, clean(source), *texts)
        self._batch.add(
            "imports", row, unix_ns=self._capture_unix_ns, text_bytes=sum(map(len, texts))
        )

    def renew(self) -> "StoreWriter":
        """Start a chunk after errors: it writes all names again, and totals continue."""
        self._batch = RowBatch(self._put_last())
        return self

    def close(self, timeout_s: float = 10.0) -> bool:
        """Write remaining rows within the time, and close. Return False if rows were lost at the end."""
        if self._is_closed:
            return True
        self._is_closed = True
        self._put_last()
        return self._journal.close(timeout_s)

    def lost(self) -> Mapping[str, int]:
        """Return the rows that did not reach the store, by reason."""
        return dict(self._lost + self._journal.lost.copy())

    def _add_causes(self, seq: int, causes: Sequence[Cause]) -> None:
        for table, row in cause_rows(seq, causes, self._names):
            self._batch.add_part(table, row)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq - 1

    def _hand_over(self) -> None:
        batch = self._batch
        if not self._journal.is_ready():
            if (
                batch.count >= self._limits.waiting_rows
                or batch.bytes >= self._limits.waiting_bytes
            ):
                # Referred rows are kept, because later rows refer to them too.
                self._lost[RowLoss.BUSY] += batch.count
                self._batch = RowBatch(batch.chunk)
            return
        extent = batch.extent
        if self._chunk_start_unix_ns is None:
            self._chunk_start_unix_ns = extent.start_unix_ns
        self._chunk_rows += batch.count
        self._chunk_bytes += batch.bytes + self._names.pending.bytes
        self._put()
        span_ns = abs(extent.end_unix_ns - self._chunk_start_unix_ns)
        chunk = batch.chunk
        if (
            span_ns >= self._limits.chunk_span_ns
            or self._chunk_rows >= self._limits.chunk_rows
            or self._chunk_bytes >= self._limits.chunk_bytes
        ):
            chunk = self._end_chunk()
        self._batch = RowBatch(chunk)
        self._due_s = time.monotonic() + self._limits.batch_interval_s

    def _put(self) -> None:
        self._batch.pending = self._names.take()
        self._batch.lost = dict(self._lost)
        self._journal.put(self._batch)

    def _put_last(self) -> int:
        chunk = self._end_chunk()
        self._put()
        return chunk

    def _end_chunk(self) -> int:
        # Writes totals, starts the next chunk and returns its number.
        chunk = self._batch.chunk
        self._readings.end_chunk(chunk)
        self._memory.end_chunk(chunk)
        self._ranks.end_chunk(chunk)
        self._chunk_start_unix_ns = None
        self._chunk_rows = self._chunk_bytes = 0
        self._names.begin_chunk(chunk + 1)
        return chunk + 1

    def _observe_exit(self, activity: ExitActivity) -> None:
        end = End(activity.end_unix_ns, activity.exit_code)
        process = self._names.end_process(activity.process, end)
        row = (self._next_seq(), process, *end, int(activity.is_replaced))
        self._batch.add("exits", row, activity.end_unix_ns)

    def _observe_capture(self, activity: CaptureActivity) -> None:
        # Counts restart, so earlier totals do not belong to this capture.
        if self._batch.count:
            self._hand_over()
        if self._chunk_rows:
            chunk = self._end_chunk()
            if not self._batch.count:
                self._batch = RowBatch(chunk)
        self._readings.counters.clear()
        self._memory.clear()
        self._ranks.clear()
        self._capture_unix_ns = activity.unix_ns
        seq = self._next_seq()
        self._batch.reach(seq, activity.unix_ns)
        self._names.begin_capture(seq, activity)

    def _observe_probes(self, activity: ProbesActivity) -> None:
        seq = self._next_seq()
        self._batch.reach(seq, activity.unix_ns)
        self._names.add_probes(seq, activity.unix_ns, self._json(activity.info))

    def _observe_trace(self, activity: DeviceTraceActivity) -> None:
        made = TraceRows(self._seq, activity)
        if made.bytes > self._limits.file_bytes * _TRACE_SHARE:
            self._lost[RowLoss.TRACE_TOO_LARGE] += made.count
            return
        # All rows have the times of the whole trace, because any window in it needs all of them.
        times = made.start_unix_ns, activity.unix_ns
        self._add_trace_rows(made.head(), times)
        for rows in made.chunks(self._trace_rows, self._batch_bytes):
            self._add_trace_rows(rows, times)
        for table, row, text_bytes in found_rows(activity.trace):
            self._add_trace_rows(RowChunk(table, [(self._seq, made.seq, *row)], text_bytes), times)

    def _add_trace_rows(self, added: RowChunk, times: tuple[int, int]) -> None:
        last = self._seq + len(added.rows) - 1
        extent = ChunkExtent(self._seq, last, *times)
        self._batch.add_all(
            table=added.table, rows=added.rows, extent=extent, text_bytes=added.text_bytes
        )
        self._seq = last + 1
        if self._batch.count >= self._batch_rows or self._batch.bytes >= self._batch_bytes:
            self._unreached_seq = self._reach(self._seq)
            self._hand_over()

    def _observe_who(self, activity: WhoActivity) -> None:
        seq = self._next_seq()
        self._batch.reach(seq, activity.unix_ns)
        self._names.add_identity(seq, *activity)

    def _observe_resource(self, activity: ResourceActivity) -> None:
        text = resource_text(activity.resource) or "{}"
        row = (self._next_seq(), activity.unix_ns, text, activity.retransmits)
        self._batch.add("connections", row, unix_ns=activity.unix_ns, text_bytes=len(text))

    def _observe_info(
        self,
        table: str,
        activity: PressureActivity | DevicesActivity | FabricActivity | StatusActivity,
    ) -> None:
        text = self._json(activity.info)
        row = (self._next_seq(), activity.unix_ns, text)
        self._batch.add(table, row, unix_ns=activity.unix_ns, text_bytes=len(text))

    def _observe_reading(self, kind: str, activity: Reading) -> None:
        seq = self._next_seq()
        self._batch.add("readings", (seq, kind, activity.unix_ns), activity.unix_ns)
        self._readings.add(self._batch, seq, activity)

    def _json(self, info: Mapping[str, object] | Sequence[str], nothing: str = "{}") -> str:
        text = to_json(info)
        if text is None:
            self._lost[RowLoss.TOO_LARGE] += 1
            return nothing
        return text
