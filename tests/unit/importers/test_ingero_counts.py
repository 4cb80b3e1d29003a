"""True counts: rows, and what Ingero counted beside them."""

import pytest

from otel_gpu import wire
from otel_gpu.config import Config
from otel_gpu.decode.readings import Aggregates
from otel_gpu.importers import open_capture
from tests.activities import APIS_BY_NAME
from tests.unit.importers.databases import MS, PID, SECOND, T0, US, Database

MINUTE = 60 * SECOND


@pytest.fixture
def database(tmp_path):
    return Database(tmp_path / "x.db")


def readings(database):
    with open_capture("ingero", database.path, Config()) as capture:
        events = [event for event in capture.events() if isinstance(event, Aggregates)]
        return events, capture.tally


def last(database):
    """What every series stands at in the end."""
    series = {}
    for reading in readings(database)[0]:
        series.update(reading.series)
    return series


def of_api(database, name, **key):
    """The aggregate of the one series of an API."""
    (found,) = (
        aggregate
        for series, aggregate in last(database).items()
        if series.metric == wire.METRIC_CALL_DURATION
        and series.api == APIS_BY_NAME[name].number
        and all(getattr(series, field) == value for field, value in key.items())
    )
    return found


def test_rows_are_in_buckets(database):
    """What has a row is known to the nanosecond: the bucket is that of our own captures."""
    database.event("cudaMalloc", T0, 1_000_000_000, arg0=100)
    database.event("cudaMalloc", T0 + 2 * SECOND, 1_000_000_001, arg0=28)

    counted = of_api(database, "cudaMalloc")

    # 2^0 seconds is the upper bound of its bucket.
    assert counted.buckets[119:121] == (1, 1)
    assert (counted.sum, counted.min, counted.max) == (2 * SECOND + 1, SECOND, SECOND + 1)
    assert (counted.size_bytes, counted.counted, counted.unplaced) == (128, 2, 0)


def test_what_has_no_row_is_in_no_bucket(database):
    """Of it count, sum, minimum and maximum are known, and nothing is made up."""
    database.event("cudaMalloc", T0, 30 * US, arg0=1000)
    database.counted("cudaMalloc", 11, 1, 80 * US, min_dur=2 * US, max_dur=30 * US, sum_arg0=6000)

    counted = of_api(database, "cudaMalloc")

    assert sum(counted.buckets) == 1
    assert (counted.unplaced, counted.counted) == (10, 11)
    assert (counted.sum, counted.min, counted.max) == (80 * US, 2 * US, 30 * US)
    assert counted.size_bytes == 6000


def test_kinds_and_results_are_series_of_their_own(database):
    """
    As far as rows tell; of the rest the direction is not known, and the result is taken to
    be a success.
    """
    database.event("cudaMemcpyAsync", T0, 30, arg1=1)
    database.event("cudaMemcpyAsync", T0 + 50, 40, arg1=2, ret_code=700)
    database.counted("cudaMemcpyAsync", 5, 2, 100)

    counts = {
        (key.copy_kind, key.status): (aggregate.counted, aggregate.sum)
        for key, aggregate in last(database).items()
    }

    assert counts == {
        (wire.COPY_HOST_TO_DEVICE, 0): (1, 30),
        (wire.COPY_DEVICE_TO_HOST, 700): (1, 40),
        (wire.COPY_NONE, 0): (3, 30),
    }


def test_a_minute_that_was_written_over_is_put_together_again(database):
    """
    The tool writes a minute twice when it is late with the events of it, the second time
    over the first. The rows that its count includes are those written last.
    """
    for number, duration in enumerate((11, 12, 13)):
        database.event("cudaMalloc", T0 + 100 * number, duration)
    database.event("cudaMalloc", T0 + 50 * SECOND, 50)
    # Two more that have no row, and the last of the rows.
    database.counted("cudaMalloc", 3, 1, 50 + 30)

    counted = of_api(database, "cudaMalloc")

    assert (counted.counted, counted.unplaced) == (3 + 3, 2)
    assert counted.sum == 11 + 12 + 13 + 50 + 30
    assert (
        "Of 1 counts of a minute the beginning was written over by the tool; what has rows of "
        "it was added again, and the rest is lost: these counts are too small."
    ) in readings(database)[1].notes


