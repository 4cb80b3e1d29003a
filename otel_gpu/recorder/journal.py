"""
The journal writes batches into the database, each in one transaction.

It raises no error of the disk. Rows that cannot be written are counted by reason, and the problem is
logged once. The next batch is tried again, because a full disk can get free space.
"""

import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

from otel_gpu.faults import Faults
from otel_gpu.recorder.batch import PendingRows, RowBatch
from otel_gpu.recorder.eviction import Eviction
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import Lock
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.problems import FAILURES, NoSpaceError, Problem, problem_of
from otel_gpu.recorder.rows.events import make_storable
from otel_gpu.recorder.tables.columns import MAX_INTEGER, Row
from otel_gpu.recorder.tables.schema import TABLE_BY_NAME

_ADD_TO_CHUNK = """
INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (chunk) DO UPDATE SET last_seq = max(last_seq, excluded.last_seq),
  start_unix_ns = min(start_unix_ns, excluded.start_unix_ns),
  end_unix_ns = max(end_unix_ns, excluded.end_unix_ns), written_unix_ns = excluded.written_unix_ns,
  rows = rows + excluded.rows, bytes = bytes + excluded.bytes
"""
_INSERTS = {table.name: table.insert() for table in TABLE_BY_NAME.values()}
_REPLACES = {table.name: table.insert(replace=True) for table in TABLE_BY_NAME.values()}

_logger = logging.getLogger(__name__)


class Journal:
    """
    Writes batches in the caller's thread, so a replay loses nothing on a slow disk.

    One thread at a time uses the connection. The lock is released at the end. ``lost`` counts rows that
    could not be written, by reason.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        limits: StoreLimits,
        first: Mapping[str, int],
        lock: Lock,
        faults: Faults,
    ) -> None:
        self._faults = faults
        self._lock = lock
        self._connection = connection
        self._path = path
        self._limits = limits
        self._writer, self._batch = first["writers"], first["batches"]
        self._eviction = Eviction(connection, path, limits)
        self.lost: Counter[str] = Counter()
        self._pending = PendingRows(limits.pending_bytes, self.lost)
        self._before: Counter[str] = Counter(
            dict(connection.execute("SELECT reason, rows FROM losses"))
        )
        self._logged: set[str] = set()

    def is_ready(self) -> bool:
        """Return whether a batch would be written at once."""
        return True

    def put(self, batch: RowBatch) -> None:
        """Write a batch, or count its rows as lost."""
        try:
            if batch.pending is not None:
                self._pending.merge(batch.pending)
            try:
                self._try(batch)
            except (OverflowError, UnicodeEncodeError):
                # A broken record has a number or a name that SQLite cannot hold.
                self._roll_back()
                for name, rows in batch.rows.items():
                    batch.rows[name] = [_storable(name, row) for row in rows]
                self._pending.change(_storable)
                self._try(batch)
        except (NoSpaceError, *FAILURES) as error:
            self._roll_back()
            self._lose(batch, problem_of(error))
        except Exception as error:  # noqa: BLE001 -- the writing thread must survive it
            self._faults.add("store.journal", error)
            self._roll_back()
            self.lost[RowLoss.FAILED] += batch.count
        else:
            self._logged.clear()

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 -- nothing waits here
        """Record that the writer ended in order, and close the file. Return False if rows were lost."""
        ended = (
            "UPDATE writers SET ended_unix_ns = ?, last_chunk = (SELECT "
            "coalesce(max(chunk), last_chunk) FROM chunks) WHERE writer = ?"
        )
        for step in (
            partial(self._connection.execute, ended, (time.time_ns(), self._writer)),
            self._connection.close,
        ):
            try:
                step()
            except FAILURES as error:
                self._log(problem_of(error))
        self._lock.close()
        return not self.lost.total()

    def _try(self, batch: RowBatch) -> None:
        most_bytes = 2 * self._limits.batch_bytes
        # Accumulated rows are written in several transactions, because each passes through the log.
        while self._pending.bytes > most_bytes:
            part = RowBatch(batch.chunk)
            part.lost = batch.lost
            self._transact(part, most_bytes)
        self._transact(batch, most_bytes)
        self._eviction.shrink()

    def _transact(self, batch: RowBatch, most_bytes: int) -> None:
        part, part_bytes = self._pending.part(most_bytes)
        self._eviction.free(batch.bytes + part_bytes, batch.chunk)
        # ``put`` rolls back after errors.
        self._connection.execute("BEGIN IMMEDIATE")
        before_bytes = self._eviction.used_bytes()
        lost = (self._before + Counter(batch.lost) + self.lost).items()
        losses = [(reason, min(count, MAX_INTEGER)) for reason, count in lost]
        replaced = {name: kept.values() for name, kept in part.items()} | {"losses": losses}
        for statements, tables in ((_INSERTS, batch.rows), (_REPLACES, replaced)):
            for name, rows in tables.items():
                self._connection.executemany(statements[name], rows)
        if batch.extent.first_seq:
            self._keep_books(batch, self._eviction.used_bytes() - before_bytes)
        self._connection.execute("COMMIT")
        self._pending.remove(part)

    def _keep_books(self, batch: RowBatch, grown_bytes: int) -> None:
        chunk, rows, extent = batch.chunk, batch.count, batch.extent
        execute = self._connection.execute
        execute(_ADD_TO_CHUNK, (chunk, *extent, time.time_ns(), rows, grown_bytes))
        execute(_INSERTS["batches"], (self._batch, chunk, *extent[:2], rows, *extent[2:]))
        self._batch += 1

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except FAILURES as error:
                _logger.debug("%s: %s", self._path, error)

    def _lose(self, batch: RowBatch, problem: Problem) -> None:
        self.lost[problem.reason] += batch.count
        if problem.reason == RowLoss.DAMAGED:
            # The next writer does not check a large file, so note the damage for it.
            self._lock.mark_damaged()
        self._log(problem)

    def _log(self, problem: Problem) -> None:
        if problem.reason not in self._logged:
            self._logged.add(problem.reason)
            hint = problem.hint and f" ({problem.hint})"
            message = "%s: cannot be written: %s; the capture goes on without it%s"
            _logger.warning(message, self._path, problem.text, hint)


class Background(Journal):
    """Writes in its own thread: one batch is written while the next is collected."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 -- those of Journal
        super().__init__(*arguments)
        self._batches: Queue[RowBatch | None] = Queue()
        self._thread = threading.Thread(target=self._run, name="otel-gpu-store", daemon=True)
        self._thread.start()

    def is_ready(self) -> bool:
        """Return whether the previous batch is written."""
        return not self._batches.unfinished_tasks

    def put(self, batch: RowBatch) -> None:
        """Queue a batch for the thread."""
        self._batches.put(batch)

    def close(self, timeout_s: float) -> bool:
        """Write queued batches within the time. Return False if rows were not written."""
        self._batches.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive() and not self.lost.total()

    def _run(self) -> None:
        for batch in iter(self._batches.get, None):
            super().put(batch)
            self._batches.task_done()
        super().close(0)


def _storable(table: str, row: Row) -> Row:
    return make_storable(TABLE_BY_NAME[table].stored, row)
