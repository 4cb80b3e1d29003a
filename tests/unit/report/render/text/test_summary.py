"""The summary: exact counts, estimated percentiles, and when the screen is redrawn."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from otel_gpu import wire
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CaptureActivity,
    CountersActivity,
    ExitActivity,
    Series,
    StatusActivity,
)
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.enrich.ids import NO_SEED
from otel_gpu.enrich.percentiles import bucket_middles_ns, percentile_ns
from otel_gpu.report.render.text.summary import Summary, is_live
from otel_gpu.report.top import running_totals as module
from otel_gpu.report.top.running_totals import RunningTotals
from otel_gpu.report.wording.formats import format_duration
from otel_gpu.wire.probe_table import API_BY_NUMBER
from otel_gpu.wire.readings import Aggregate, SeriesKey
from tests.activities import counters, probes

EXPONENTIAL = {"kind": "exponential", "scale": 2, "offset": -120}
EXPLICIT = {"kind": "explicit", "bounds_ns": [1_000, 4_000, 16_000]}
START_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
LAUNCH, MALLOC = 1, 10
FAILED = 35


def buckets_with(counts):
    buckets = [0] * wire.MAX_BUCKETS
    for index, count in counts.items():
        buckets[index] = count
    return tuple(buckets)


def image(pid, service="train.py"):
    return Program(pid, pid * 1_000, "python", START_NS, {"service.name": service})


def series(process, api, counts, *, total_ns, status=0, metric=wire.METRIC_CALL_DURATION):
    key = SeriesKey(process.program_ktime_ns, process.pid, status, 0, metric, api, 255, 0)
    aggregate = Aggregate(total_ns, 2_000, 9_000, 0, buckets_with(counts))
    return Series(process, key, API_BY_NUMBER.get(api), None, aggregate)


def capture(durations=EXPLICIT):
    return CaptureActivity(START_NS, {"layout": {"durations": durations}}, NO_SEED)


def after(seconds, *given_series):
    return AggregatesActivity(START_NS + seconds * SECOND_NS, given_series)


def console(*, terminal=False, height=40):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=120, height=height, color_system=None
    )


def text_of(shown):
    return shown.file.getvalue()


def final_text(*activities, **kwargs):
    shown = console()
    summary = Summary(shown, live=False, **kwargs)
    for activity in activities:
        summary.observe(activity)
    summary.print_final()
    return text_of(shown)


def test_the_final_table_adds_up_a_whole_capture():
    """Calls of all results count as calls, failed ones as errors too; rates span the capture."""
    process = image(7)

    text = final_text(
        capture(),
        after(
            2,
            series(process, LAUNCH, {1: 900, 2: 90}, total_ns=3_000_000),
            series(process, LAUNCH, {2: 10}, total_ns=90_000, status=FAILED),
            series(process, MALLOC, {2: 23}, total_ns=100_000),
        ),
        CountersActivity(START_NS, {"counter_spans_chosen": 1_234, "counter_probe_entries": 9}),
    )

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "process call calls calls/s p50 p99 max errors",
        "train.py (7) cudaLaunchKernel 1,000 500 2 µs 8 µs 9 µs 10",
        "train.py (7) cudaMalloc 23 12 8 µs 8 µs 9 µs 0",
        "",
        "spans: 1,234 chosen, 0 rate-limited, 0 dropped",
        "lost: nothing",
    ]


def test_a_series_is_cumulative_and_counted_once():
    """Snapshots hold what changed, as totals: the latest replaces the one before."""
    process, other = image(7), image(8)
    summary = RunningTotals()

    summary.observe(capture())
    summary.observe(
        after(
            1,
            series(process, LAUNCH, {1: 5}, total_ns=5),
            series(other, LAUNCH, {1: 3}, total_ns=3),
        )
    )
    summary.observe(after(2, series(process, LAUNCH, {1: 11}, total_ns=11)))

    assert [(row.process.pid, row.calls) for row in summary.rows(10)] == [(7, 11), (8, 3)]


def test_a_process_whose_name_becomes_known_later_is_counted_once():
    """It is a new object under the same key, and what it was called before is not shown."""
    unnamed, named = image(7, service="unknown_service"), image(7)
    summary = RunningTotals()

    summary.observe(capture())
    summary.observe(after(1, series(unnamed, LAUNCH, {1: 5}, total_ns=5)))
    summary.observe(after(2, series(named, LAUNCH, {1: 11}, total_ns=11)))

    assert [(row.process.service_name, row.calls) for row in summary.rows(10)] == [("train.py", 11)]


def test_the_rate_of_a_process_goes_on_when_its_name_becomes_known():
    """What it did before under another name was not done just now."""
    shown = console(terminal=True)
    with Summary(shown, live=True) as summary:
        summary.observe(capture())
        unnamed = image(7, service="unknown_service")
        summary.observe(after(1, series(unnamed, LAUNCH, {1: 1_000}, total_ns=5)))
        summary.observe(after(3, series(image(7), LAUNCH, {1: 1_500}, total_ns=6)))
        last_screen = text_of(shown).rpartition("process")[2]

    assert " 250 " in last_screen


def test_other_metrics_are_not_calls():
    """Launch gaps and switches share the buckets, and are no calls."""
    process = image(7)
    summary = RunningTotals()

    summary.observe(capture())
    summary.observe(after(1, series(process, 2, {1: 5}, total_ns=5, metric=wire.METRIC_OFF_CPU)))

    assert summary.rows(10) == []


def test_an_empty_capture_says_so():
    """An operator who probed nothing learns that, and not an empty table."""
    assert final_text(capture()).startswith("No CUDA call was seen.\n")


@pytest.mark.parametrize(
    ("libraries", "reason"),
    [
        ([], "No program that was watched loaded a CUDA library"),
        (["/x/libcudart.so.13"], "Loaded: libcudart.so.13, but not the driver, libcuda.so.1"),
        (
            ["/x/libcudart.so.13", "/y/libcuda.so.535.261.03"],
            "Loaded and probed: libcuda.so.535.261.03, libcudart.so.13. No program called",
        ),
    ],
)
def test_an_empty_capture_says_why(libraries, reason):
    """The first thing that goes wrong in a first run: no driver, or the wrong process."""
    found = [probes(1, library, symbols=3, exported=3) for library in libraries]

    assert reason in final_text(capture(), *found, counters(2))


def test_losses_are_listed_by_reason():
    """What the kernel lost, what could not be decoded and what could not be sent, each counted."""
    text = final_text(
        capture(),
        CountersActivity(
            START_NS,
            {
                "counter_lost_ring_full": 3,
                "counter_lost_no_entry": 0,
                "counter_spans_rate_limited": 17,
            },
        ),
        StatusActivity(START_NS, {"rejected": {"short": 2}}),
        dropped=lambda: {"queue_full": 4, "endpoint_down": 1},
    )

    assert "spans: 0 chosen, 17 rate-limited, 5 dropped\n" in text
    assert "lost: rejected_short 2, ring_full 3\n" in text


def test_the_screen_shows_the_rate_since_the_last_snapshot():
    """A live rate follows the program, not the average since the start."""
    shown = console(terminal=True)
    process = image(7)
    with Summary(shown, live=True) as summary:
        summary.observe(capture())
        summary.observe(after(1, series(process, LAUNCH, {1: 1_000}, total_ns=5)))
        summary.observe(after(3, series(process, LAUNCH, {1: 1_500}, total_ns=6)))
        last_screen = text_of(shown).rpartition("process")[2]

    assert " 1,500 " in last_screen
    assert " 250 " in last_screen


def test_a_reading_in_several_parts_is_shown_once():
    """Between its parts there is no time that calls could be made in."""
    summary = RunningTotals()
    summary.observe(capture())
    parts = [
        after(second, series(image(pid), LAUNCH, {1: second}, total_ns=second))
        for second in (1, 2)
        for pid in (7, 8)
    ]

    assert [summary.observe(part) for part in parts] == [True, False, True, False]


def test_the_screen_holds_the_rows_with_most_time():
    """A small terminal shows what matters most, and no more than fits."""
    shown = console(terminal=True, height=10)
    with Summary(shown, live=True) as summary:
        summary.observe(capture())
        summary.observe(
            after(1, *(series(image(pid), LAUNCH, {1: 1}, total_ns=pid) for pid in range(1, 30)))
        )
        screen = text_of(shown)

    assert "(29)" in screen
    assert "(28)" in screen
    assert "(27)" not in screen


def test_ended_processes_are_forgotten_in_the_end(monkeypatch):
    """A service that watches short-lived processes for months keeps its memory, and says so."""
    monkeypatch.setattr(module, "MAX_ENDED", 10)
    summary = RunningTotals()
    summary.observe(capture())
    for pid in range(1, 51):
        summary.observe(after(pid, series(image(pid), LAUNCH, {1: 1}, total_ns=pid)))
        process = summary.rows(1)[0].process
        summary.observe(ExitActivity(process, START_NS, 0))

    assert len(summary.rows(100)) <= 11
    assert summary.forgotten + len(summary.rows(100)) == 50


def test_a_process_that_was_named_late_is_forgotten_as_well(monkeypatch):
    """Its end is told with the name, its first calls came without it."""
    monkeypatch.setattr(module, "MAX_ENDED", 10)
    summary = RunningTotals()
    summary.observe(capture())
    for pid in range(1, 51):
        unnamed = image(pid, service="unknown_service")
        summary.observe(after(pid, series(unnamed, LAUNCH, {1: 1}, total_ns=pid)))
        summary.observe(ExitActivity(image(pid), START_NS, 0))

    assert len(summary.rows(100)) <= 11
    assert summary.forgotten + len(summary.rows(100)) == 50


def test_processes_that_made_no_call_are_not_remembered(monkeypatch):
    """A build host ends thousands of them an hour."""
    monkeypatch.setattr(module, "MAX_ENDED", 10)
    summary = RunningTotals()
    summary.observe(capture())
    for pid in range(1, 51):
        summary.observe(ExitActivity(image(pid), START_NS, 0))
        summary.observe(after(pid))

    assert summary._state.accounts.size == 0
    assert summary.forgotten == 0


def test_names_cannot_command_the_terminal():
    """A service may call itself anything; escape sequences reach nobody's terminal."""
    process = image(7, service="x\x1b[2Jy\n")

    text = final_text(capture(), after(1, series(process, LAUNCH, {1: 1}, total_ns=1)))

    assert "x\\x1b[2Jy\\n (7)" in text