def test_rows_that_were_counted_and_are_not_there_are_counted(database):
    """A batch of rows can be lost after it was counted."""
    database.event("cudaMalloc", T0, 10)
    database.counted("cudaMalloc", 4, 3, 40)

    counted = of_api(database, "cudaMalloc")

    assert (counted.counted, counted.unplaced, counted.sum) == (4, 3, 40)
    assert "2 rows that the tool counts as stored are not there." in readings(database)[1].notes


def test_without_a_table_of_counts_there_are_the_rows(database):
    """And that is said."""
    database.event("cudaMalloc", T0, 10)
    database.run("DROP TABLE event_aggregates")

    assert of_api(database, "cudaMalloc").counted == 1
    assert (
        "There are no counts beside the rows: calls that have no row are missing."
        in readings(database)[1].notes
    )


def test_a_process_that_was_only_counted_is_imported(database):
    """None of its calls was worth a row."""
    database.event("cudaMalloc", T0, 10, pid=1)
    database.counted("cudaMalloc", 4, 0, 40, pid=PID)

    pids = {key.pid: aggregate.counted for key, aggregate in last(database).items()}

    assert pids == {1: 1, PID: 4}


def test_counts_grow_within_their_minute(database):
    """
    When in its minute a call was is not known: they are taken to come evenly, between the
    first and the last call of the process.
    """
    for second in range(0, 90, 10):
        database.event("cudaMalloc", T0 + 10 * SECOND + second * SECOND, 10)
    database.counted("cudaMalloc", 5 + 100, 5, 1_000_000)

    counts = [
        ((reading.ktime_ns - T0) // SECOND, aggregate.unplaced)
        for reading in readings(database)[0]
        for _, aggregate in reading.series
    ]

    assert counts == [
        *((20, 20), (30, 40), (40, 60), (50, 80), (60, 100)),
        *((70, 100), (80, 100), (90, 100), (90, 100)),
    ]


def test_readings_are_a_second_apart(database):
    """As often as a capture of our own is read, and only when something changed."""
    for number in range(30):
        database.event("cudaMalloc", T0 + number * 100 * MS, 10)
    database.event("cudaMalloc", T0 + 100 * SECOND, 10)

    times = [(reading.ktime_ns - T0) // MS for reading in readings(database)[0]]

    assert times == [1_000, 2_000, 100_000, 100_000]


@pytest.mark.parametrize(
    ("others", "nested"),
    [(["cuMemAlloc"], 0), (["cuMemAlloc", "cudaMalloc"], 1), (["cuMemAlloc", "cudaFree"], 0)],
)
def test_driver_calls_without_rows_are_inside_those_of_the_runtime(database, others, nested):
    """If the process makes such calls; else they would be counted twice."""
    for op in others:
        database.counted(op, 7, 0, 70)

    assert of_api(database, "cuMemAlloc", nested=nested).counted == 7


def test_time_off_the_cpu_is_counted_for_the_process_of_the_thread(database):
    """The table calls a thread's number a process's, as the rows do."""
    database.event("cudaMalloc", T0, 1)
    database.event("process_exit", T0 + SECOND, tid=4250)
    database.event("sched_switch", T0 + SECOND, 5 * US)
    database.counted("sched_switch", 4, 1, 20 * US)
    database.counted("sched_switch", 100, 0, 500 * US, pid=4250)
    database.counted("sched_switch", 100, 0, 500 * US, pid=7)

    counted = {
        (key.pid, key.api): (aggregate.counted, aggregate.sum)
        for key, aggregate in last(database).items()
        if key.metric == wire.METRIC_OFF_CPU
    }

    assert counted == {(PID, 0): (104, 520 * US)}


@pytest.mark.parametrize(
    "values",
    [
        {"count": "many"},
        {"count": -1},
        {"count": 10**15},
        {"sum_dur": 1.5},
        {"bucket": b"x"},
        {"min_dur": -1},
    ],
)
def test_a_count_that_makes_no_sense_is_none(database, values):
    """The rows still count."""
    database.event("cudaMalloc", T0, 10)
    database.counted("cudaMalloc", 5, 1, 50)
    ((column, value),) = values.items()
    database.run(f"UPDATE event_aggregates SET {column} = ?", value)

    assert of_api(database, "cudaMalloc").counted == 1
