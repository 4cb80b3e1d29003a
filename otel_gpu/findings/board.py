"""
The board: activities in, what an operator wants to see right now out.

It is pure: time is what the stream says, so a recording that is played shows what the
live capture showed. Figures are those of the report; only the window is another.
"""

# The interval
# ------------
#
# Counters are read about once a second, and whole: histograms, the time account, then the
# kernel side's own counters. "Now" is therefore the difference of two such readings, about
# the interval apart. Between them come partial readings, of processes that
# end; they count, and end no interval.

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from otel_gpu.enrich.activities import (
    Activity,
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    OpenCallActivity,
    StatusActivity,
    TimesActivity,
)
from otel_gpu.explain.chains import Verdict
from otel_gpu.explain.explainer import Explainer
from otel_gpu.explain.settings import Settings
from otel_gpu.explain.verdicts import UNKNOWN, Verdicts
from otel_gpu.findings.causes import rank_of
from otel_gpu.findings.counts import Counts
from otel_gpu.findings.document import Api, ImageKey, Window, key_of
from otel_gpu.findings.extent import Extent
from otel_gpu.findings.losses import losses_of
from otel_gpu.findings.open_calls import OpenCalls
from otel_gpu.findings.times import Times
from otel_gpu.findings.view import Agent, ApiLine, IncidentLine, ProcessLine, View

MAX_SERIES = 8_192
"""Above this, processes that ended are forgotten, the first half of them at once."""

_NS_PER_S = 1e9
_NEARLY = 0.9


class _Reading(NamedTuple):
    counts: AggregatesActivity
    times: TimesActivity


class _Figures(NamedTuple):
    apis: dict[tuple[ImageKey, str], Api]
    verdicts: dict[ImageKey, Verdict]
    length_ns: int = 0


_NO_FIGURES = _Figures({}, {})


