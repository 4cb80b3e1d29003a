"""Eviction: the size limit holds at all times, and what is left can still be read."""

import json
import sqlite3
from contextlib import closing

import pytest

from benchmarks.days import day
from otel_gpu.cli import main
from otel_gpu.enrich.activities import AggregatesActivity, CallActivity
from otel_gpu.recorder import eviction
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from tests.activities import SECOND, call, calls, capture, ended, image, snapshot, stall
from tests.unit.recorder.stores import MIB, ask, read, write

MS = 1_000_000
TRAINER = image(42)
SMALL = StoreLimits(max_bytes=4 * MIB, batch_rows=500)


def size_of(path):
    return sum(
        file.stat().st_size for file in (path, path.with_name(path.name + "-wal")) if file.exists()
    )


def some_calls(first, count, process=TRAINER):
    return [call(process, "cudaMalloc", (20 + n) * MS, MS) for n in range(first, first + count)]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store that much more went through than it holds, and its sizes meanwhile."""
    path = tmp_path_factory.mktemp("filled") / "store.db"
    sizes = []
    with open_writer(path, SMALL, live=False) as writer:
        writer.observe(capture())
        for number, activity in enumerate(day(60_000, 60)):
            writer.observe(activity)
            if number % 500 == 0:
                sizes.append(size_of(path))
        assert writer.lost() == {}
    return path, sizes


def test_the_size_limit_holds_all_the_time(filled):
    """File and log together never take more, while many times as much goes through."""
    path, sizes = filled

    assert max(sizes) <= SMALL.max_bytes
    # And it is used.
    assert sizes[-1] > SMALL.max_bytes // 2
    ((first, last, kept),) = ask(path, "SELECT min(seq), max(seq), count(*) FROM calls")
    assert first > 10_000
    assert kept > 10_000
    assert last > 60_000


def test_what_is_left_is_whole_chunks(filled):
    """Nothing of a removed chunk is in any table, and nothing of another is missing."""
    path, _ = filled

    ((first, last, rows),) = ask(
        path, "SELECT min(first_seq), max(last_seq), sum(rows) FROM chunks"
    )
    with closing(sqlite3.connect(path)) as connection:
        counted = 0
        for table in eviction.NUMBERED:
            (outside,) = connection.execute(
                f"SELECT count(*) FROM {table.name} WHERE NOT seq BETWEEN ? AND ?", (first, last)
            ).fetchone()
            assert (table.name, outside) == (table.name, 0)
            counted += connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    assert counted == rows


def test_what_is_too_old_is_removed(tmp_path, monkeypatch):
    """Age is since it was written, so that an old recording can be looked at in peace."""
    now = [1_000 * SECOND]
    monkeypatch.setattr("time.time_ns", lambda: now[0])
    limits = StoreLimits(max_age_s=60, batch_rows=10, chunk_rows=10)
    with open_writer(tmp_path / "store.db", limits, live=False) as writer:
        writer.observe(capture())
        for activity in some_calls(0, 100):
            writer.observe(activity)
        now[0] += 61 * SECOND
        for activity in some_calls(100, 20):
            writer.observe(activity)

    assert len(read(tmp_path / "store.db")) == 1 + 20


def test_names_that_nobody_refers_to_go_with_their_chunks(tmp_path):
    """A thousand processes came and went; those of the last rows are left."""
    limits = StoreLimits(max_bytes=MIB, batch_rows=100, chunk_rows=100)
    activities = [capture()]
    for number in range(1_000):
        process = image(1_000 + number, number + 1, f"job-{number}")
        stack = (f"function_{number}", "vfs_read")
        activities += some_calls(20 * number, 20, process)
        activities.append(stall(process, 1, 2, 3, functions=stack, reason="io"))
        activities.append(snapshot(20 + number, calls(process, "cudaMalloc", [5] * 20)))
        activities.append(ended(process, 20 + number))

    path = write(tmp_path / "store.db", activities, limits)

    for table, key in (("processes", "process"), ("stacks", "stack"), ("series", "series")):
        ((count, least),) = ask(path, f"SELECT count(*), min({key}) FROM {table}")
        assert 20 < count < 900, table
        assert least > 100, table
    ((totals,),) = ask(path, "SELECT count(*) FROM aggregate_totals")
    assert totals < 900
    assert ask(path, "SELECT count(*) FROM calls c LEFT JOIN processes p USING (process) "
                     "WHERE p.process IS NULL") == [(0,)]  # fmt: skip


def test_what_a_living_process_once_did_is_not_forgotten(tmp_path):
    """Its allocations are long past, and still tell a first call from others."""
    activities = [
        capture(),
        snapshot(10, calls(TRAINER, "cudaMalloc", [5] * 50), calls(image(7), "cudaFree", [5] * 9)),
        ended(image(7), 11),
        *some_calls(0, 40_000, image(9)),
        snapshot(90, calls(image(9), "cudaMalloc", [5] * 10)),
    ]
    path = write(
        tmp_path / "store.db", activities, StoreLimits(max_bytes=2 * MIB, chunk_rows=1_000)
    )

    found = read(path)

    assert len([one for one in found if isinstance(one, CallActivity)]) < 30_000
    before, _ = [one for one in found if isinstance(one, AggregatesActivity)]
    assert [(s.process.pid, s.aggregate.counted) for s in before.series] == [(42, 50)]


@pytest.mark.parametrize("since", [[], ["--since", "1h"]])
def test_what_is_left_of_a_moment_is_told_and_nothing_else(tmp_path, monkeypatch, capsys, since):
    """
    Readings of one moment are on both sides of the end of a chunk that was removed.

    What the ones that are left added counts, also those of the first moment, and what they add it
    to does not, whatever is asked for.
    """
    now = [1_000 * SECOND]
    monkeypatch.setattr("time.time_ns", lambda: now[0])
    path, other = tmp_path / "store.db", image(7)
    # Each reading is a chunk.
    with open_writer(
        path, StoreLimits(max_age_s=60, batch_rows=2, chunk_rows=1), live=False
    ) as writer:
        writer.observe(capture())
        for process in (TRAINER, other):
            writer.observe(snapshot(20, calls(process, "cudaMalloc", [5] * 3)))
        writer.observe(snapshot(21, calls(TRAINER, "cudaMalloc", [5] * 7)))
        now[0] += 61 * SECOND
        writer.observe(snapshot(21, calls(other, "cudaMalloc", [5] * 11)))
        writer.observe(snapshot(22, calls(TRAINER, "cudaMalloc", [5] * 20)))
    assert ask(path, "SELECT count FROM aggregates ORDER BY seq") == [(8,), (13,)]

    assert main(["explain", "--store", str(path), "--json", *since]) == 0

    rows = json.loads(capsys.readouterr().out)["apis"]
    assert {row["pid"]: row["calls"] for row in rows} == {7: 8, 42: 13}


def test_a_store_that_is_given_less_room_shrinks(tmp_path):
    """The next writer removes what is too much, and gives the disk back what is free."""
    path = write(tmp_path / "store.db", day(60_000, 60), StoreLimits(max_bytes=32 * MIB))
    before = size_of(path)

    write(path, day(40_000, 40), SMALL)

    assert before > 6 * MIB
    assert size_of(path) <= SMALL.max_bytes


def test_a_batch_that_does_not_fit_is_lost_and_counted(tmp_path, caplog):
    """A store that is too small for a single batch says so; the next smaller one is written."""
    limits = StoreLimits(max_bytes=MIB, batch_rows=10**9)
    writer = open_writer(tmp_path / "store.db", limits, live=False)
    writer._batch_bytes = 10**9
    writer.observe(capture())
    for activity in some_calls(0, 20_000):
        writer.observe(activity)
    writer._hand_over()
    for activity in some_calls(0, 10):
        writer.observe(activity)

    assert not writer.close()
    assert writer.lost() == {"store_too_small": 20_000}
    assert "too small" in caplog.text
    assert len(read(tmp_path / "store.db")) == 1 + 10
    with StoreReader(tmp_path / "store.db") as reader:
        assert reader.losses() == {"store_too_small": 20_000}


def test_a_reader_cannot_make_a_store_outgrow_its_limit(tmp_path, caplog):
    """While it holds what it saw, the log cannot be emptied: then rows are lost, and counted."""
    path = tmp_path / "store.db"
    with open_writer(path, SMALL, live=False) as writer:
        writer.observe(capture())
        stubborn = sqlite3.connect(path, isolation_level=None)
        stubborn.execute("BEGIN")
        stubborn.execute("SELECT count(*) FROM calls").fetchall()
        for activity in day(30_000, 30):
            writer.observe(activity)
        most = size_of(path)
        lost = writer.lost()
        stubborn.close()
        for activity in some_calls(0, 2_000):
            writer.observe(activity)

    assert most <= SMALL.max_bytes
    assert lost["reader_in_the_way"] > 1_000
    assert "a reader keeps" in caplog.text
    # As soon as the reader is gone, rows are written again.
    last = "SELECT end_ktime_ns FROM calls ORDER BY seq DESC LIMIT 1"
    assert ask(path, last) == [((20 + 1_999) * MS + MS,)]


@pytest.mark.parametrize("max_bytes", [16 * MIB, 1 << 30, 1 << 40])
def test_parts_of_a_limit_fit_into_it(max_bytes):
    """Batches are a part of a log, which is a part of the whole, as chunks are of the file."""
    limits = StoreLimits(max_bytes=max_bytes)

    assert limits.file_bytes + limits.log_bytes == max_bytes
    assert 2 * limits.batch_bytes <= limits.emptied_bytes
    # At worst the log holds what it is emptied at, then a chunk and a batch.
    assert limits.emptied_bytes + limits.chunk_bytes + limits.batch_bytes < limits.log_bytes
    assert 10 * limits.chunk_bytes < limits.file_bytes
