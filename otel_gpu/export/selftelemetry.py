"""Self-telemetry: what otel_gpu lost, withheld, cost and could not reach."""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from otel_gpu import wire
from otel_gpu.enrich.activities import Activity, ProbesActivity
from otel_gpu.export import semconv
from otel_gpu.export.points import Measurement
from otel_gpu.export.semconv import Instrument
from otel_gpu.ledger.agent import AgentReadings

_MAX_LIBRARIES = 256
_COUNTER_PREFIX = "counter_"

_WITHHELD: Mapping[int, Instrument] = {
    wire.COUNTER_SAMPLES_WITHHELD: semconv.METRIC_OTEL_GPU_STACKS_WITHHELD,
    wire.COUNTER_SPANS_WITHHELD_RATE: semconv.METRIC_OTEL_GPU_SPANS_WITHHELD,
}
# By number of the counter: who observes it, under which value of which attribute.
_COUNTERS: Mapping[int, tuple[Instrument, str, str]] = {
    **{
        number: (semconv.METRIC_OTEL_GPU_RECORDS_LOST, semconv.REASON, reason)
        for number, reason in semconv.REASON_VALUES.items()
        if number not in _WITHHELD
    },
    **{
        number: (instrument, semconv.REASON, semconv.REASON_VALUES[number])
        for number, instrument in _WITHHELD.items()
    },
    **{
        number: (semconv.METRIC_OTEL_GPU_SPANS_CHOSEN, semconv.OTEL_GPU_SPAN_SOURCE, source)
        for number, source in semconv.OTEL_GPU_SPAN_SOURCE_VALUES.items()
    },
    **{
        number: (semconv.METRIC_OTEL_GPU_PROBE_HITS, semconv.OTEL_GPU_PROBE_TYPE, probe)
        for number, probe in semconv.OTEL_GPU_PROBE_TYPE_VALUES.items()
    },
}
_SAMPLES = wire.COUNTER_NAMES[wire.COUNTER_SAMPLES].removeprefix(_COUNTER_PREFIX)
# What became of stacks in user space.
_DROPPED_STACKS = ("unused", "without_sample", "rejected")
_DROPPED_SYMBOLS = ("code_rejected", "code_forgotten", "perf_map_malformed")
_FAULTS = (
    ("errors", semconv.METRIC_OTEL_GPU_ERRORS),
    ("skipped", semconv.METRIC_OTEL_GPU_ITEMS_SKIPPED),
    ("off", semconv.METRIC_OTEL_GPU_SWITCHED_OFF),
)
# What the agent explained, and which attribute distinguishes its points.
_EXPLAINED: Mapping[Instrument, str] = {
    semconv.METRIC_OTEL_GPU_CHAINS: semconv.OTEL_GPU_SEVERITY,
    semconv.METRIC_OTEL_GPU_CHAINS_WITHHELD: semconv.REASON,
    semconv.METRIC_OTEL_GPU_INCIDENTS: semconv.OTEL_GPU_SEVERITY,
}


