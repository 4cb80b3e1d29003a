"""The board: what is shown of a capture, to the last figure."""

from collections import Counter
from importlib import resources
from pathlib import Path
from statistics import median

import pytest

from otel_gpu import pipeline, wire
from otel_gpu.cli.sources import RecordingSource
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CallActivity,
    CountersActivity,
    StatusActivity,
    TimesActivity,
)
from otel_gpu.enrich.enricher import Enricher
from otel_gpu.explain.settings import Settings
from otel_gpu.report.top import model as module
from otel_gpu.report.top.model import TopModel
from otel_gpu.report.top.screen import AgentUse
from otel_gpu.report.wording.formats import describe_kind
from tests.activities import (
    SECOND,
    T0,
    call,
    calls,
    capture,
    counters,
    ended,
    image,
    open_call,
    snapshot,
    status,
    thread_time,
    times,
)
from tests.unit.explain.nccl.test_stragglers import story as late_ranks

MS = 1_000_000
RECORDINGS = resources.files("otel_gpu.demo").joinpath("recordings")


def board_of(*activities, interval_s=2.0, **kwargs):
    board = TopModel(Settings(), round(interval_s * SECOND), **kwargs)
    for activity in activities:
        board.observe(activity)
    return board


def reading(at_s, *series, thread_times=()):
    """One whole reading of the counters, in the order of the live capture."""
    return (
        snapshot(at_s, *series),
        times(at_s, *thread_times),
        counters(at_s),
    )


def launches(process, count):
    return calls(process, "cudaLaunchKernel", [2_000] * count)


class Readings:
    """The counters of a recording in plain Python: all of them, and the last interval of it."""

    def __init__(self, told, interval_ns):
        self.counted, self.times = {}, {}
        self.start_unix_ns = self.before_unix_ns = told[0].unix_ns
        self.end_unix_ns = self.start_unix_ns
        self.before, self.now = ({}, {}), ({}, {})
        whole = (self.start_unix_ns, ({}, {}))
        for one in told:
            match one:
                case AggregatesActivity():
                    self.counted |= {
                        series.key: (series.api.name, series.aggregate.counted)
                        for series in one.series
                        if series.api is not None
                    }
                case TimesActivity():
                    self.times |= self._times(one)
                case CountersActivity() if one.unix_ns - whole[0] >= 0.9 * interval_ns:
                    reading = (one.unix_ns, (dict(self.counted), dict(self.times)))
                    (self.before_unix_ns, self.before), whole = whole, reading
                    self.end_unix_ns, self.now = reading

    @staticmethod
    def _times(reading):
        found = Counter()
        for one in reading.times:
            found[one.process.pid, one.state, one.context, one.reason] += one.time_ns
        return found

    def calls(self, api):
        """How many calls were counted between the last two whole readings."""
        before, now = (
            sum(count for name, count in counted.values() if name == api)
            for counted, _ in (self.before, self.now)
        )
        return now - before

    def time_ns(self, pid, *states):
        """Time that the feeders of a process spent in some states between these two."""
        return sum(
            time_ns - self.before[1].get(key, 0)
            for key, time_ns in self.now[1].items()
            if key[0] == pid and key[1] in states and key[2] != wire.CONTEXT_OTHER
        )