@pytest.mark.parametrize(
    ("mode", "terminal", "shares", "live"),
    [
        ("auto", True, False, True),
        ("auto", True, True, False),
        ("auto", False, False, False),
        ("always", True, True, True),
        ("always", False, False, False),
        ("never", True, False, False),
    ],
)
def test_the_screen_is_redrawn_only_where_that_harms_nobody(mode, terminal, shares, live):
    """Never in a pipe, and over a command's own output only when asked for."""
    assert is_live(mode, console(terminal=terminal), shares_terminal=shares) is live


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1 µs"),
        (12_345, "12.3 µs"),
        (999_999, "1000 µs"),
        (1_234_567, "1.23 ms"),
        (123_456_789, "123 ms"),
        (61e9, "61 s"),
        (3_600e9, "3600 s"),
        (math.nan, ""),
    ],
)
def test_durations_have_three_digits_and_a_unit(duration_ns, text):
    """Durations of all sizes are read at a glance."""
    assert format_duration(duration_ns) == text


def test_percentiles_of_explicit_buckets():
    """The middle of the bucket that holds the rank, held between the extremes seen."""
    middles = bucket_middles_ns(EXPLICIT)
    buckets = buckets_with({0: 50, 1: 49, 3: 1})

    assert percentile_ns(0.50, buckets, middles, 100, 70_000) == 500
    assert percentile_ns(0.51, buckets, middles, 100, 70_000) == 2_000
    assert percentile_ns(0.99, buckets, middles, 100, 70_000) == 2_000
    assert percentile_ns(1.00, buckets, middles, 100, 70_000) == 70_000
    assert percentile_ns(0.50, buckets, middles, 800, 70_000) == 800


@given(
    durations_ns=st.lists(st.integers(min_value=2, max_value=10**12), min_size=1, max_size=50),
    share=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_percentiles_of_exponential_buckets_are_close(durations_ns, share):
    """The estimate is within 9.1 % of the true percentile, whatever was measured."""
    buckets = [0] * wire.MAX_BUCKETS
    for duration_ns in durations_ns:
        buckets[math.ceil(math.log2(duration_ns / 1e9) * 4) - 1 + 120] += 1
    true = sorted(durations_ns)[max(1, math.ceil(share * len(durations_ns))) - 1]

    estimate = percentile_ns(
        share, buckets, bucket_middles_ns(EXPONENTIAL), min(durations_ns), max(durations_ns)
    )

    assert estimate == pytest.approx(true, rel=0.091)
