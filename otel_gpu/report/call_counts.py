"""Rows of the document from counters: calls by API, memory, time off the CPU."""

import math
from collections.abc import Iterable, Iterator, Sequence

from otel_gpu import wire
from otel_gpu.enrich.activities import Series
from otel_gpu.enrich.percentiles import percentile_ns
from otel_gpu.report.document import (
    ApiTotals,
    Balance,
    Context,
    EventTime,
    OffCpu,
    context_named,
    state_named,
)
from otel_gpu.state.capture_state import Figures
from otel_gpu.state.differences import without_waits
from otel_gpu.state.memory.call_balance import balance_calls, sum_taken
from otel_gpu.wire.readings import Aggregate


def api_rows(figures: Iterable[Figures], middles_ns: Sequence[float]) -> list[ApiTotals]:
    """
    Return rows by total time, the longest first.

    Args:
        figures: Of processes.
        middles_ns: Middles of the duration buckets; empty: unknown, and no rows are returned.
    """
    rows = [row for one in figures for row in _api_rows(one, middles_ns)] if middles_ns else []
    return sorted(rows, key=lambda row: (-row.sum_ns, row.process.pid, row.api))


def event_time_rows(figures: Iterable[Figures], middles_ns: Sequence[float]) -> Iterator[EventTime]:
    """Yield rows by process and device; none if ``middles_ns`` is empty, as for calls."""
    for one in figures if middles_ns else ():
        for series in sorted(one.elapsed_times, key=lambda series: series.key.device):
            if series.aggregate.counted:
                device = series.key.device if series.key.device >= 0 else None
                durations = _durations([series.aggregate], middles_ns)
                yield EventTime(one.process, device, series.aggregate.counted, *durations)


def balances(figures: Iterable[Figures]) -> Iterator[Balance]:
    """Yield allocations against frees, for each process that made any."""
    for one in figures:
        if taken := balance_calls(one.series):
            yield Balance(one.process, *sum_taken(taken.values()))


def off_cpu_rows(figures: Iterable[Figures]) -> list[OffCpu]:
    """Return rows of launching threads first, then by time."""
    rows = [
        OffCpu(
            process=one.process,
            context=context_named(time.context),
            state=state_named(time.state),
            reason=time.reason,
            time_ns=time.time_ns,
            times=time.count,
        )
        for one in figures
        for time in without_waits(one.times)
        if time.state != wire.STATE_ON_CPU and time.time_ns > 0
    ]
    return sorted(
        rows,
        key=lambda row: (row.context == Context.OTHER, -row.time_ns, row.process.pid, row.reason),
    )


def _api_rows(figures: Figures, middles_ns: Sequence[float]) -> Iterator[ApiTotals]:
    parts: dict[int, list[Series]] = {}
    for series in figures.calls:
        if series.aggregate.counted:
            parts.setdefault(series.key.api, []).append(series)
    for merged in parts.values():
        yield _api_row(figures, merged, middles_ns)


def _api_row(figures: Figures, parts: Sequence[Series], middles_ns: Sequence[float]) -> ApiTotals:
    api, aggregates = parts[0].api, [series.aggregate for series in parts]
    assert api is not None  # noqa: S101 -- only call durations are merged here
    return ApiTotals(
        figures.process,
        api.name,
        api.layer_name,
        sum(part.counted for part in aggregates),
        sum(series.aggregate.counted for series in parts if series.key.status != 0),
        *_durations(aggregates, middles_ns),
        sum(part.size_bytes for part in aggregates),
    )


def _durations(
    parts: Sequence[Aggregate], middles_ns: Sequence[float]
) -> tuple[float, float, float, int]:
    # The median, the 99th percentile, the longest, and the sum.
    buckets = [sum(counts) for counts in zip(*(part.buckets for part in parts), strict=True)]
    min_ns = min(part.min for part in parts)
    max_ns = max(part.max for part in parts)
    p50_ns, p99_ns = (
        percentile_ns(
            share=share, buckets=buckets, middles_ns=middles_ns, min_ns=min_ns, max_ns=max_ns
        )
        if any(buckets)
        else math.nan
        for share in (0.50, 0.99)
    )
    return p50_ns, p99_ns, max_ns, sum(part.sum for part in parts)