def test_a_shipped_recording_is_shown_to_the_last_figure():
    """Counts and times are the kernel's; the last interval is the last two readings' difference."""
    board = TopModel(Settings(), 200 * MS)
    told = []
    recording = RecordingSource(Path(str(RECORDINGS.joinpath("two-causes.otelgpu"))))
    pipeline.process(recording.batches(), Enricher(), [told.append, board.observe], Counter())
    board.close()

    view = board.view()

    readings = Readings(told, 200 * MS)
    last_unix_ns = max(getattr(one, name, 0) for one in told for name in ("unix_ns", "end_unix_ns"))
    assert (view.host, view.now_unix_ns) == ("gpu-host", last_unix_ns)
    assert view.age_ns == last_unix_ns - told[0].unix_ns
    assert view.interval_ns == readings.end_unix_ns - readings.before_unix_ns > 0
    *_, earlier, latest = (one for one in told if isinstance(one, StatusActivity))
    used_ns = latest.info["cpu_ns"] - earlier.info["cpu_ns"]
    assert view.agent == AgentUse(
        used_ns / (latest.unix_ns - earlier.unix_ns), latest.info["rss_bytes"]
    )
    assert (view.losses, view.open_calls, view.left_out) == ({}, (), 0)
    took_ns = {
        api: [
            one.end_unix_ns - one.start_unix_ns
            for one in told
            if isinstance(one, CallActivity) and one.api.name == api
        ]
        for api in ("cudaLaunchKernel", "cudaStreamSynchronize")
    }
    for line, (api, durations_ns) in zip(view.apis, took_ns.items(), strict=True):
        # Of 60 steps, the slowest is the 99th percentile; percentiles are of buckets.
        assert (line.total.api, line.total.calls, line.total.errors) == (api, 60, 0)
        assert line.total.sum_ns == sum(durations_ns)
        assert line.total.max_ns == max(durations_ns)
        assert line.total.p99_ns == pytest.approx(max(durations_ns), rel=0.09)
        assert line.total.p50_ns == pytest.approx(median(durations_ns), rel=0.09)
        assert line.now.calls == readings.calls(api) > 0
        assert line.calls_per_s == pytest.approx(line.now.calls / view.interval_ns * SECOND)
    (process,) = view.processes
    pid = process.process.pid
    assert {one.process.pid for one in told if isinstance(one, CallActivity)} == {pid}
    # No cause has the majority: 180 ms of waiting for the device, 160 ms of a hog, 80 ms of a lock.
    assert (process.has_ended, process.verdict) == (True, "mixed")
    every = (wire.STATE_ON_CPU, wire.STATE_RUN_QUEUE, wire.STATE_BLOCKED)
    assert sum(process.budget_ns.values()) == readings.time_ns(pid, *every)
    assert process.budget_ns["run_queue"] == readings.time_ns(pid, wire.STATE_RUN_QUEUE) > 0
    slow_ns = sorted(took_ns["cudaLaunchKernel"])[-4:]
    (incident,) = view.incidents
    assert incident.is_forming
    assert (incident.incident.severity, incident.incident.effects) == ("high", 4)
    # Of each, 40 ms to the hog and 20 ms to the lock.
    assert min(slow_ns) >= 60 * MS
    usual_ns = median(took_ns["cudaLaunchKernel"])
    assert incident.incident.lost_ns == pytest.approx(sum(slow_ns) - 4 * usual_ns, rel=0.01)


def test_now_is_the_difference_of_two_whole_readings():
    """600 calls in the last two seconds are 300 a second, however many there were before."""
    trainer = image()
    board = board_of(
        capture(),
        *reading(2.0, launches(trainer, 1_000)),
        *reading(3.0, launches(trainer, 1_250)),
        *reading(4.0, launches(trainer, 1_600)),
    )

    view = board.view()

    (line,) = view.apis
    assert (view.interval_ns, line.total.calls) == (2 * SECOND, 1_600)
    assert (line.now.calls, line.calls_per_s) == (600, 300.0)


def test_what_was_not_called_lately_has_no_now():
    """Its line stays, and says nothing of the interval."""
    trainer = image()
    allocated = calls(trainer, "cudaMalloc", [5_000], size_bytes=4_096)
    board = board_of(
        capture(), *reading(2.0, allocated), *reading(4.0, allocated, launches(trainer, 6))
    )

    lines = {line.total.api: line for line in board.view().apis}

    assert (lines["cudaMalloc"].now, lines["cudaMalloc"].calls_per_s) == (None, 0.0)
    assert lines["cudaMalloc"].total.size_bytes == 4_096
    assert lines["cudaLaunchKernel"].calls_per_s == 3.0


