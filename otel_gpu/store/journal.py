"""
The journal: batches into the database, each in one transaction.

Whatever the disk does, it raises nothing: what cannot be written is counted by reason,
said once, and tried again with the next batch, since a disk that is full may be emptied.
"""

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from otel_gpu.errors import StoreError
from otel_gpu.faults import Faults
from otel_gpu.store.batch import Batch
from otel_gpu.store.columns import MAX_INTEGER, Row
from otel_gpu.store.eviction import Room
from otel_gpu.store.limits import Limits
from otel_gpu.store.lock import Lock
from otel_gpu.store.losses import FAILED, READER, TOO_SMALL
from otel_gpu.store.pending_rows import Kept, PendingRows
from otel_gpu.store.problems import DAMAGED, FAILURES, problem_of
from otel_gpu.store.rows import mend
from otel_gpu.store.schema import TABLE_BY_NAME

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


class _LogIsFullError(Exception):
    """A reader keeps the log from being emptied."""


class Journal:
    """
    Writes batches in the caller's thread: a replay loses nothing, however slow the disk is.

    Args:
        connection: To a store, used by one thread at a time.
        path: Of its file, for messages.
        limits: What it may hold.
        first: The first free numbers.
        lock: Let go of when nothing more will be written.
        faults: Counts errors that no disk explains.

    Attributes:
        lost: Rows that could not be written, by reason.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: Path,
        limits: Limits,
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
        self._room = Room(connection, path, limits)
        self.lost: Counter[str] = Counter()
        self._pending = PendingRows(limits.pending_bytes, self.lost)
        self._before: Counter[str] = Counter(
            dict(connection.execute("SELECT reason, rows FROM losses"))
        )
        self._said: set[str] = set()

    def is_ready(self) -> bool:
        """Say whether a batch would be written at once."""
        return True

    def put(self, batch: Batch) -> None:
        """Write a batch, or count why it could not be written."""
        try:
            if batch.pending is not None:
                self._pending.merge(batch.pending)
            self._try(batch)
        except _LogIsFullError:
            self._roll_back()
            self._lose(batch, READER, "a reader keeps its log from being emptied", "")
        except StoreError as error:
            self._roll_back()
            self._lose(batch, TOO_SMALL, str(error), "raise store.max_bytes")
        except FAILURES as error:
            self._roll_back()
            self._lose(batch, *problem_of(error))
        except Exception as error:  # noqa: BLE001 -- the thread of the delivery must outlive it
            self._faults.add("store.journal", error)
            self._roll_back()
            self.lost[FAILED] += batch.count
        else:
            self._said.clear()

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002 -- nothing waits here
        """Say that the writer ended in good order, and let go of the file; False: rows were lost."""
        ended = (
            "UPDATE writers SET ended_unix_ns = ?, last_chunk = (SELECT "
            "coalesce(max(chunk), last_chunk) FROM chunks) WHERE writer = ?"
        )
        for let_go in (
            partial(self._connection.execute, ended, (time.time_ns(), self._writer)),
            self._connection.close,
        ):
            try:
                let_go()
            except FAILURES as error:
                self._say(*problem_of(error))
        self._lock.close()
        return not self.lost.total()

    def _try(self, batch: Batch) -> None:
        try:
            self._transact(batch)
        except (OverflowError, UnicodeEncodeError):
            # A number or a name that SQLite cannot hold: from a broken record.
            self._roll_back()
            for name, rows in batch.rows.items():
                batch.rows[name] = [_mend(name, row) for row in rows]
            self._pending.change(_mend)
            self._transact(batch)
        self._room.give_back()

    def _transact(self, batch: Batch) -> None:
        most_bytes = 2 * self._limits.batch_bytes
        # What piled up goes in pieces: each passes through the log.
        while self._pending.bytes > most_bytes:
            self._write_pending(*self._pending.part(most_bytes), batch.chunk)
        part, part_bytes = self._pending.part(most_bytes)
        self._make_room(batch.bytes + part_bytes, batch.chunk)
        with self._transaction():
            before_bytes = self._room.used_bytes()
            many = self._connection.executemany
            for name, rows in batch.rows.items():
                if rows:
                    many(_INSERTS[name], rows)
            self._replace(part)
            if batch.extent.first_seq:
                self._keep_books(batch, self._room.used_bytes() - before_bytes)
            lost = self._before + Counter(batch.lost) + self.lost
            rows = [(reason, min(count, MAX_INTEGER)) for reason, count in lost.items()]
            many(_REPLACES["losses"], rows)
        self._pending.remove(part)

    def _write_pending(self, part: Kept, part_bytes: int, chunk: int) -> None:
        self._make_room(part_bytes, chunk)
        with self._transaction():
            self._replace(part)
        self._pending.remove(part)

    def _make_room(self, need_bytes: int, chunk: int) -> None:
        if self._room.log_is_full():
            raise _LogIsFullError
        self._room.make(need_bytes, chunk)

    def _replace(self, part: Kept) -> None:
        for name, kept in part.items():
            self._connection.executemany(_REPLACES[name], kept.values())

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # Whoever catches what goes wrong rolls back.
        self._connection.execute("BEGIN IMMEDIATE")
        yield
        self._connection.execute("COMMIT")

    def _keep_books(self, batch: Batch, grown_bytes: int) -> None:
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

    def _lose(self, batch: Batch, reason: str, problem: str, hint: str) -> None:
        self.lost[reason] += batch.count
        if reason == DAMAGED:
            # It will not be looked through when it is large, so the next writer has to know.
            self._lock.condemn()
        self._say(reason, problem, hint)

    def _say(self, reason: str, problem: str, hint: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _logger.warning(
                "%s: cannot be written: %s; the capture goes on without it%s",
                self._path,
                problem,
                hint and f" ({hint})",
            )


def _mend(table: str, row: Row) -> Row:
    return mend(TABLE_BY_NAME[table].stored, row)
