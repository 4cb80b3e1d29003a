"""Self-telemetry: otel_gpu's losses, limits, cost and failures."""

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import Activity, ProbesActivity
from otel_gpu.export import semconv
from otel_gpu.export.metrics.points import Attributes, Measurement
from otel_gpu.export.otlp.sender import DropReason
from otel_gpu.export.semconv import Instrument
from otel_gpu.limits.recent import Recent
from otel_gpu.stacks.stack_counts import StackCount
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.wire.bodies import CountField, CountsField

_MAX_LIBRARIES = 256

_RATE_LIMITED: Mapping[int, Instrument] = {
    wire.COUNTER_CPU_SAMPLES_RATE_LIMITED: semconv.METRIC_OTEL_GPU_CPU_SAMPLES_RATE_LIMITED,
    wire.COUNTER_BLOCK_STACKS_RATE_LIMITED: semconv.METRIC_OTEL_GPU_BLOCK_STACKS_RATE_LIMITED,
    wire.COUNTER_SAMPLES_RATE_LIMITED: semconv.METRIC_OTEL_GPU_STACKS_RATE_LIMITED,
    wire.COUNTER_STEP_THREADS_RATE_LIMITED: semconv.METRIC_OTEL_GPU_STEPS_THREADS_RATE_LIMITED,
    wire.COUNTER_STEPS_RATE_LIMITED: semconv.METRIC_OTEL_GPU_STEPS_RATE_LIMITED,
    wire.COUNTER_RANGES_RATE_LIMITED: semconv.METRIC_OTEL_GPU_SPANS_RATE_LIMITED,
    wire.COUNTER_SPANS_RATE_LIMITED: semconv.METRIC_OTEL_GPU_SPANS_RATE_LIMITED,
}


def _counters() -> Iterator[tuple[int, Instrument, Attributes]]:
    for n, reason in semconv.REASON_VALUES.items():
        instrument = _RATE_LIMITED.get(n, semconv.METRIC_OTEL_GPU_RECORDS_LOST)
        yield n, instrument, ((semconv.REASON, reason),)
    for n, source in semconv.OTEL_GPU_SPAN_SOURCE_VALUES.items():
        yield n, semconv.METRIC_OTEL_GPU_SPANS_CHOSEN, ((semconv.OTEL_GPU_SPAN_SOURCE, source),)
    for n, probe in semconv.OTEL_GPU_PROBE_TYPE_VALUES.items():
        yield n, semconv.METRIC_OTEL_GPU_PROBE_HITS, ((semconv.OTEL_GPU_PROBE_TYPE, probe),)
    yield wire.COUNTER_SAMPLES, semconv.METRIC_OTEL_GPU_STACKS_TAKEN, ()
    yield wire.COUNTER_CPU_SAMPLES, semconv.METRIC_OTEL_GPU_CPU_SAMPLES_TAKEN, ()
    yield wire.COUNTER_BLOCK_STACKS, semconv.METRIC_OTEL_GPU_BLOCK_STACKS_TAKEN, ()
    yield wire.COUNTER_TIMES_FOLDED, semconv.METRIC_OTEL_GPU_TIMES_FOLDED, ()


# Counters of the kernel side, with their instruments and attributes.
_COUNTERS = [(wire.COUNTER_NAMES[n], kind, pairs) for n, kind, pairs in _counters()]
# Reasons for which user space drops stacks.
_DROPPED_STACKS = (
    *(StackCount.UNUSED, StackCount.WITHOUT_SAMPLE, StackCount.REJECTED),
    *(StackCount.DUMP_UNREADABLE, StackCount.DUMP_INCOMPLETE),
    *(StackCount.DUMP_NOT_FOLLOWED, StackCount.DUMP_REFUSED),
)
_DROPPED_SYMBOLS = (
    *(StackCount.CODE_REJECTED, StackCount.CODE_FORGOTTEN),
    *(StackCount.PERF_MAP_MALFORMED, StackCount.MAPPING_LEFT_OUT),
)
# Figures of the agent's status, with their instruments and the attribute of their parts.
_FIGURES: tuple[tuple[CountsField, Instrument, str], ...] = (
    ("devices", semconv.METRIC_OTEL_GPU_RECORDS_LOST, semconv.REASON),
    ("preload", semconv.METRIC_OTEL_GPU_RECORDS_LOST, semconv.REASON),
    ("files", semconv.METRIC_OTEL_GPU_RECORDS_LOST, semconv.REASON),
    ("rejected", semconv.METRIC_OTEL_GPU_RECORDS_REJECTED, semconv.REASON),
    ("dropped", semconv.METRIC_OTEL_GPU_SPANS_DROPPED, semconv.REASON),
    ("errors", semconv.METRIC_OTEL_GPU_ERRORS, semconv.OTEL_GPU_PLACE),
    ("skipped", semconv.METRIC_OTEL_GPU_ITEMS_SKIPPED, semconv.OTEL_GPU_PLACE),
    ("cache_entries", semconv.METRIC_OTEL_GPU_CACHE_ENTRIES, semconv.OTEL_GPU_CACHE),
    ("cache_bytes", semconv.METRIC_OTEL_GPU_CACHE_SIZE, semconv.OTEL_GPU_CACHE),
    ("cache_released", semconv.METRIC_OTEL_GPU_CACHE_RELEASED, semconv.OTEL_GPU_CACHE),
    ("off", semconv.METRIC_OTEL_GPU_SWITCHED_OFF, semconv.OTEL_GPU_PLACE),
)
_SUMS: tuple[tuple[CountField, Instrument], ...] = (
    ("cpu_ns", semconv.METRIC_OTEL_GPU_OVERHEAD_TIME),
    ("rss_bytes", semconv.METRIC_OTEL_GPU_OVERHEAD_MEMORY),
    ("preload_calls", semconv.METRIC_OTEL_GPU_PRELOAD_CALLS),
)


