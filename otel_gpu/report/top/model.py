"""
The model of ``top``: activities in, the current view out.

Time is that of the stream, so a played recording shows the same as the live capture did. Figures
are computed as in the report, for another window.
"""

# The interval
# ------------
# Counters are read about once a second, completely: histograms, thread times, then the kernel
# side's own counters. "Now" is the difference of two such readings, about the interval apart. The
# first reading is made when the probes are in place, and starts the first interval. Partial
# readings of ending processes come in between; they count, but end no interval.

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from otel_gpu.enrich.activities import (
    Activity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    OpenCallActivity,
)
from otel_gpu.explain.accounting.verdicts import find_verdicts
from otel_gpu.explain.chains import Verdict
from otel_gpu.explain.code_locations import CodeLocations
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.kinds import Bound
from otel_gpu.explain.settings import Settings
from otel_gpu.report.call_counts import api_rows
from otel_gpu.report.causes import rank_of
from otel_gpu.report.document import ApiTotals, ProcessKey, key_of, with_names
from otel_gpu.report.extent import CaptureExtent
from otel_gpu.report.top.open_calls import OpenCalls
from otel_gpu.report.top.screen import AgentUse, ApiLine, IncidentLine, ProcessLine, TopView
from otel_gpu.state.agent_health import AgentReadings
from otel_gpu.state.capture_state import CaptureState, Mark
from otel_gpu.state.thread_names import ThreadNames

MAX_ENDED = 8_192
"""Limit of series of ended processes."""

_NS_PER_S = 1e9
_NEARLY = 0.9


class _Figures(NamedTuple):
    apis: dict[tuple[ProcessKey, str], ApiTotals]
    verdicts: dict[ProcessKey, Verdict]
    length_ns: int = 0


