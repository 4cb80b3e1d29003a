"""Days of short programs: each is in the file exactly, and what the writer keeps ends with it."""

import gc
import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest

from otel_gpu import wire
from otel_gpu.cli import main
from otel_gpu.recorder.batch import PendingRows, RowBatch
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.report.other_processes import MAX_NAMED
from tests.activities import (
    APIS_BY_NAME,
    SECOND,
    T0,
    aggregate,
    call,
    call_stack,
    capture,
    counters,
    ended,
    image,
    series,
    snapshot,
    stall,
    thread_time,
    times,
)
from tests.unit.recorder.stores import MIB, read, write

MS = 1_000_000
PROCESSES = 10_007
PER_SECOND = 36
APIS = ("cudaMalloc", "cudaLaunchKernel")
FIRST, LAST = aggregate([5_000] * 3), aggregate([5_000] * 7 + [90_000] * 4)
LIMITS = StoreLimits(max_bytes=1 << 30, batch_rows=2_003, chunk_span_ns=20 * SECOND)


def counted(process, total):
    return [
        *(
            series(process, wire.METRIC_CALL_DURATION, total, api=APIS_BY_NAME[api].number)
            for api in APIS
        ),
        series(process, wire.METRIC_RUN_QUEUE, total),
    ]


def accounted(process, time_ns):
    return [
        thread_time(process, wire.STATE_ON_CPU, wire.CONTEXT_GAP, time_ns),
        thread_time(process, wire.STATE_BLOCKED, wire.CONTEXT_CALL, 2 * time_ns, reason="lock"),
    ]


def short_programs(count):
    """Each is read twice, the second time before its end is told, as a capture does."""
    yield capture()
    alive = []
    for number in range(count):
        begin = 20 * SECOND + number * SECOND // PER_SECOND
        process = image(1_000 + number % 30_011, begin, f"job-{number % 97}")
        stack = call_stack(1 + number % 1_009)
        yield stall(process, begin, begin + MS, begin + 2 * MS, functions=("futex_wait",))
        yield call(process, "cudaMalloc", begin + 2 * MS, MS, stack=stack)
        alive.append(process)
        if number % PER_SECOND == PER_SECOND - 1 or number == count - 1:
            at_s = begin / SECOND + 0.01
            yield snapshot(at_s, *(one for process in alive for one in counted(process, FIRST)))
            yield times(at_s, *(one for process in alive for one in accounted(process, 3 * MS)))
            yield counters(at_s, probe_entries=number)
            for process in alive:
                yield snapshot(at_s, *counted(process, LAST))
                yield times(at_s, *accounted(process, 5 * MS))
                yield ended(process, at_s, 3 << 8)
            alive.clear()


def kept_objects(writer):
    """How many objects a writer holds on to, but for what waits to be written."""
    seen, waiting = set(), [writer]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _SHARED):
            continue
        seen.add(id(one))
        waiting.extend(gc.get_referents(one))
    return len(seen)


_SHARED = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    sqlite3.Connection,
    RowBatch,
    PendingRows,
)


@pytest.fixture(scope="module")
def storm(tmp_path_factory):
    """A store of them, and how much its writer held on to from time to time."""
    path = tmp_path_factory.mktemp("storm") / "store.db"
    kept = []
    with open_writer(path, LIMITS, live=False) as writer:
        ends = 0
        for activity in short_programs(PROCESSES):
            writer.observe(activity)
            ends += type(activity).__name__ == "ExitActivity"
            if ends == 211 * (len(kept) + 1):
                kept.append(kept_objects(writer))
        assert writer.close()
        assert writer.lost() == {}
    return path, kept