class SelfTelemetry(AgentReadings):
    """The agent's own figures; the latest of each."""

    def __init__(self) -> None:
        super().__init__()
        self._explained: Counter[tuple[Instrument, str]] = Counter()
        self._libraries: OrderedDict[tuple[int, int, str], tuple[int, int]] = OrderedDict()

    def observe(self, activity: Activity) -> None:
        """Take in newer figures."""
        super().observe(activity)
        if isinstance(activity, ProbesActivity):
            self._observe_library(activity.info)

    def count(self, instrument: Instrument, value: str) -> None:
        """Count a chain or an incident, by the value of the attribute that ``_EXPLAINED`` names."""
        self._explained[instrument, value] += 1

    def _observe_library(self, info: Mapping[str, Any]) -> None:
        key = (info.get("device", 0), info.get("inode", 0), info["library"])
        self._libraries[key] = (info.get("symbols", 0), info.get("exported", 0))
        self._libraries.move_to_end(key)
        if len(self._libraries) > _MAX_LIBRARIES:
            self._libraries.popitem(last=False)

    def measurements(self, dropped_series: Mapping[str, int]) -> Iterator[Measurement]:
        """Yield every figure, zeroes included: a loss of 0 is news."""
        yield from self._counted()
        for field, instrument in (
            ("rejected", semconv.METRIC_OTEL_GPU_RECORDS_REJECTED),
            ("dropped", semconv.METRIC_OTEL_GPU_SPANS_DROPPED),
        ):
            yield from _by_reason(instrument, self.status.get(field, {}))
        yield from _by_reason(semconv.METRIC_OTEL_GPU_SERIES_DROPPED, dropped_series)
        for field, instrument in _FAULTS:
            for place, count in self.status.get(field, {}).items():
                yield Measurement(instrument, ((semconv.OTEL_GPU_PLACE, place),), place, count)
        for (instrument, value), count in self._explained.items():
            yield Measurement(instrument, ((_EXPLAINED[instrument], value),), value, count)
        yield from self._stacks()
        yield from self._costs()
        yield from self._coverage()

    def _counted(self) -> Iterator[Measurement]:
        counters = {
            name.lower().removeprefix(_COUNTER_PREFIX): value
            for name, value in self.counters.items()
        }
        for number, (instrument, attribute, value) in _COUNTERS.items():
            name = wire.COUNTER_NAMES[number].removeprefix(_COUNTER_PREFIX)
            if name in counters:
                yield Measurement(instrument, ((attribute, value),), name, counters[name])
        if _SAMPLES in counters:
            instrument = semconv.METRIC_OTEL_GPU_STACKS_TAKEN
            yield Measurement(instrument, (), _SAMPLES, counters[_SAMPLES])

    def _stacks(self) -> Iterator[Measurement]:
        counts: Mapping[str, int] = self.status.get("stacks", {})
        incomplete = counts.get("incomplete", 0)
        if "resolved" in counts:
            complete = max(0, counts["resolved"] - incomplete)
            for is_complete, count in ((True, complete), (False, incomplete)):
                yield Measurement(
                    semconv.METRIC_OTEL_GPU_STACKS_RESOLVED,
                    ((semconv.OTEL_GPU_STACK_COMPLETE, is_complete),),
                    is_complete,
                    count,
                )
        if "distinct" in counts:
            instrument = semconv.METRIC_OTEL_GPU_STACKS_DISTINCT
            yield Measurement(instrument, (), "distinct", counts["distinct"])
        for instrument, reasons in (
            (semconv.METRIC_OTEL_GPU_STACKS_DROPPED, _DROPPED_STACKS),
            (semconv.METRIC_OTEL_GPU_SYMBOLS_DROPPED, _DROPPED_SYMBOLS),
        ):
            dropped = {reason: counts[reason] for reason in reasons if reason in counts}
            yield from _by_reason(instrument, dropped)

    def _costs(self) -> Iterator[Measurement]:
        for field, instrument in (
            ("cpu_ns", semconv.METRIC_OTEL_GPU_OVERHEAD_TIME),
            ("rss_bytes", semconv.METRIC_OTEL_GPU_OVERHEAD_MEMORY),
        ):
            if field in self.status:
                yield Measurement(instrument, (), field, self.status[field])

    def _coverage(self) -> Iterator[Measurement]:
        # Containers map one library under one path from several inodes.
        totals: dict[str, tuple[int, int]] = {}
        for (_, _, path), (symbols, exported) in self._libraries.items():
            before = totals.get(path, (0, 0))
            totals[path] = (before[0] + symbols, before[1] + exported)
        for path, (symbols, exported) in totals.items():
            if exported:
                yield Measurement(
                    semconv.METRIC_OTEL_GPU_COVERAGE,
                    ((semconv.OTEL_GPU_LIBRARY_PATH, path),),
                    path,
                    symbols / exported,
                )


def _by_reason(instrument: Instrument, counts: Mapping[str, int]) -> Iterator[Measurement]:
    for reason, count in counts.items():
        yield Measurement(instrument, ((semconv.REASON, reason),), reason, count)
