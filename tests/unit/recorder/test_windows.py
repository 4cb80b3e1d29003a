"""Windows of a store: only what is needed is read, and the report is the same."""

import sqlite3
from collections import Counter
from contextlib import closing

import pytest

from benchmarks.days import day
from otel_gpu.enrich.activities import (
    AggregatesActivity,
    CallActivity,
    CaptureActivity,
    CountersActivity,
    PressureActivity,
    ProbesActivity,
    TimesActivity,
    WhoActivity,
)
from otel_gpu.enrich.identity.identities import Who
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.report.document import Window
from tests.activities import (
    SECOND,
    T0,
    call,
    calls,
    capture,
    counters,
    ended,
    image,
    probes,
    snapshot,
)
from tests.unit.recorder.stores import read, report_of, write

MS = 1_000_000
LENGTH_S = 240
# Many chunks, so that windows begin in the middle.
SMALL = StoreLimits(batch_rows=97, chunk_span_ns=7 * SECOND)
TRAINER = image(42)


@pytest.fixture(scope="module")
def activities():
    return list(day(9_000, LENGTH_S))


@pytest.fixture(scope="module")
def path(activities, tmp_path_factory):
    return write(tmp_path_factory.mktemp("store") / "store.db", activities, SMALL)


@pytest.mark.parametrize(
    "window",
    [
        Window(),
        Window(T0 + 200 * SECOND),
        Window(T0 + 100 * SECOND, T0 + 130 * SECOND),
        Window(T0 + 100 * SECOND + 123_456_789, T0 + 101 * SECOND),
        Window(None, T0 + 60 * SECOND),
    ],
)
def test_a_window_is_told_as_from_a_recording(activities, path, window):
    """
    A recording is played from its beginning, a store from a little before the window on:
    baselines, chains, counts, budgets and incidents are the same.
    """
    assert report_of(read(path, *window), window) == report_of(activities, window)


def test_a_window_after_the_end_is_empty(path):
    """Nothing was recorded then."""
    assert read(path, T0 + 500 * SECOND) == []


def test_little_more_than_the_window_is_read(activities, path):
    """What is asked for decides what it costs, not what is kept."""
    found = read(path, T0 + 200 * SECOND, T0 + 210 * SECOND)

    assert len(activities) / 12 < len(found) < len(activities) / 4


def test_a_window_begins_with_what_was_counted_before(path):
    """The capture, then one reading of everything, dated before the window."""
    start = T0 + 200 * SECOND

    found = read(path, start)

    assert [type(activity) for activity in found[:4]] == [
        CaptureActivity,
        PressureActivity,
        AggregatesActivity,
        TimesActivity,
    ]
    assert len(found[2].series) == 12
    assert found[2].unix_ns < start
    # The first counters of a chunk are all of them.
    (first, *_) = [one for one in found if isinstance(one, CountersActivity)]
    assert first.values["counter_spans_chosen"] > 0
    assert first.values["counter_lost_no_entry"] == 0


def test_who_somebody_is_is_known_in_every_window(tmp_path):
    """The last word about each, told once and long ago."""
    first, last = (Who(900, 0, "hog", command) for command in ("hog", "hog --again"))
    feeder = Who(42, 43, "python", function="_feed")
    activities = [
        capture(),
        *(WhoActivity(T0 + SECOND, who) for who in (first, feeder, last)),
        *(call(TRAINER, "cudaMalloc", second * SECOND, MS) for second in range(2, 200)),
    ]
    path = write(tmp_path / "store.db", activities, SMALL)

    found = read(path, T0 + 180 * SECOND)

    told = {(one.who.pid, one.who.tid): one.who for one in found if isinstance(one, WhoActivity)}
    assert set(told.values()) == {feeder, last}


