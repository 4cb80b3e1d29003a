"""
The spans that were exported lately, so that links lead somewhere.

A link needs the trace id, which a cause does not have, and a link to a span that was never exported
would be a dead end in every backend.
"""

from collections import deque
from typing import NamedTuple

from otel_gpu.explain.chains import Culprit, Evidence
from otel_gpu.export.spans.finished import FinishedSpan
from otel_gpu.limits.caches import CACHES
from otel_gpu.limits.recent import Fifo, Recent

# Of one generation; there are two. A chain is made seconds after its effect. Two generations cover
# those seconds at the highest rate of spans, in about 12 MB.
_MAX_SPANS = 32_768
_SPAN_BYTES = 190
# With fewer spans a generation ends after this time, but never with less than this.
_ENOUGH_SPANS = 2_048
_LONG_NS = 5_000_000_000
_MAX_CHAINS = 16_384
_MAX_THREADS = 1024
_MAX_OF_THREAD = 16
_MAX_OF_CULPRIT = 4


class SpanReference(NamedTuple):
    """The ids that a link needs."""

    trace_id: bytes
    span_id: bytes


# Start and end in Unix nanoseconds, trace id, span id: a plain tuple, since every span makes one.
_Interval = tuple[int, int, bytes, bytes]


class ExportedSpans:
    """Remembers the latest spans by their ids, and the latest few of every thread."""

    def __init__(self) -> None:
        self._traces: dict[bytes, bytes] = {}
        self._older_traces: dict[bytes, bytes] = {}
        self._since_unix_ns = 0
        self._chains: Fifo[bytes, None] = Fifo(
            _MAX_CHAINS, cache="exported_chains", entry_bytes=130
        )
        self._threads: Recent[int, deque[_Interval]] = Recent(_MAX_THREADS, cache="exported_spans")
        CACHES.register(
            "exported_spans",
            self,
            "_traces",
            entry_bytes=_SPAN_BYTES,
        )
        CACHES.register(
            "exported_spans",
            self,
            "_older_traces",
            release=ExportedSpans._release_older,
            entry_bytes=_SPAN_BYTES,
        )

    def add(self, span: FinishedSpan) -> None:
        """Remember a span that is not of a causal chain."""
        _, trace_id, span_id, _, _, start_unix_ns, end_unix_ns = span[:7]
        traces = self._traces
        traces[span_id] = trace_id
        if len(traces) >= _ENOUGH_SPANS and (
            end_unix_ns - self._since_unix_ns > _LONG_NS or len(traces) >= _MAX_SPANS
        ):
            self._older_traces, self._traces = traces, {}
            self._drop_threads(self._since_unix_ns)
            self._since_unix_ns = end_unix_ns
        if tid := span.tid:
            spans = self._threads.get(tid)
            if spans is None:
                spans = self._threads[tid] = deque(maxlen=_MAX_OF_THREAD)
            else:
                self._threads.move_to_end(tid)
            spans.append((start_unix_ns, end_unix_ns, trace_id, span_id))

    def add_chain(self, span_id: bytes) -> None:
        """Remember the id of a causal chain's span."""
        self._chains[span_id] = None

    def _release_older(self, _: int) -> None:
        self._older_traces = {}

    def _drop_threads(self, before_unix_ns: int) -> None:
        # In the order of their latest spans.
        while self._threads:
            tid, spans = next(iter(self._threads.items()))
            if spans[-1][1] >= before_unix_ns:
                return
            del self._threads[tid]

    def __contains__(self, span_id: bytes) -> bool:
        return span_id in self._traces or span_id in self._older_traces

    def has_chain(self, span_id: bytes) -> bool:
        """Return whether a causal chain with this id was exported."""
        return span_id in self._chains

    def find(self, evidence: Evidence, culprit: Culprit | None) -> list[SpanReference]:
        """Return the spans of evidence, and the culprit's latest spans that overlap it."""
        found = []
        span_id = evidence.span_id
        if trace_id := self._traces.get(span_id) or self._older_traces.get(span_id):
            found.append(SpanReference(trace_id, span_id))
        theirs = self._threads.get(culprit.tid, ()) if culprit is not None else ()
        for start_unix_ns, end_unix_ns, *ids in reversed(theirs):
            reference = SpanReference(*ids)
            overlaps = start_unix_ns < evidence.end_unix_ns and evidence.start_unix_ns < end_unix_ns
            if overlaps and reference not in found:
                found.append(reference)
        return found[: 1 + _MAX_OF_CULPRIT]
