"""
The writer: activities, chains and incidents in, batches of rows out.

It observes like the exports do, and never waits for a disk while live: a thread of the
delivery does. What finds no room meanwhile is lost, and counted.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    PressureActivity,
    ProbesActivity,
    StatusActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.explain.chains import Chain, Incident
from otel_gpu.store.batch import Batch
from otel_gpu.store.blame import cause_rows, chain_row, incident_row
from otel_gpu.store.delivery import Direct
from otel_gpu.store.event_tables import EVENT_TABLES, EventTable
from otel_gpu.store.limits import Limits
from otel_gpu.store.losses import BUSY, CHAINS, TOO_LARGE
from otel_gpu.store.names import Names
from otel_gpu.store.readings import Readings
from otel_gpu.store.text import clean, to_json


class StoreWriter:
    """
    Writes a store.

    Args:
        delivery: Takes the batches.
        limits: What a batch and a chunk may hold.
        first: The first free number of ``seq``, ``chunk`` and each table of names.
        live: Whether a batch is written when it is old, and not only when it is full.
        seen: Called with the next number after each activity.
    """

    def __init__(
        self,
        delivery: Direct,
        limits: Limits,
        first: Mapping[str, int],
        *,
        live: bool,
        seen: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._delivery = delivery
        self._seen = seen
        self._limits = limits
        self._batch_rows, self._batch_bytes = limits.batch_rows, limits.batch_bytes
        self._live = live
        self._seq = first["seq"]
        self._lost: Counter[str] = Counter()
        self._names = Names(first, self._lost)
        self._names.begin_chunk(first["chunk"])
        self._batch = Batch(first["chunk"])
        self._due_s = time.monotonic() + limits.batch_interval_s
        self._chunk_start_unix_ns: int | None = None
        self._chunk_rows = self._chunk_bytes = 0
        self._readings = Readings(self._names)
        self._is_closed = False
        self._ways: dict[type, Callable[[Any], None]] = {
            AggregatesActivity: self._observe_aggregates,
            CaptureActivity: self._observe_capture,
            CountersActivity: self._observe_counters,
            ExitActivity: self._observe_exit,
            PressureActivity: self._observe_pressure,
            ProbesActivity: self._observe_probes,
            StatusActivity: self._observe_status,
            TimesActivity: self._observe_times,
            WhoActivity: self._observe_who,
            **{kind.activity: self._event_observer(kind) for kind in EVENT_TABLES},
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def observe(self, activity: Activity) -> None:
        """Take in one activity, in the order of the stream."""
        way = self._ways.get(type(activity))
        if way is None:
            return
        way(activity)
        self._seen(self._seq)
        batch = self._batch
        if (
            batch.count >= self._batch_rows
            or batch.bytes + self._names.pending_bytes >= self._batch_bytes
            or (self._live and time.monotonic() >= self._due_s)
        ):
            self._hand_over()

    def observe_chain(self, chain: Chain) -> None:
        """Take in a causal chain that is kept, after the activities that it was made from."""
        effect = chain.effect
        end_unix_ns = effect.start_unix_ns + effect.duration_ns
        seq = self._next_seq()
        process = self._names.process(effect.process)
        self._batch.add("chains", chain_row(seq, process, chain, self._names), end_unix_ns)
        for table, row in cause_rows(seq, chain.causes, self._names):
            self._batch.add_part(table, row)

    def withhold_chain(self, chain: Chain, reason: str) -> None:  # noqa: ARG002 -- the protocol's
        """Count a causal chain that is not kept."""
        self._lost[CHAINS + reason] += 1

    def observe_incident(self, incident: Incident) -> None:
        """Take in an incident, after its chains."""
        seq = self._next_seq()
        self._batch.add("incidents", incident_row(seq, incident), incident.end_unix_ns)
        for table, row in cause_rows(seq, incident.causes, self._names):
            self._batch.add_part(table, row)
        for name in dict.fromkeys(clean(chain.id) for chain in incident.chains):
            self._batch.add_part("incident_chains", (seq, name))

    def renew(self) -> "StoreWriter":
        """Begin a chunk, after errors: it names everything again, and counts go on from where they were."""
        batch = self._batch
        chunk = self._end_chunk()
        self._seal()
        self._delivery.put(batch)
        self._batch = Batch(chunk)
        return self

    def close(self, timeout_s: float = 10.0) -> bool:
        """
        Write what is left, and end; a second call does nothing.

        Args:
            timeout_s: How long to wait for the disk.

        Returns:
            False when rows were lost at the end.
        """
        if self._is_closed:
            return True
        self._is_closed = True
        self._end_chunk()
        self._seal()
        self._delivery.put(self._batch)
        return self._delivery.close(timeout_s)

    def lost(self) -> Mapping[str, int]:
        """Return the rows that did not reach the store, by reason; only those that occurred."""
        return dict(self._lost + Counter(self._delivery.lost()))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq - 1

    def _hand_over(self) -> None:
        batch = self._batch
        if not self._delivery.is_ready():
            if (
                batch.count >= self._limits.waiting_rows
                or batch.bytes >= self._limits.waiting_bytes
            ):
                # What rows refer to is kept: later rows do so too.
                self._lost[BUSY] += batch.count
                self._batch = Batch(batch.chunk)
            return
        extent = batch.extent()
        if self._chunk_start_unix_ns is None:
            self._chunk_start_unix_ns = extent.start_unix_ns
        self._chunk_rows += batch.count
        self._chunk_bytes += batch.bytes + self._names.pending_bytes
        self._seal()
        self._delivery.put(batch)
        span_ns = abs(extent.end_unix_ns - self._chunk_start_unix_ns)
        chunk = batch.chunk
        if (
            span_ns >= self._limits.chunk_span_ns
            or self._chunk_rows >= self._limits.chunk_rows
            or self._chunk_bytes >= self._limits.chunk_bytes
        ):
            chunk = self._end_chunk()
        self._batch = Batch(chunk)
        self._due_s = time.monotonic() + self._limits.batch_interval_s

    def _seal(self) -> None:
        self._batch.pending = self._names.take()
        self._batch.lost = dict(self._lost)

    def _end_chunk(self) -> int:
        """Keep what everything stands at, and begin the next chunk; its number."""
        chunk = self._batch.chunk
        self._readings.end_chunk(chunk)
        chunk += 1
        self._chunk_start_unix_ns = None
        self._chunk_rows = self._chunk_bytes = 0
        self._names.begin_chunk(chunk)
        self._readings.begin_chunk()
        return chunk

    def _event_observer(self, kind: EventTable) -> Callable[[Any], None]:
        table, end_place = kind.name, 1 + len(kind.references)
        make_row = kind.row_maker(self._names)

        def observe(activity: Any) -> None:  # noqa: ANN401 -- of this kind
            seq = self._seq
            self._seq = seq + 1
            row = make_row(seq, activity)
            self._batch.add(table, row, row[end_place])

        return observe

    def _observe_exit(self, activity: ExitActivity) -> None:
        end_unix_ns, exit_code = activity.end_unix_ns, activity.exit_code
        process = self._names.end_process(activity.process, end_unix_ns, exit_code)
        row = (self._next_seq(), process, end_unix_ns, exit_code, int(activity.is_replaced))
        self._batch.add("exits", row, end_unix_ns)

    def _observe_capture(self, activity: CaptureActivity) -> None:
        # Counts begin anew, so what was counted before is of another story.
        if self._batch.count:
            self._hand_over()
        if self._chunk_rows:
            chunk = self._end_chunk()
            if not self._batch.count:
                self._batch = Batch(chunk)
        self._readings = Readings(self._names)
        seq = self._next_seq()
        self._batch.reach(seq, activity.unix_ns)
        self._names.begin_capture(seq, activity)

    def _observe_probes(self, activity: ProbesActivity) -> None:
        seq = self._next_seq()
        self._batch.reach(seq, activity.unix_ns)
        self._names.add_probes(seq, activity.unix_ns, self._json(activity.info))

    def _observe_pressure(self, activity: PressureActivity) -> None:
        self._add_info("pressure", activity.unix_ns, activity.info)

    def _observe_status(self, activity: StatusActivity) -> None:
        self._add_info("statuses", activity.unix_ns, activity.info)

    def _observe_counters(self, activity: CountersActivity) -> None:
        self._readings.add_counters(self._batch, self._next_seq(), activity)
        # Counters come about once a second, by the agent's own clock.
        self._names.processes.advance(activity.unix_ns)

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        self._readings.add_aggregates(self._batch, self._next_seq(), activity)

    def _observe_times(self, activity: TimesActivity) -> None:
        self._readings.add_times(self._batch, self._next_seq(), activity)

    def _observe_who(self, activity: WhoActivity) -> None:
        pid, tid, *texts = activity.who
        row = (self._next_seq(), activity.unix_ns, pid, tid, *map(clean, texts))
        self._batch.add("culprits", row, activity.unix_ns)

    def _add_info(self, table: str, unix_ns: int, info: Mapping[str, Any]) -> None:
        text = self._json(info)
        self._batch.add(table, (self._next_seq(), unix_ns, text), unix_ns)
        self._batch.add_text(len(text))

    def _json(self, info: Mapping[str, Any]) -> str:
        text = to_json(info)
        if text is None:
            self._lost[TOO_LARGE] += 1
            return "{}"
        return text