def test_ended_processes_are_not_counted_again(tmp_path):
    """What was over before a window began is no part of what it begins with."""
    dead = image(7, name="dead")
    activities = [
        capture(),
        snapshot(10, calls(dead, "cudaMalloc", [5] * 50), calls(TRAINER, "cudaMalloc", [5] * 60)),
        ended(dead, 11),
        *(call(TRAINER, "cudaMalloc", second * SECOND, MS) for second in range(12, 200)),
        snapshot(200, calls(TRAINER, "cudaMalloc", [5] * 90)),
    ]
    path = write(tmp_path / "store.db", activities, SMALL)

    found = read(path, T0 + 180 * SECOND)

    before, after = [one for one in found if isinstance(one, AggregatesActivity)]
    assert [(one.process.pid, one.aggregate.counted) for one in before.series] == [(42, 60)]
    assert [one.aggregate.counted for one in after.series] == [90]


def test_probes_of_the_capture_are_known_in_every_window(tmp_path):
    """A symbol that could not be probed at the start is missing in the last minute too."""
    failed = probes(1, "/usr/lib/libcudart.so.13", symbols=1, exported=2)
    activities = [
        capture(),
        failed,
        *(call(TRAINER, "cudaMalloc", second * SECOND, MS) for second in range(2, 200)),
    ]
    path = write(tmp_path / "store.db", activities, SMALL)

    found = read(path, T0 + 180 * SECOND)

    assert [one for one in found if isinstance(one, ProbesActivity)] == [failed]


def restarted(at_s, *, boot="b00t", bounds=None):
    activity = capture(unix_ns=T0 + at_s * SECOND)
    info = dict(activity.info)
    info["host"] = {**info["host"], "boot_id": boot}
    if bounds:
        info["layout"] = {
            "durations": {"kind": "explicit", "bounds_ns": bounds},
            "sizes": {"kind": "explicit", "bounds_bytes": bounds},
        }
    return activity._replace(info=info)


def two_captures(second):
    return [
        capture(),
        snapshot(10, calls(TRAINER, "cudaMalloc", [500] * 50)),
        call(TRAINER, "cudaMalloc", 11 * SECOND, MS),
        counters(12, lost_no_entry=5),
        second,
        # A new agent counts from nothing.
        snapshot(22, calls(TRAINER, "cudaMalloc", [500] * 7)),
        call(TRAINER, "cudaMalloc", 23 * SECOND, MS),
    ]


def test_an_agent_that_was_restarted_tells_one_story(tmp_path):
    """Counts go on where the agent before left off."""
    path = write(tmp_path / "store.db", two_captures(restarted(20)), SMALL)

    found = read(path)

    counted = [one for one in found if isinstance(one, AggregatesActivity)]
    assert [one.series[0].aggregate.counted for one in counted] == [50, 57]
    with StoreReader(path) as reader:
        span = reader.span()
    assert (len(span.captures), span.left_out, span.is_whole) == (2, (), False)


@pytest.mark.parametrize("change", [{"boot": "an0ther"}, {"bounds": [1_000, 2_000]}])
def test_what_cannot_be_compared_is_another_story(tmp_path, change):
    """After a reboot clocks begin anew, and other buckets mean other durations."""
    path = write(tmp_path / "store.db", two_captures(restarted(20, **change)), SMALL)

    found = read(path)

    assert [type(one) for one in found[:2]] == [CaptureActivity, AggregatesActivity]
    assert found[0].unix_ns == T0 + 20 * SECOND
    assert found[1].series[0].aggregate.counted == 7
    assert len(found) == 3
    with StoreReader(path) as reader:
        assert reader.span().left_out == (T0,)
        # The earlier one is told when it alone is asked about.
        assert reader.span(None, T0 + 2 * SECOND).left_out == ()


def test_another_run_goes_on_in_the_same_store(tmp_path):
    """Numbers go on, names of the run before stay."""
    first, second = two_captures(restarted(20))[:4], two_captures(restarted(20))[4:]
    path = write(tmp_path / "store.db", first, SMALL)
    write(path, second, SMALL)

    found = read(path)

    assert len(found) == 7
    assert found[-1].event.start_ktime_ns == 23 * SECOND
    assert found[-1].process.service_name == "trainer"


