"""Opens the flight recorder for writing, and assembles the parts of a writer."""

import logging
import os
import sqlite3
import time
from contextlib import ExitStack
from pathlib import Path

from otel_gpu import __version__
from otel_gpu.faults import Faults
from otel_gpu.recorder.files import open_writing
from otel_gpu.recorder.journal import Background, Journal
from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.lock import UNENDED, LastWriter
from otel_gpu.recorder.losses import RowLoss
from otel_gpu.recorder.problems import explained
from otel_gpu.recorder.tables.schema import first_numbers
from otel_gpu.recorder.writer import StoreWriter

_logger = logging.getLogger(__name__)


def open_writer(
    path: Path, limits: StoreLimits | None = None, *, live: bool, faults: Faults | None = None
) -> StoreWriter:
    """
    Open a store for writing, or create it.

    Args:
        path: Its file; folders above it are created. A damaged store, or one of an older version,
            is set aside with a warning, and a new one is begun.
        limits: Limits of its size.
        live: True: a thread writes about once a second, so the caller never waits for a disk, and
            each batch survives a power cut. False: the caller writes full batches, and a slow disk
            loses no rows.
        faults: Counts errors that the disk does not explain.

    Raises:
        StoreError: As in ``open_writing``.
    """
    limits = StoreLimits() if limits is None else limits
    connection, lock, path = open_writing(path, limits, durable=live)
    with ExitStack() as undo, explained(path):
        undo.callback(lock.close)
        undo.callback(connection.close)
        first = first_numbers(connection)
        if lost := _record_lost_rows(connection, lock.last):
            _logger.warning(
                "%s: its last writer was killed; rows lost with it, at most: %d", path, lost
            )
        _add_writer(connection, first)
        lock.sign(first["writers"], first["seq"])
        kind = Background if live else Journal
        journal = kind(connection, path, limits, first, lock, faults or Faults())
        undo.pop_all()
    return StoreWriter(journal, limits, first, live=live, reach=lock.reach)


def _record_lost_rows(connection: sqlite3.Connection, last: LastWriter) -> int:
    # Records and returns the rows that the previous writer lost, if it was killed.
    written = connection.execute(UNENDED, (last.writer,)).fetchone()
    if written is None:
        return 0
    lost = last.lost_rows(*written)
    connection.execute("UPDATE writers SET lost_rows = ? WHERE writer = ?", (lost, last.writer))
    if lost:
        connection.execute(
            "INSERT INTO losses VALUES (?1, ?2) ON CONFLICT (reason) DO UPDATE SET rows = rows + ?2",
            (RowLoss.KILLED, lost),
        )
    return lost


def _add_writer(connection: sqlite3.Connection, first: dict[str, int]) -> None:
    connection.execute(
        "INSERT INTO writers (writer, last_chunk, began_unix_ns, version, pid) "
        "VALUES (?, ?, ?, ?, ?)",
        (first["writers"], first["chunks"], time.time_ns(), __version__, os.getpid()),
    )
