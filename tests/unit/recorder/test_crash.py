"""A writer that is killed: the store opens, holds whole batches, and says what is missing."""

import multiprocessing
import os
import random
import signal
import sqlite3
from contextlib import closing

import pytest

from benchmarks.days import day
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import Lock, lock_path, read_lock
from otel_gpu.recorder.reader import StoreReader
from otel_gpu.recorder.recorder import open_writer
from otel_gpu.recorder.tables.tables import NUMBERED
from tests.unit.recorder.stores import MIB, ask, write

KILLS = 50
# Small, so that evictions and emptied logs are killed too.
LIMITS = StoreLimits(max_bytes=2 * MIB, batch_rows=400)
REPORTS = 50


def keep_writing(path, live, pipe):
    """Write until killed, and say now and then how many numbers were given."""
    writer = open_writer(path, LIMITS, live=live)
    for number, activity in enumerate(day(10**9, 10**5)):
        writer.observe(activity)
        if number % REPORTS == 0:
            pipe.send(writer._seq)


def kill_while_writing(path, reports, *, live):
    """Let a writer go on for so many reports, and kill it; the last number that it said."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=keep_writing, args=(path, live, send), daemon=True)
    process.start()
    send.close()
    seen = 0
    try:
        for _ in range(reports):
            seen = receive.recv()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        receive.close()
    return seen


def rows_of_batches(path):
    """What batches and chunks say they hold, and what is there."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA quick_check").fetchall() == [("ok",)]
        batches = connection.execute("SELECT first_seq, last_seq, rows FROM batches").fetchall()
        (last_seq,) = connection.execute("SELECT max(last_seq) FROM batches").fetchone()
        counts = dict.fromkeys(batches, 0)
        beyond = 0
        for table in NUMBERED:
            for batch in batches:
                query = f"SELECT count(*) FROM {table.name} WHERE seq BETWEEN ? AND ?"
                counts[batch] += connection.execute(query, batch[:2]).fetchone()[0]
            query = f"SELECT count(*) FROM {table.name} WHERE seq > ?"
            beyond += connection.execute(query, (last_seq,)).fetchone()[0]
        chunks = connection.execute("SELECT sum(rows), max(last_seq) FROM chunks").fetchone()
    return {batch[2]: count for batch, count in counts.items()}, chunks, last_seq, beyond


@pytest.mark.parametrize("live", [False, True])
def test_a_killed_writer_loses_at_most_what_it_had_in_memory(tmp_path, live):
    """
    Fifty times in the same store, at any moment: each time it opens, every batch is there
    whole or not at all, and it is known how many rows are missing.
    """
    path = tmp_path / "store.db"
    chance = random.Random(1)  # noqa: S311 -- the same moments every time
    write(path, day(10, 1), LIMITS)
    lost_before = 0
    # The number up to which it may have got is raised by 64 at a time.
    at_most = (LIMITS.waiting_rows if live else 0) + LIMITS.batch_rows + 64
    for _ in range(KILLS // 2):
        said = kill_while_writing(path, chance.randrange(1, 200), live=live)

        counts, chunks, last_seq, beyond = rows_of_batches(path)
        assert all(rows == count for rows, count in counts.items())
        assert chunks[1] == last_seq
        assert beyond == 0
        with StoreReader(path) as reader:
            lost = reader.losses().get("writer_killed", 0) - lost_before
            assert sum(1 for _ in reader.activities()) > 0
        # It may have given more numbers since it said so.
        assert said - 1 - last_seq <= lost <= at_most
        lost_before += lost

    # The next one takes note of the last, and goes on.
    write(path, day(10, 1), LIMITS)
    with StoreReader(path) as reader:
        assert reader.losses() == {"writer_killed": lost_before}
    lost = ask(path, "SELECT count FROM v_losses WHERE reason = 'writer_killed'")
    assert lost == [(lost_before,)]


def test_a_writer_that_ends_in_good_order_loses_nothing(tmp_path):
    """And leaves one file, beside the lock."""
    path = write(tmp_path / "store.db", day(1_000, 5))

    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db", "store.db.lock"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    with StoreReader(path) as reader:
        assert reader.losses() == {}
    assert read_lock(path).pid == os.getpid()


def test_a_lock_says_who_has_it(tmp_path):
    """And, when nobody does, how far the last one got."""
    path = tmp_path / "store.db"
    lock = Lock(path)
    lock.sign(writer=3, next_seq=100)
    lock.reach(100)
    lock.reach(101)

    assert read_lock(path) is None
    lock.close()
    assert read_lock(path) == (os.getpid(), 3, 165)


@pytest.mark.parametrize("content", [b"", b"x", bytes(100)])
def test_a_lock_of_a_stranger_says_nothing(tmp_path, content):
    """Whatever is in it."""
    path = tmp_path / "store.db"
    lock_path(path).write_bytes(content)

    assert read_lock(path) == (0, 0, 0)
    assert read_lock(tmp_path / "other.db") is None


def test_a_writer_that_is_running_has_lost_nothing(tmp_path):
    """What it has in memory is on its way."""
    path = tmp_path / "store.db"
    with open_writer(path, LIMITS, live=False) as writer:
        for activity in day(1_000, 5):
            writer.observe(activity)
        with StoreReader(path) as reader:
            assert reader.losses() == {}
        assert read_lock(path) is None