def test_bytes_per_second_are_of_the_interval():
    """What was copied before it does not count."""
    trainer = image()
    board = board_of(
        capture(),
        *reading(2.0, calls(trainer, "cudaMemcpy", [5_000], size_bytes=1_000)),
        *reading(4.0, calls(trainer, "cudaMemcpy", [5_000] * 3, size_bytes=9_000)),
    )

    assert board.view().apis[0].bytes_per_s == 4_000.0


def test_before_the_first_interval_is_over_all_of_it_is_now():
    """A capture that was short shows rates as well."""
    board = board_of(capture(), *reading(0.5), *reading(1.0, launches(image(), 50)))

    view = board.view()

    assert view.interval_ns == SECOND // 2
    assert view.apis[0].calls_per_s == 100.0


def test_what_it_takes_to_begin_is_in_no_interval():
    """Probes take a while to be there: of 1,007 calls since then, 7 were before the first reading."""
    trainer = image()
    board = board_of(
        capture(), *reading(1.5, launches(trainer, 7)), *reading(3.5, launches(trainer, 1_007))
    )

    view = board.view()

    assert (view.age_ns, view.interval_ns) == (3.5 * SECOND, 2 * SECOND)
    assert (view.apis[0].total.calls, view.apis[0].calls_per_s) == (1_007, 500.0)


def test_a_partial_reading_ends_no_interval():
    """The last series of one process say nothing of the others."""
    trainer, other = image(), image(pid=43)
    board = board_of(
        capture(),
        *reading(0.0),
        *reading(2.0, launches(trainer, 10), launches(other, 10)),
        snapshot(4.0, launches(other, 20)),
    )

    assert board.view().interval_ns == 2 * SECOND
    assert {line.total.process.pid: line.now.calls for line in board.view().apis} == {
        42: 10,
        43: 10,
    }


def test_verdicts_are_of_the_start_and_of_now():
    """A process that waited for its GPU and now waits for data is both."""
    trainer = image()
    waits = thread_time(trainer, wire.STATE_ON_CPU, wire.CONTEXT_SYNCHRONIZE, 9 * SECOND)
    reads = thread_time(trainer, wire.STATE_BLOCKED, wire.CONTEXT_GAP, 2 * SECOND, reason="io")
    board = board_of(
        capture(),
        *reading(10.0, launches(trainer, 1), thread_times=[waits]),
        *reading(12.0, launches(trainer, 2), thread_times=[waits, reads]),
    )

    (line,) = board.view().processes

    assert (line.verdict, line.verdict_now) == ("gpu-bound", "data-bound")
    assert {state: ns for state, ns in line.budget_ns.items() if ns} == {"io": 2 * SECOND}


def test_ended_processes_come_last():
    """What runs is what an operator can still do something about."""
    busy, idle = image(), image(pid=43)
    board = board_of(
        capture(), *reading(2.0, launches(busy, 100), launches(idle, 1)), ended(busy, 2.5)
    )

    assert [(line.process.pid, line.has_ended) for line in board.view().processes] == [
        (43, False),
        (42, True),
    ]


def test_a_call_that_began_before_the_capture_is_shown_as_long_as_it_is_found():
    """Its age is a lower bound; it is looked at every second, however old it is."""
    trainer = image(program_ktime_ns=15 * SECOND)
    hanging = open_call(trainer, "cudaStreamSynchronize", 10 * SECOND, 5_000 * SECOND)
    board = board_of(capture(), hanging)

    (shown,) = board.view().open_calls
    assert (shown.began_before_capture, shown.age_ns) == (True, 4_990 * SECOND)
    (line,) = board.view().incidents
    effect = line.incident.chains[0].effect
    assert describe_kind(effect) == "hung since before the capture in cudaStreamSynchronize"
    board.observe(counters(5_003.0))
    assert board.view().open_calls == ()


