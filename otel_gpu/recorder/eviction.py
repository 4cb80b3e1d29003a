"""
Eviction: the oldest chunks make room for the latest rows.

A chunk goes whole, from all tables, in one transaction. What nothing refers to any more
goes with it. Pages that become free are used again, so that a full store keeps its size.
"""

import sqlite3
import time
from pathlib import Path

from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.problems import READER, TOO_SMALL, NoRoomError
from otel_gpu.recorder.tables.tables import NUMBERED

_NS_PER_S = 1_000_000_000
# Inner pages and pages that are not full, beside the content.
_SLACK_BYTES = 128 << 10
_VACUUMED_PAGES = 512
_FREE_SHARE = 4

# A process that lives is asked about again, however long it did nothing.
_ALIVE = (
    "SELECT process FROM processes WHERE end_unix_ns IS NULL "
    "AND capture = (SELECT max(capture) FROM captures)"
)
# Who somebody is was told once, and may be asked at any time: the latest stay.
_IDENTITIES = 1_024
_FIRST_IDENTITY = f"SELECT seq FROM identities ORDER BY seq DESC LIMIT 1 OFFSET {_IDENTITIES - 1}"
_STOOD_AT = "SELECT wait FROM thread_time_totals WHERE chunk < :oldest"
_HELD_ON = "SELECT cuda_device FROM memory_totals WHERE chunk < :oldest AND cuda_device IS NOT NULL"
_RANKS_ON = (
    "SELECT cuda_device FROM communicator_totals WHERE chunk < :oldest AND cuda_device IS NOT NULL"
)
_HELD_AT = (
    "SELECT program_stack FROM memory_holder_totals WHERE chunk < :oldest "
    "AND program_stack IS NOT NULL"
)
_FORGET = (
    "DELETE FROM batches WHERE chunk < :oldest",
    "DELETE FROM writers WHERE last_chunk < :oldest AND writer < (SELECT max(writer) FROM writers)",
    "DELETE FROM captures WHERE last_chunk < :oldest",
    f"DELETE FROM series WHERE last_chunk < :oldest AND process NOT IN ({_ALIVE})",
    f"DELETE FROM processes WHERE last_chunk < :oldest AND process NOT IN ({_ALIVE})",
    "DELETE FROM probes WHERE capture NOT IN (SELECT capture FROM captures)",
    "DELETE FROM buckets WHERE capture NOT IN (SELECT capture FROM captures)",
    "DELETE FROM identities WHERE seq <= :last_seq AND seq < (SELECT max(seq) FROM captures)",
    f"DELETE FROM identities WHERE seq <= :last_seq AND seq < ({_FIRST_IDENTITY})",
    # A reader of a chunk needs what everything stood at when it began: the latest that is
    # older.
    *(
        f"DELETE FROM {table} AS t WHERE chunk < :oldest AND ({key} NOT IN (SELECT {key} FROM {owner}) "
        f"OR EXISTS (SELECT 1 FROM {table} AS later WHERE later.{key} = t.{key} "
        "AND later.chunk > t.chunk AND later.chunk < :oldest))"
        for table, key, owner in (
            ("aggregate_totals", "series", "series"),
            ("thread_time_totals", "process", "processes"),
            ("memory_totals", "process", "processes"),
            ("memory_holder_totals", "process", "processes"),
            ("communicator_totals", "process", "processes"),
        )
    ),
    f"DELETE FROM devices WHERE last_chunk < :oldest AND cuda_device NOT IN ({_HELD_ON} UNION {_RANKS_ON})",
    f"DELETE FROM stacks WHERE last_chunk < :oldest AND stack NOT IN ({_HELD_AT})",
    f"DELETE FROM waits WHERE last_chunk < :oldest AND wait NOT IN ({_STOOD_AT})",
)


class Eviction:
    """Sees to it that the store of a writer's connection does not outgrow its limits."""

    def __init__(self, connection: sqlite3.Connection, path: Path, limits: StoreLimits) -> None:
        self._connection = connection
        self._log = path.with_name(f"{path.name}-wal")
        self._limits = limits
        self._page_bytes = self._ask("page_size")
        most_pages = limits.file_bytes // self._page_bytes
        # The engine's own limit, should all else fail.
        connection.execute(f"PRAGMA max_page_count = {most_pages}")

    def used_bytes(self) -> int:
        """Return what the content takes in the file."""
        return (self._ask("page_count") - self._ask("freelist_count")) * self._page_bytes

    def make(self, need_bytes: int, chunk: int) -> None:
        """
        Remove what is too old, and what is in the way of so many bytes for a chunk, which stays.

        Each chunk goes in a transaction of its own: all that it took passes through the log.

        Raises:
            NoRoomError: There is nothing left to remove, or a reader keeps the log.
        """
        if self._log_is_full():
            raise NoRoomError(READER)
        oldest_unix_ns = time.time_ns() - round(self._limits.max_age_s * _NS_PER_S)
        most_bytes = self._limits.file_bytes - need_bytes - _SLACK_BYTES
        oldest = (
            "SELECT chunk, first_seq, last_seq, written_unix_ns FROM chunks WHERE chunk < ? "
            "ORDER BY chunk LIMIT 1"
        )
        while found := self._connection.execute(oldest, (chunk,)).fetchone():
            number, first_seq, last_seq, written_unix_ns = found
            if written_unix_ns >= oldest_unix_ns and self.used_bytes() <= most_bytes:
                break
            self._connection.execute("BEGIN IMMEDIATE")
            self._remove(number, first_seq, last_seq)
            self._connection.execute("COMMIT")
        if self.used_bytes() > most_bytes:
            raise NoRoomError(TOO_SMALL)

    def _log_is_full(self) -> bool:
        if self._log_bytes() <= self._limits.log_bytes:
            return False
        # Without waiting for the reader.
        timeout_ms = self._ask("busy_timeout")
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
        return self._log_bytes() > self._limits.log_bytes

    def give_back(self) -> None:
        """Let the file shrink a little, where much of it is free. Outside transactions."""
        free, pages = self._ask("freelist_count"), self._ask("page_count")
        most = min(_VACUUMED_PAGES, self._limits.emptied_bytes // self._page_bytes)
        if free > most and free > pages // _FREE_SHARE:
            # It gives a row without columns for each page, of which execute() takes the first.
            self._connection.executescript(f"PRAGMA incremental_vacuum({most})")

    def _remove(self, chunk: int, first_seq: int, last_seq: int) -> None:
        for table in NUMBERED:
            self._connection.execute(
                f"DELETE FROM {table.name} WHERE seq BETWEEN ? AND ?",
                (first_seq, last_seq),
            )
        self._connection.execute("DELETE FROM chunks WHERE chunk = ?", (chunk,))
        for statement in _FORGET:
            self._connection.execute(statement, {"oldest": chunk + 1, "last_seq": last_seq})

    def _log_bytes(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _ask(self, pragma: str) -> int:
        (value,) = self._connection.execute(f"PRAGMA {pragma}").fetchone()
        return int(value)
