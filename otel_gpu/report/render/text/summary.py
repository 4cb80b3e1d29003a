"""
The summary of a capture, from the kernel's counters: a screen while it runs, a table at its end.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from otel_gpu.report.document import ApiTotals
from otel_gpu.report.render import fields
from otel_gpu.report.render.fields import Cell, Field
from otel_gpu.report.render.text.tables import draw_table
from otel_gpu.report.top.running_totals import OBSERVED, RunningTotals

_FINAL_ROWS = 40
_LINES_BESIDE_ROWS = 8
# Fields of a row and its calls per second.
_FIELDS = (
    *(field.of(itemgetter(0)) for field in (fields.PROCESS, fields.CALL, fields.CALLS)),
    Field("calls/s", lambda row: Cell("" if math.isnan(row[1]) else f"{row[1]:,.0f}")),
    *(field.of(itemgetter(0)) for field in (fields.P50, fields.P99, fields.LONGEST, fields.ERRORS)),
)


class Summary:
    """
    Adds up activities, and shows the sums on standard error.

    As a context it redraws a ``live`` screen with every snapshot; see ``is_live``. ``dropped``
    returns spans that could not be exported, by reason.
    """

    observes = OBSERVED

    def __init__(
        self, console: Console, *, live: bool, dropped: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        self._console = console
        self._dropped = dropped
        screen = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live = screen if live else None
        self._totals = RunningTotals()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def observe(self, activity: Any) -> None:  # noqa: ANN401 -- any activity
        """Add one activity; the live screen follows the snapshots."""
        if self._totals.observe(activity) and self._live:
            rows = self._totals.rows(max(1, self._console.height - _LINES_BESIDE_ROWS))
            self._live.update(self._render(rows, self._totals.rates(rows)), refresh=True)

    def print_final(self) -> None:
        """Print the sums of the whole capture."""
        rows = self._totals.rows(_FINAL_ROWS)
        self._console.print(self._render(rows, self._totals.mean_rates(rows)))

    def _render(self, rows: Sequence[ApiTotals], rates: Iterable[float]) -> Group:
        shown: list[RenderableType] = [Text("No CUDA call was seen.")]
        if rows:
            shown = [draw_table(_FIELDS, zip(rows, rates, strict=True))]
        elif why := self._totals.why_no_calls():
            shown.append(Text(why))
        return Group(*shown, Text(""), *self._footer())

    def _footer(self) -> Iterator[Text]:
        counters = self._totals.counters
        chosen = counters.get("counter_spans_chosen", 0)
        limited = counters.get("counter_spans_rate_limited", 0)
        dropped = sum(self._dropped().values())
        yield Text(f"spans: {chosen:,} chosen, {limited:,} rate-limited, {dropped:,} dropped")
        lost = [f"{reason} {count:,}" for reason, count in sorted(self._totals.losses().items())]
        yield Text(f"lost: {', '.join(lost) or 'nothing'}", style="red" if lost else "")
        yield from map(Text, self._totals.notes())
        if forgotten := self._totals.forgotten:
            yield Text(f"not shown: {forgotten:,} processes that ended earlier")


def is_live(mode: str, console: Console, *, shares_terminal: bool) -> bool:
    """
    Return whether a screen can be redrawn: on a terminal that no command writes to, or ``always``.
    """
    wanted = mode == "always" or (mode == "auto" and not shares_terminal)
    return wanted and console.is_terminal
