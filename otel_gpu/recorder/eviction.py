"""
Eviction of the oldest chunks, to free space for new rows.

A chunk is removed from all tables in one transaction, with the rows that only it referred to. Free
pages are reused, so a full store keeps its size.
"""

import sqlite3
import time
from pathlib import Path

from otel_gpu.recorder.limits import StoreLimits
from otel_gpu.recorder.problems import READER, TOO_SMALL, NoSpaceError
from otel_gpu.recorder.tables.tables import NUMBERED

_NS_PER_S = 1_000_000_000
# Inner pages and partly filled pages, beside the content.
_SLACK_BYTES = 128 << 10
_VACUUMED_PAGES = 512
_FREE_SHARE = 4

# A living process can have rows again, however long it had none.
_ALIVE = (
    "SELECT process FROM processes WHERE end_unix_ns IS NULL "
    "AND capture = (SELECT max(capture) FROM captures)"
)
# An identity is recorded once and can be needed at any time, so the latest are kept.
_IDENTITIES = 1_024
_FIRST_IDENTITY = f"SELECT seq FROM identities ORDER BY seq DESC LIMIT 1 OFFSET {_IDENTITIES - 1}"
_TOTAL_WAITS = "SELECT wait FROM thread_time_totals WHERE chunk < :oldest"
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
    # A reader of a chunk needs the totals at its start: the latest ones before it.
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
    f"DELETE FROM waits WHERE last_chunk < :oldest AND wait NOT IN ({_TOTAL_WAITS})",
)


class Eviction:
    """Keeps the store of a writer's connection within its limits."""

    def __init__(self, connection: sqlite3.Connection, path: Path, limits: StoreLimits) -> None:
        self._connection = connection
        self._log = path.with_name(f"{path.name}-wal")
        self._limits = limits
        self._page_bytes = self._ask("page_size")
        most_pages = limits.file_bytes // self._page_bytes
        # SQLite's own limit, as a last resort.
        connection.execute(f"PRAGMA max_page_count = {most_pages}")

    def used_bytes(self) -> int:
        """Return the bytes of used pages in the file."""
        return (self._ask("page_count") - self._ask("freelist_count")) * self._page_bytes

    def free(self, need_bytes: int, chunk: int) -> None:
        """
        Remove chunks that are too old, and further ones until ``need_bytes`` fit, but not ``chunk``.

        Each chunk is removed in its own transaction, because all its bytes pass through the log.

        Raises:
            NoSpaceError: No chunk is left to remove, or a reader keeps the log from being emptied.
        """
        if self._log_is_full():
            raise NoSpaceError(READER)
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
            raise NoSpaceError(TOO_SMALL)

    def _log_is_full(self) -> bool:
        if self._log_bytes() <= self._limits.log_bytes:
            return False
        # Do not wait for the reader.
        timeout_ms = self._ask("busy_timeout")
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")
        return self._log_bytes() > self._limits.log_bytes

    def shrink(self) -> None:
        """Shrink the file by up to 512 pages if over a quarter is free. Call outside transactions."""
        free, pages = self._ask("freelist_count"), self._ask("page_count")
        most = min(_VACUUMED_PAGES, self._limits.emptied_bytes // self._page_bytes)
        if free > most and free > pages // _FREE_SHARE:
            # It returns a row without columns per page; execute() would only fetch the first.
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
