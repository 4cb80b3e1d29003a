"""
The summary of a capture: one screen while it runs, one table when it ends.

Figures come from the kernel's counters, so calls and errors are exact. Not a verb:
``run`` shows it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_gpu import wire
from otel_gpu.decode.events import Aggregate, SeriesKey
from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    ProcessImage,
    StatusActivity,
)
from otel_gpu.enrich.percentiles import bucket_middles_ns, percentile_ns
from otel_gpu.findings.losses import losses_of
from otel_gpu.findings.words import format_duration

MODES = ("auto", "always", "never")
# Ended processes are kept for the final table, up to this many series.
MAX_SERIES = 8_192
_FINAL_ROWS = 40
_LINES_BESIDE_ROWS = 8

_ImageKey = tuple[int, int]
"""A process image: pid and when it began. What it is called may become known later."""


class Row(NamedTuple):
    """All calls of one API by one process image."""

    process: ProcessImage
    api: str
    calls: int
    errors: int
    total_ns: int
    p50_ns: float
    p99_ns: float
    max_ns: int


class Summary:
    """
    Watches activities, and shows what they add up to.

    As a context manager it shows the live screen, if there is one, until it is left.

    Args:
        console: On standard error.
        live: Redraw the screen with every snapshot. For a terminal that nobody else
            writes to; see ``is_live``.
        dropped: Spans that could not be exported, by reason.
    """

    def __init__(
        self,
        console: Console,
        *,
        live: bool,
        dropped: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._console = console
        self._dropped = dropped
        self._live = (
            Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
            if live
            else None
        )
        self._middles_ns: tuple[float, ...] = ()
        self._start_unix_ns = 0
        self._now_unix_ns = 0
        # A series' key has its process image in it.
        self._series: dict[SeriesKey, Aggregate] = {}
        self._processes: dict[_ImageKey, ProcessImage] = {}
        self._names: dict[int, str] = {}
        self._ended: dict[_ImageKey, None] = {}
        self._previous: dict[tuple[_ImageKey, str], tuple[int, int]] = {}
        self._counters: Mapping[str, int] = {}
        self._rejected: Mapping[str, int] = {}
        self.forgotten = 0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def observe(self, activity: Activity) -> None:
        """Take one activity; the live screen follows the snapshots."""
        match activity:
            case AggregatesActivity():
                self._observe_aggregates(activity)
            case CountersActivity():
                self._counters = activity.values
            case StatusActivity():
                self._rejected = activity.info.get("rejected", {})
            case CaptureActivity():
                self._start_unix_ns = self._now_unix_ns = activity.unix_ns
                self._middles_ns = bucket_middles_ns(activity.info["layout"]["durations"])
            case ExitActivity():
                self._ended[activity.process.pid, activity.process.image_ktime_ns] = None
            case _:
                pass

    def rows(self, most: int) -> list[Row]:
        """Rows by total time inside calls, the largest first."""
        parts: dict[tuple[_ImageKey, int], list[tuple[SeriesKey, Aggregate]]] = {}
        for key, aggregate in self._series.items():
            parts.setdefault((_image_of(key), key.api), []).append((key, aggregate))
        ranked = sorted(
            parts.items(),
            key=lambda item: (
                -sum(aggregate.sum for _, aggregate in item[1]),
                item[0],
            ),
        )
        return [
            self._row(self._processes[image], api, merged) for (image, api), merged in ranked[:most]
        ]

    def losses(self) -> dict[str, int]:
        """What was lost, by reason; only reasons that occurred."""
        return losses_of(self._counters, self._rejected)

    def print_final(self) -> None:
        """Print what the whole capture added up to."""
        elapsed_s = (self._now_unix_ns - self._start_unix_ns) / 1e9
        rows = self.rows(_FINAL_ROWS)
        rates = [row.calls / elapsed_s if elapsed_s > 0 else math.nan for row in rows]
        self._console.print(self._render(rows, rates))

    def _observe_aggregates(self, activity: AggregatesActivity) -> None:
        for series in activity.series:
            if series.key.metric == wire.METRIC_CALL_DURATION and series.api is not None:
                self._series[series.key] = series.aggregate
                # The latest knows its names best.
                self._processes[_image_of(series.key)] = series.process
                self._names[series.key.api] = series.api.name
        if max(len(self._series), len(self._ended)) > MAX_SERIES:
            self._forget_ended()
        self._now_unix_ns = activity.unix_ns
        if self._live:
            rows = self.rows(max(1, self._console.height - _LINES_BESIDE_ROWS))
            self._live.update(self._render(rows, list(self._rates(rows))), refresh=True)

    def _forget_ended(self) -> None:
        # Most processes that end have made no call.
        ended = [image for image in self._ended if image in self._processes]
        forgotten = set()
        if len(self._series) > MAX_SERIES:
            # Half at once: this walks over all series.
            forgotten = set(ended[: len(ended) // 2 + 1])
        self._ended = {image: None for image in ended if image not in forgotten}
        self._series = {
            key: aggregate
            for key, aggregate in self._series.items()
            if _image_of(key) not in forgotten
        }
        for image in forgotten:
            del self._processes[image]
        self.forgotten += len(forgotten)

    def _row(
        self, process: ProcessImage, api: int, parts: list[tuple[SeriesKey, Aggregate]]
    ) -> Row:
        buckets = [sum(counts) for counts in zip(*(part.buckets for _, part in parts), strict=True)]
        counted = [part for _, part in parts if any(part.buckets)]
        if not counted:
            return Row(process, self._names[api], 0, 0, 0, math.nan, math.nan, 0)
        least, most = min(part.min for part in counted), max(part.max for part in counted)
        return Row(
            process,
            self._names[api],
            sum(buckets),
            sum(sum(part.buckets) for key, part in parts if key.status != 0),
            sum(part.sum for _, part in parts),
            percentile_ns(0.50, buckets, self._middles_ns, least, most),
            percentile_ns(0.99, buckets, self._middles_ns, least, most),
            most,
        )

    def _rates(self, rows: list[Row]) -> Iterator[float]:
        """Calls per second of each row, since the snapshot before this one."""
        now: dict[tuple[_ImageKey, str], tuple[int, int]] = {}
        for row in rows:
            identity = ((row.process.pid, row.process.image_ktime_ns), row.api)
            since_ns, calls = self._previous.get(identity, (self._start_unix_ns, 0))
            now[identity] = (self._now_unix_ns, row.calls)
            elapsed_ns = self._now_unix_ns - since_ns
            yield (row.calls - calls) * 1e9 / elapsed_ns if elapsed_ns > 0 else math.nan
        self._previous = now

    def _render(self, rows: list[Row], rates: list[float]) -> Group:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading, justify in (
            ("process", "left"),
            ("call", "left"),
            ("calls", "right"),
            ("calls/s", "right"),
            ("p50", "right"),
            ("p99", "right"),
            ("max", "right"),
            ("errors", "right"),
        ):
            table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type] # a list of pairs loses the literals
        for row, rate in zip(rows, rates, strict=True):
            table.add_row(
                Text(_process_name(row.process)),
                Text(row.api),
                f"{row.calls:,}",
                "" if math.isnan(rate) else f"{rate:,.0f}",
                format_duration(row.p50_ns),
                format_duration(row.p99_ns),
                format_duration(row.max_ns),
                Text(f"{row.errors:,}", style="red" if row.errors else ""),
            )
        return Group(table if rows else Text("No CUDA call was seen."), Text(""), *self._footer())

    def _footer(self) -> Iterator[Text]:
        chosen = self._counters.get("counter_spans_chosen", 0)
        withheld = self._counters.get("counter_spans_withheld_rate", 0)
        dropped = sum(self._dropped().values())
        yield Text(f"spans: {chosen:,} chosen, {withheld:,} withheld, {dropped:,} dropped")
        if losses := self.losses():
            yield Text(f"lost: {_list(losses)}", style="red")
        else:
            yield Text("lost: nothing")
        if self.forgotten:
            yield Text(f"not shown: {self.forgotten:,} processes that ended earlier")


def is_live(mode: str, console: Console, *, shares_terminal: bool) -> bool:
    """
    Whether the screen can be redrawn while a capture runs.

    Args:
        mode: ``auto``, ``always`` or ``never``.
        console: Where it would be drawn; only a terminal can be.
        shares_terminal: A command writes to this terminal too. Redrawing would tear its
            output apart, so that only ``always`` does it.
    """
    if mode == "never" or not console.is_terminal:
        return False
    return mode == "always" or not shares_terminal


def _image_of(key: SeriesKey) -> _ImageKey:
    return key.pid, key.image_ktime_ns


def _process_name(process: ProcessImage) -> str:
    name = process.attributes.get("service.name") or process.comm
    printable = "".join(c if c.isprintable() else "?" for c in str(name))
    return f"{printable} ({process.pid})"


def _list(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts.items()))