class SeriesDrop(StrEnum):
    """Why series of metrics were dropped."""

    LATE = "late"
    """Of programs that ended long ago."""
    STALE = "stale"
    """The least recently used of too many."""
    COMMUNICATORS = "communicators"
    """Of too many communicators."""
    ENDPOINT_DOWN = DropReason.ENDPOINT_DOWN
    """Of programs that ended before their series were exported."""


class SelfTelemetry(AgentReadings):
    """The agent's own figures; the latest of each."""

    def __init__(self) -> None:
        super().__init__()
        # Chains and incidents, by the value of their instrument's attribute.
        self.explained: Counter[tuple[Instrument, str, str]] = Counter()
        self._libraries: Recent[tuple[int, int, str], tuple[int, int, int]] = Recent(_MAX_LIBRARIES)

    def observe(self, activity: Activity) -> None:
        """Add newer figures."""
        super().observe(activity)
        if isinstance(activity, ProbesActivity):
            info = activity.info
            key = (info.get("device", 0), info.get("inode", 0), info["library"])
            figures = (info.get("symbols", 0), info.get("preload", 0), info.get("exported", 0))
            self._libraries[key] = figures

    def measurements(self, dropped_series: Mapping[SeriesDrop, int]) -> Iterator[Measurement]:
        """Yield every figure, including zeros: a loss of 0 is information."""
        for counter, instrument, attributes in _COUNTERS:
            if counter in self.counters:
                yield Measurement(
                    instrument, attributes, source=counter, value=self.counters[counter]
                )
        for field, instrument, attribute in _FIGURES:
            yield from _each(instrument, attribute, self.status.get(field, {}))
        dropped = semconv.METRIC_OTEL_GPU_SERIES_DROPPED
        yield from _each(dropped, semconv.REASON, dropped_series)
        for (instrument, attribute, value), count in self.explained.items():
            yield from _each(instrument, attribute, {value: count})
        yield from self._stacks(self.status.get("stacks", {}))
        for name, instrument in _SUMS:
            if name in self.status:
                yield Measurement(instrument, attributes=(), source=name, value=self.status[name])
        library = semconv.OTEL_GPU_LIBRARY_PATH
        by_probes, by_programs = self._coverage()
        yield from _each(semconv.METRIC_OTEL_GPU_COVERAGE, library, by_probes)
        yield from _each(semconv.METRIC_OTEL_GPU_PRELOAD_COVERAGE, library, by_programs)

    def _stacks(self, counts: Mapping[str, int]) -> Iterator[Measurement]:
        if StackCount.RESOLVED in counts:
            incomplete = counts.get(StackCount.INCOMPLETE, 0)
            resolved = {True: max(0, counts[StackCount.RESOLVED] - incomplete), False: incomplete}
            instrument = semconv.METRIC_OTEL_GPU_STACKS_RESOLVED
            yield from _each(instrument, semconv.OTEL_GPU_STACK_COMPLETE, resolved)
        if StackCount.DISTINCT in counts:
            instrument = semconv.METRIC_OTEL_GPU_STACKS_DISTINCT
            yield Measurement(
                instrument,
                attributes=(),
                source=StackCount.DISTINCT,
                value=counts[StackCount.DISTINCT],
            )
        for instrument, reasons in (
            (semconv.METRIC_OTEL_GPU_STACKS_DROPPED, _DROPPED_STACKS),
            (semconv.METRIC_OTEL_GPU_SYMBOLS_DROPPED, _DROPPED_SYMBOLS),
        ):
            dropped = {reason: counts[reason] for reason in reasons if reason in counts}
            yield from _each(instrument, semconv.REASON, dropped)

    def _coverage(self) -> tuple[dict[str, float], dict[str, float]]:
        # Containers map one library under one path from several inodes.
        totals: dict[str, tuple[int, int, int]] = {}
        for (_, _, path), (symbols, counted, exported) in self._libraries.items():
            before = totals.get(path, (0, 0, 0))
            totals[path] = (
                before[0] + symbols + counted,
                before[1] + counted,
                before[2] + exported,
            )
        known = {path: figures for path, figures in totals.items() if figures[2]}
        by_probes = {path: both / exported for path, (both, _, exported) in known.items()}
        by_programs = {
            path: counted / exported for path, (_, counted, exported) in known.items() if counted
        }
        return by_probes, by_programs


def _each(
    instrument: Instrument, attribute: str, values: Mapping[Any, int | float]
) -> Iterator[Measurement]:
    for key, value in values.items():
        yield Measurement(instrument, attributes=((attribute, key),), source=key, value=value)