class TopModel:
    """
    Builds views from activities; memory is bounded.

    Args:
        settings: The settings of explain.
        interval_ns: The approximate length of "now".
        rejected: Records that could not be decoded, by reason; read for each view.
    """

    def __init__(
        self, settings: Settings, interval_ns: int, rejected: Mapping[str, int] | None = None
    ) -> None:
        self._settings = settings
        self._interval_ns = interval_ns
        self._rejected = {} if rejected is None else rejected
        self._explainer = Explainer(settings)
        self._extent = CaptureExtent()
        self._state = CaptureState(max_ended=MAX_ENDED)
        self._agent = AgentReadings()
        self._open_calls = OpenCalls()
        self._places = CodeLocations(settings.max_processes)
        self._names = ThreadNames()
        self._host = ""
        self._base: Mark = {}
        # The ranks' waits for others at the start of the interval.
        self._lags: dict[ProcessKey, int] = {}
        # 0: nothing was read yet.
        self._base_unix_ns = 0
        self._now: _Figures | None = None

    def observe(self, activity: Activity) -> None:
        """Add one activity."""
        self._extent.observe(activity)
        for _ in self._explainer.push(activity):
            pass  # They are in the incidents.
        self._state.observe(activity)
        self._agent.observe(activity)
        self._places.observe(activity)
        self._names.observe(activity)
        match activity:
            case CountersActivity():
                self._end_interval(activity.unix_ns)
            case CaptureActivity():
                self._observe_capture(activity)
            case OpenCallActivity() | CallActivity():
                self._open_calls.observe(activity)
            case ExitActivity():
                self._open_calls.forget(activity.process.pid)
            case _:
                pass

    def close(self) -> None:
        """Handle the end of the stream: pending chains become incidents."""
        for _ in self._explainer.close():
            pass

    def view(self) -> TopView:
        """Return the current view."""
        self._names.learn_programs(account.process for _, account in self._state.accounts.items())
        now_unix_ns = self._extent.end_unix_ns
        lags = self._explainer.communicators.lags(now_unix_ns)
        total = self._figures({}, lags)
        # The first interval can be incomplete.
        now = self._now or self._figures_now(now_unix_ns, lags)
        return TopView(
            host=self._host,
            now_unix_ns=now_unix_ns,
            age_ns=now_unix_ns - self._extent.start_unix_ns,
            interval_ns=now.length_ns,
            agent=AgentUse(self._agent.cpu_share, self._agent.figure("rss_bytes")),
            processes=tuple(self._process_lines(total, now)),
            apis=tuple(_api_line(row, now.apis.get(key), now) for key, row in total.apis.items()),
            incidents=tuple(self._incident_lines(now_unix_ns)),
            open_calls=tuple(self._open_calls.rows(now_unix_ns)),
            losses=self._agent.losses(self._rejected),
            left_out=self._state.left_out + self._state.forgotten,
        )

    def _observe_capture(self, activity: CaptureActivity) -> None:
        self._host = activity.info.get("host", {}).get("name", "")

    def _end_interval(self, unix_ns: int) -> None:
        # Readings are not exact to the millisecond: two of them are about two seconds apart.
        length_ns = unix_ns - self._base_unix_ns
        if length_ns < self._interval_ns * _NEARLY:
            return
        lags = self._explainer.communicators.lags(unix_ns)
        if self._base_unix_ns:
            self._now = self._figures_now(unix_ns, lags)
            self._places.age()
        self._lags = lags
        self._base, self._base_unix_ns = self._state.mark(), unix_ns

    def _figures_now(self, unix_ns: int, lags: Mapping[ProcessKey, int]) -> _Figures:
        since = {program: lag_ns - self._lags.get(program, 0) for program, lag_ns in lags.items()}
        start_unix_ns = self._base_unix_ns or self._extent.start_unix_ns
        return self._figures(self._base, since)._replace(length_ns=unix_ns - start_unix_ns)

    def _figures(self, since: Mark, lags: Mapping[ProcessKey, int]) -> _Figures:
        figures = self._state.figures(since).values()
        rows = api_rows(figures, self._state.middles_ns)
        return _Figures(
            {(key_of(row.process), row.api): row for row in rows},
            {
                key_of(one.process): one
                for one in find_verdicts(figures, self._settings, self._places, lags=lags)
            },
        )

    def _process_lines(self, total: _Figures, now: _Figures) -> Iterable[ProcessLine]:
        # Running processes first, then ended ones; each by time in calls and pid.
        ended = self._state.accounts.ended
        programs = {key: verdict.process for key, verdict in total.verdicts.items()}
        in_calls_ns = dict.fromkeys(programs, 0)
        for (key, _), row in total.apis.items():
            programs[key] = row.process
            in_calls_ns[key] = in_calls_ns.get(key, 0) + row.sum_ns
        for key in sorted(programs, key=lambda key: (key in ended, -in_calls_ns[key], key)):
            whole, part = total.verdicts.get(key), now.verdicts.get(key)
            shown = part or whole
            tree = shown.time_tree if shown else None
            yield ProcessLine(
                process=programs[key],
                has_ended=key in ended,
                verdict=whole.verdict if whole else Bound.UNKNOWN,
                verdict_now=part.verdict if part else Bound.UNKNOWN,
                budget_ns=shown.budget_ns if shown else {},
                time_tree=with_names(tree, self._names.find) if tree else None,
            )

    def _incident_lines(self, now_unix_ns: int) -> list[IncidentLine]:
        # Growing incidents first, by severity; then ended ones, latest first.
        limit_ns = now_unix_ns - self._settings.incident_gap_ns - self._settings.settle_ns
        lines = [
            IncidentLine(incident, incident.end_unix_ns >= limit_ns)
            for incident in self._explainer.incidents()
        ]
        return sorted(
            lines,
            key=lambda line: (
                not line.is_forming,
                rank_of(line.incident.severity) if line.is_forming else 0,
                -line.incident.lost_ns if line.is_forming else -line.incident.end_unix_ns,
                line.incident.id,
            ),
        )


def _api_line(total: ApiTotals, row: ApiTotals | None, now: _Figures) -> ApiLine:
    length_s = now.length_ns / _NS_PER_S
    if row is None or length_s <= 0:
        return ApiLine(total=total, now=row, calls_per_s=0.0, bytes_per_s=0.0)
    return ApiLine(
        total=total,
        now=row,
        calls_per_s=row.calls / length_s,
        bytes_per_s=row.size_bytes / length_s,
    )