def test_what_an_earlier_capture_lost_is_not_forgotten(tmp_path):
    """Each agent counts its own losses from nothing, and names only those that it had."""
    path = tmp_path / "store.db"
    first, second = two_captures(restarted(20))[:4], two_captures(restarted(20))[4:]
    write(path, first, SMALL)
    write(path, [*second, counters(24, lost_ring_full=2)], SMALL)
    write(path, [restarted(30), counters(31, lost_no_entry=3)], SMALL)

    document = report_of(read(path), Window(T0))

    assert document["losses"] == {"no_entry": 8, "ring_full": 2}


@pytest.mark.parametrize("window", [(), (T0 - 100 * SECOND,), (None, T0 + 900 * SECOND)])
def test_captures_that_were_written_in_any_order_of_time_are_all_there(tmp_path, window):
    """Replayed one after the other, the latest first: the rows reach from the oldest on."""
    path = tmp_path / "store.db"
    for start_s, pid in ((700, 1), (0, 2), (350, 3)):
        process = image(pid)
        write(
            path,
            [
                restarted(start_s),
                snapshot(start_s + 1, calls(process, "cudaMalloc", [500] * 53)),
                call(process, "cudaMalloc", (start_s + 1) * SECOND, MS),
            ],
            SMALL,
        )

    with StoreReader(path) as reader:
        span = reader.span(*window)

    assert (span.start_unix_ns, span.left_out) == (T0, ())
    found = read(path, *window)
    assert {one.process.pid for one in found if isinstance(one, CallActivity)} == {1, 2, 3}
    about = Window(window[0] if window else span.before_unix_ns, T0 + 900 * SECOND)
    document = report_of(found, about)
    assert {row["pid"]: row["calls"] for row in document["apis"]} == dict.fromkeys((1, 2, 3), 53)
    assert {row["pid"] for row in document["time_buckets"] if row["process"]} == {1, 2, 3}


def test_of_a_capture_whose_begin_was_removed_nothing_is_told_before_its_oldest_chunk(tmp_path):
    """An older capture that was written after it does not make its begin known."""
    path = tmp_path / "store.db"
    readings = [
        snapshot(second, calls(TRAINER, "cudaMalloc", [500] * 10 * second))
        for second in range(1, 60)
    ]
    write(path, [capture(), *readings], StoreLimits(batch_rows=4, chunk_span_ns=7 * SECOND))
    write(path, [restarted(-500), snapshot(-499, calls(image(7), "cudaMalloc", [500] * 3))], SMALL)
    with closing(sqlite3.connect(path)) as connection:
        (begin,) = connection.execute("SELECT start_unix_ns FROM chunks WHERE chunk = 5").fetchone()
        (first,) = connection.execute("SELECT first_seq FROM chunks WHERE chunk = 5").fetchone()
        for table in ("readings", "aggregates"):
            connection.execute(f"DELETE FROM {table} WHERE seq < {first}")
        connection.execute("DELETE FROM chunks WHERE chunk < 5")
        connection.commit()

    with StoreReader(path) as reader:
        start_unix_ns = reader.span().before_unix_ns
    document = report_of(read(path), Window(start_unix_ns))

    missing = (begin - T0) // SECOND - 1
    assert {row["pid"]: row["calls"] for row in document["apis"]} == {7: 3, 42: 10 * (59 - missing)}
    shown = [row for row in document["time_buckets"] if row["process"] is None]
    assert sum(row["calls"] for row in shown) == pytest.approx(3 + 10 * (59 - missing))
    assert document["uncovered"] == [{"start_unix_ns": T0 - 499 * SECOND, "end_unix_ns": begin - 1}]