def test_short_programs_are_kept_exactly_and_leave_nothing_behind(storm):
    """Every process, call and wait, what each series and account comes to, and a flat memory."""
    path, kept = storm
    with closing(sqlite3.connect(path)) as connection:
        ask = connection.execute
        assert ask(
            "SELECT count(*), count(DISTINCT pid || '-' || program_ktime_ns), count(end_unix_ns), "
            "sum(exit_code) FROM processes"
        ).fetchall() == [(PROCESSES, PROCESSES, PROCESSES, PROCESSES * 3 << 8)]
        assert ask("SELECT count(*), count(DISTINCT process) FROM calls").fetchall() == [
            (PROCESSES, PROCESSES)
        ]
        totals = ask(
            "SELECT count(*), min(n), max(n), min(total), max(total) FROM (SELECT "
            "sum(count) AS n, sum(sum) AS total FROM aggregates GROUP BY series)"
        ).fetchall()
        assert totals == [(PROCESSES * (len(APIS) + 1), 11, 11, LAST.sum, LAST.sum)]
        assert ask(
            "SELECT state, count(*), min(ns), max(ns), max(n) FROM (SELECT state, sum(time_ns) "
            "AS ns, sum(count) AS n FROM thread_times GROUP BY process, state) GROUP BY state "
            "ORDER BY min(ns)"
        ).fetchall() == [
            (wire.STATE_ON_CPU, PROCESSES, 5 * MS, 5 * MS, 1),
            (wire.STATE_BLOCKED, PROCESSES, 10 * MS, 10 * MS, 1),
        ]
    assert_flat(kept)
    # A window at the end begins with what still lived then, which is little.
    found = read(path, T0 + (20 + PROCESSES // PER_SECOND - 5) * SECOND)
    assert 0 < len(found) < PROCESSES


@pytest.mark.parametrize(("since_s", "processes"), [(20, 755), (300, PROCESSES)])
def test_every_call_of_every_process_is_in_a_report(storm, capsys, since_s, processes):
    """The busiest are named, and the others are sums that say of how many."""
    path, _ = storm

    assert main(["explain", "--store", str(path), "--since", f"{since_s}s", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    each = LAST.counted * len(APIS)
    assert sum(row["calls"] for row in document["apis"]) == processes * each
    assert sum(row["sum_ns"] for row in document["apis"]) == processes * len(APIS) * LAST.sum
    of_all = [slot["calls"] for slot in document["time_buckets"] if slot["process"] is None]
    assert sum(of_all) == pytest.approx(processes * each)
    assert sum(row["time_ns"] for row in document["off_cpu"]) == processes * 10 * MS
    crowds = [row for row in document["processes"] if row["pid"] == 0]
    summed = [int(row["service_name"].split()[0].replace(",", "")) for row in crowds]
    assert len(document["processes"]) - len(crowds) == MAX_NAMED
    assert MAX_NAMED + sum(summed) == processes
    assert document["losses"] == {}
    assert not any("no room" in note for note in document["notes"])


_PROCESSES_OF_ROWS = """
SELECT process FROM calls WHERE seq >= :first UNION SELECT process FROM stalls WHERE seq >= :first
UNION SELECT process FROM exits WHERE seq >= :first
UNION SELECT process FROM thread_times WHERE seq >= :first
UNION SELECT s.process FROM aggregates JOIN series s USING (series) WHERE seq >= :first"""


def test_only_the_oldest_chunks_and_their_names_are_removed(storm, tmp_path, capsys):
    """
    A store that is too small for the storm holds the end of it, and a report of that is right.
    """
    whole, _ = storm
    path = tmp_path / "store.db"
    write(path, short_programs(PROCESSES), replace(LIMITS, max_bytes=4 * MIB))

    with closing(sqlite3.connect(path)) as left, closing(sqlite3.connect(whole)) as full:
        ((first, last),) = left.execute("SELECT min(first_seq), max(last_seq) FROM chunks")
        ((last_of_all,),) = full.execute("SELECT max(last_seq) FROM chunks")
        assert 1 < first < last == last_of_all
        for table in ("calls", "stalls", "exits", "readings", "aggregates", "thread_times"):
            rows = f"SELECT * FROM {table} WHERE seq >= ?"
            assert left.execute(rows, (0,)).fetchall() == full.execute(rows, (first,)).fetchall()
        names = {number for (number,) in left.execute("SELECT process FROM processes")}
        needed = {number for (number,) in full.execute(_PROCESSES_OF_ROWS, {"first": first})}
        assert names == needed
        assert 1_000 < len(names) < PROCESSES
        ((calls,),) = full.execute(
            "SELECT sum(count) FROM aggregates JOIN series USING (series) "
            "WHERE seq >= ? AND metric = ?",
            (first, wire.METRIC_CALL_DURATION),
        )

    assert main(["explain", "--store", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert sum(row["calls"] for row in document["apis"]) == calls
    assert document["losses"] == {}


def assert_flat(kept):
    """The most that was kept in the last third is about that of the middle third."""
    third = len(kept) // 3
    middle, last = max(kept[third : 2 * third]), max(kept[2 * third :])
    assert third > 3
    assert last <= 1.01 * middle