def test_an_open_call_is_shown_until_it_returns():
    """A call that returned hangs no more, also when nobody saw it return."""
    trainer = image()
    hanging = open_call(trainer, "cudaStreamSynchronize", 10 * SECOND, 20 * SECOND)
    board = board_of(capture(), hanging)

    (shown,) = board.view().open_calls
    assert (shown.api, shown.tid, shown.age_ns) == ("cudaStreamSynchronize", 42, 10 * SECOND)

    board.observe(counters(26.0))
    assert board.view().open_calls == ()

    board = board_of(
        capture(), hanging, call(trainer, "cudaStreamSynchronize", 10 * SECOND, 11 * SECOND)
    )
    assert board.view().open_calls == ()

    board = board_of(capture(), hanging, ended(trainer, 21.0))
    assert board.view().open_calls == ()


def test_an_incident_forms_and_is_over():
    """The severity of what forms now ranks above what is over."""
    hanging = open_call(image(), "cudaStreamSynchronize", 10 * SECOND, 20 * SECOND)
    board = board_of(capture(), hanging)
    assert [line.is_forming for line in board.view().incidents] == [True]

    board.observe(counters(40.0))

    assert [line.is_forming for line in board.view().incidents] == [False]


def test_losses_are_told_by_reason():
    """The kernel's losses, and what could not be decoded here."""
    board = board_of(
        capture(), counters(1.0, lost_ring_full=3, lost_no_entry=0), rejected={"short": 2}
    )

    assert board.view().losses == {"rejected_short": 2, "ring_full": 3}


def test_the_agents_cpu_time_is_a_share_of_one_cpu():
    """It takes two figures to know it."""
    board = board_of(capture(), status(1.0, cpu_ns=500 * MS, rss_bytes=64_000_000))
    assert board.view().agent == AgentUse(None, 64_000_000)

    board.observe(status(3.0, cpu_ns=600 * MS, rss_bytes=65_000_000))

    assert board.view().agent == AgentUse(0.05, 65_000_000)


@pytest.mark.parametrize("value", ["much", None, [1], -5, 1.5])
def test_figures_that_are_none_are_not_known(value):
    """Recordings of strangers may hold anything."""
    board = board_of(capture(), StatusActivity(T0, {"cpu_ns": value, "rss_bytes": value}))

    assert board.view().agent == AgentUse(None, None)


def test_processes_that_ended_are_forgotten_before_there_is_no_room(monkeypatch):
    """A host that starts a process a second is watched for weeks; those that run stay."""
    monkeypatch.setattr(module, "MAX_ENDED", 2)
    stays, *leave = [image(pid=pid) for pid in range(50, 56)]
    everything = [launches(process, 3) for process in (stays, *leave)]
    board = board_of(capture(), *reading(0.5), *reading(1.0, *everything))
    for process in leave:
        board.observe(ended(process, 1.5))
    for activity in reading(3.0, launches(stays, 9)):
        board.observe(activity)

    view = board.view()

    assert [line.process.pid for line in view.processes] == [50, 54, 55]
    assert (view.apis[0].total.calls, view.left_out) == (9, 3)
    assert view.apis[0].now.calls == 9


def test_a_stream_without_a_beginning_is_shown_empty():
    """A damaged recording is no reason to fail."""
    view = board_of(snapshot(1.0, launches(image(), 5))).view()

    assert (view.apis, view.processes, view.host) == ((), (), "")


def test_who_waits_for_other_ranks_is_bound_by_communication():
    """In the last interval, as in all."""
    board = board_of(*late_ranks())

    found = {one.process.pid: (one.verdict, one.verdict_now) for one in board.view().processes}

    assert found[1000] == ("communication-bound", "communication-bound")
    assert found[1003][0] != "communication-bound"