def test_numbers_that_are_far_apart_are_passed_over(tmp_path):
    """Only a made-up store has such; what is in it is read, and reading ends."""
    path = write(tmp_path / "store.db", [capture(), call(TRAINER, "cudaMalloc", SECOND, 1)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE calls SET seq = 1 << 60")
        connection.execute("UPDATE chunks SET last_seq = 9223372036854775807")
        connection.execute("UPDATE batches SET last_seq = 9223372036854775807")
        connection.commit()

    found = read(path)

    assert [type(activity).__name__ for activity in found] == ["CaptureActivity", "CallActivity"]


def test_an_empty_store_has_no_time(tmp_path):
    """Nor does it have activities."""
    path = write(tmp_path / "store.db", [])

    assert read(path) == []
    with StoreReader(path) as reader:
        assert (reader.extent(), reader.span(), reader.losses()) == (None, None, {})


def test_a_store_says_how_far_it_reaches(path):
    """From the capture to the last reading."""
    with StoreReader(path) as reader:
        extent = reader.extent()

    assert (extent.start_unix_ns, extent.end_unix_ns) == (T0, T0 + (10 + LENGTH_S) * SECOND)
    assert extent.rows > 9_000


def test_the_last_minutes_are_those_that_were_written_last(tmp_path):
    """Also after the clock of the host was a year ahead for a while, and was set back."""
    ahead = 365 * 86_400 * SECOND
    written = [
        capture(),
        *(call(TRAINER, "cudaMalloc", SECOND + n, 1) for n in range(20)),
        *(call(TRAINER, "cudaFree", ahead + n, 1) for n in range(20)),
        *(call(TRAINER, "cudaMemcpy", 9 * SECOND + n, 1) for n in range(20)),
    ]
    path = write(tmp_path / "store.db", written, StoreLimits(batch_rows=10, chunk_rows=10))

    with StoreReader(path) as reader:
        extent = reader.extent()
        last = reader.activities(extent.end_unix_ns - SECOND, extent.end_unix_ns)
        names = Counter(
            activity.api.name for activity in last if isinstance(activity, CallActivity)
        )

    assert extent == (T0, T0 + 9 * SECOND + 20, 60)
    assert names["cudaMemcpy"] == 20


def test_a_store_can_be_read_while_it_is_written(tmp_path):
    """What was written so far is there, and the writer is not kept from going on."""
    path = tmp_path / "store.db"
    with open_writer(path, StoreLimits(batch_rows=10), live=False) as writer:
        writer.observe(capture())
        for number in range(1_000):
            writer.observe(call(TRAINER, "cudaMalloc", number * MS, MS))
        with StoreReader(path) as reader:
            activities = reader.activities()
            seen = [next(activities) for _ in range(100)]
            for number in range(1_000, 2_000):
                writer.observe(call(TRAINER, "cudaMalloc", number * MS, MS))
            rest = list(activities)

    # The window was settled when it was asked for.
    assert len(seen) + len(rest) == 1_001
    assert len(read(path)) == 2_001


def steady(seconds, slow_at_s, slow_s):
    """A call each 20 ms, and one that is slow; all allocations, and one call of another API."""
    yield capture()
    yield call(TRAINER, "cudaDeviceSynchronize", 2 * SECOND, MS)
    for second in range(3, seconds):
        for number in range(50):
            yield call(TRAINER, "cudaLaunchKernel", second * SECOND + number * 20 * MS, MS)
        yield call(TRAINER, "cudaMalloc", second * SECOND + 999 * MS, MS)
        if second == slow_at_s:
            yield call(TRAINER, "cudaLaunchKernel", (second - slow_s) * SECOND, slow_s * SECOND)
        yield snapshot(second + 1, calls(TRAINER, "cudaLaunchKernel", [5] * 50 * second))


@pytest.mark.parametrize(("slow_s", "before_s"), [(1, 5), (12, 16), (40, 30)])
def test_before_a_window_is_read_what_its_first_effects_need(tmp_path, slow_s, before_s):
    """
    What happened in the five seconds before the longest of them began, and half a minute at most;
    of what came earlier, the first call of each API, allocations and counts.
    """
    start_s, end_s = 100, 120
    path = write(tmp_path / "store.db", steady(end_s, start_s + 1, slow_s), SMALL)

    found = read(path, T0 + start_s * SECOND)

    named = Counter(one.api.name for one in found if isinstance(one, CallActivity))
    # A batch is two seconds of these, and both the window and its lead begin with a whole one.
    fewest = 50 * (end_s - start_s + before_s)
    assert fewest <= named["cudaLaunchKernel"] <= fewest + 4 * 50 + 2
    assert named["cudaMalloc"] >= end_s - start_s + 30
    (*_, last) = [one for one in found if isinstance(one, AggregatesActivity)]
    assert last.series[0].aggregate.counted == 50 * (end_s - 1)