class Board:
    """
    Watches activities; memory is bounded.

    Args:
        settings: The limits of blame.
        interval_ns: How long "now" is, about.
        rejected: Records that could not be decoded, by reason; read for each view.
    """

    def __init__(
        self, settings: Settings, interval_ns: int, rejected: Mapping[str, int] | None = None
    ) -> None:
        self._settings = settings
        self._interval_ns = interval_ns
        self._rejected = {} if rejected is None else rejected
        self._explainer = Explainer(settings)
        self._extent = Extent()
        self._counts = Counts()
        self._times = Times(Window())
        self._open_calls = OpenCalls()
        self._ended: dict[ImageKey, None] = {}
        self._counters: Mapping[str, int] = {}
        self._status: Mapping[str, Any] = {}
        self._durations: Mapping[str, Any] | None = None
        self._host = ""
        self._agent = Agent()
        self._agent_cpu_ns: tuple[int, int] | None = None
        self._base = _Reading(AggregatesActivity(0, ()), TimesActivity(0, ()))
        self._now: _Figures | None = None
        self._left_out = 0

    def observe(self, activity: Activity) -> None:
        """Take one activity."""
        self._extent.observe(activity)
        for _ in self._explainer.push(activity):
            pass  # incidents tell of them
        match activity:
            case AggregatesActivity():
                self._counts.observe(activity)
            case TimesActivity():
                self._times.observe(activity)
            case CountersActivity():
                self._counters = activity.values
                self._end_interval(activity.unix_ns)
            case CaptureActivity():
                self._observe_capture(activity)
            case StatusActivity():
                self._observe_status(activity)
            case OpenCallActivity() | CallActivity():
                self._open_calls.observe(activity)
            case ExitActivity():
                self._ended[key_of(activity.process)] = None
                self._open_calls.forget(activity.process.pid)
            case _:
                pass

    def close(self) -> None:
        """Take in that nothing follows: what waited for more becomes an incident."""
        for _ in self._explainer.close():
            pass

    def view(self) -> View:
        """What there is to see at this moment of the stream."""
        now_unix_ns = self._extent.end_unix_ns
        total = self._figures(None, self._read(now_unix_ns))
        now = self._now
        if now is None:
            # The first interval is not over: what there is of it.
            now = total._replace(length_ns=now_unix_ns - self._extent.start_unix_ns)
        return View(
            self._host,
            now_unix_ns,
            now_unix_ns - self._extent.start_unix_ns,
            now.length_ns,
            self._agent,
            tuple(self._process_lines(total, now)),
            tuple(_api_line(row, now.apis.get(key), now) for key, row in total.apis.items()),
            tuple(self._incident_lines(now_unix_ns)),
            tuple(self._open_calls.rows(now_unix_ns)),
            losses_of(self._counters, self._rejected, self._status),
            self._left_out + self._counts.left_out + self._times.left_out,
        )

    def _observe_capture(self, activity: CaptureActivity) -> None:
        self._durations = activity.info["layout"]["durations"]
        host = activity.info.get("host")
        name = host.get("name") if isinstance(host, Mapping) else None
        self._host = name if isinstance(name, str) else ""
        unix_ns = activity.unix_ns
        self._base = _Reading(AggregatesActivity(unix_ns, ()), TimesActivity(unix_ns, ()))

    def _observe_status(self, activity: StatusActivity) -> None:
        self._status = activity.info
        cpu_ns, rss_bytes = (_figure(activity.info, name) for name in ("cpu_ns", "rss_bytes"))
        share = self._agent.cpu_share
        if cpu_ns is not None:
            if self._agent_cpu_ns is not None:
                then_unix_ns, then_cpu_ns = self._agent_cpu_ns
                elapsed_ns = activity.unix_ns - then_unix_ns
                share = max(0, cpu_ns - then_cpu_ns) / elapsed_ns if elapsed_ns > 0 else share
            self._agent_cpu_ns = activity.unix_ns, cpu_ns
        self._agent = Agent(share, rss_bytes)

    def _read(self, unix_ns: int) -> _Reading:
        return _Reading(self._counts.in_window(unix_ns), self._times.in_window(unix_ns))

    def _end_interval(self, unix_ns: int) -> None:
        # Readings are not made to the millisecond: two of them are two seconds apart, or not quite.
        if unix_ns - self._base.counts.unix_ns < self._interval_ns * _NEARLY:
            return
        reading = self._read(unix_ns)
        self._now = self._figures(self._base, reading)
        seen = {key_of(process) for process in self._counts.processes()}
        self._ended = {key: None for key in self._ended if key in seen}
        if len(reading.counts.series) > MAX_SERIES:
            reading = self._forget_ended(reading)
        self._base = reading

    def _forget_ended(self, reading: _Reading) -> _Reading:
        forgotten = set(list(self._ended)[: len(self._ended) // 2 + 1])
        self._ended = {key: None for key in self._ended if key not in forgotten}
        self._left_out += self._counts.left_out + self._times.left_out + len(forgotten)
        series = tuple(one for one in reading.counts.series if key_of(one.process) not in forgotten)
        times = tuple(one for one in reading.times.times if key_of(one.process) not in forgotten)
        kept = _Reading(reading.counts._replace(series=series), reading.times._replace(times=times))
        self._counts, self._times = Counts(), Times(Window())
        self._counts.observe(kept.counts)
        self._times.observe(kept.times)
        return kept

    def _figures(self, base: _Reading | None, reading: _Reading) -> _Figures:
        if self._durations is None:
            return _NO_FIGURES
        window = Window() if base is None else Window(base.counts.unix_ns)
        counts, times = Counts(window), Times(window)
        for one in (reading,) if base is None else (base, reading):
            counts.observe(one.counts)
            times.observe(one.times)
        unix_ns = reading.counts.unix_ns
        verdicts = Verdicts(self._settings)
        verdicts.observe_times(times.in_window(unix_ns))
        verdicts.observe_aggregates(counts.in_window(unix_ns))
        return _Figures(
            {(key_of(row.process), row.api): row for row in counts.api_rows(self._durations)},
            {key_of(verdict.process): verdict for verdict in verdicts.all()},
            0 if base is None else unix_ns - base.counts.unix_ns,
        )

    def _process_lines(self, total: _Figures, now: _Figures) -> Iterable[ProcessLine]:
        """Lines of those that run, then of those that ended; each by time in calls and pid."""
        images = {key: verdict.process for key, verdict in total.verdicts.items()}
        in_calls_ns = dict.fromkeys(images, 0)
        for (key, _), row in total.apis.items():
            images[key] = row.process
            in_calls_ns[key] = in_calls_ns.get(key, 0) + row.sum_ns
        for key in sorted(images, key=lambda key: (key in self._ended, -in_calls_ns[key], key)):
            whole, part = total.verdicts.get(key), now.verdicts.get(key)
            shown = part or whole
            yield ProcessLine(
                images[key],
                key in self._ended,
                whole.verdict if whole else UNKNOWN,
                part.verdict if part else UNKNOWN,
                shown.budget_ns if shown else {},
            )

    def _incident_lines(self, now_unix_ns: int) -> list[IncidentLine]:
        """Those that form, the most severe first; then those that are over, latest first."""
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


def _api_line(total: Api, row: Api | None, now: _Figures) -> ApiLine:
    length_s = now.length_ns / _NS_PER_S
    if row is None or length_s <= 0:
        return ApiLine(total, row, 0.0, 0.0)
    return ApiLine(total, row, row.calls / length_s, row.size_bytes / length_s)


def _figure(info: Mapping[str, Any], name: str) -> int | None:
    value = info.get(name)
    return value if isinstance(value, int) and value >= 0 else None
