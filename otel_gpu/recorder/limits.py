"""Limits of a store's size, and of its batches and chunks."""

from dataclasses import dataclass

_MIB = 1 << 20
_LOG_SHARE = 16
_MAX_EMPTIED_BYTES = 4 * _MIB
_MAX_PENDING_BYTES = 16 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """
    The limits of a store.

    Attributes:
        max_bytes: Maximum size of the file and its log together.
        max_age_s: Chunks written longer ago are removed.
        batch_rows: Rows after which a batch is written.
        batch_interval_s: Live, a batch with fewer rows is written after this time.
        waiting_rows: Maximum rows in memory while the disk is busy; more are lost, and counted.
        waiting_bytes: Maximum estimated bytes of these rows in the file.
        chunk_span_ns: Time that a chunk covers.
        chunk_rows: Rows after which a chunk ends earlier.
    """

    max_bytes: int = 1 << 30
    max_age_s: float = 72 * 3_600.0
    batch_rows: int = 5_000
    batch_interval_s: float = 1.0
    waiting_rows: int = 20_000
    waiting_bytes: int = 32 * _MIB
    chunk_span_ns: int = 60_000_000_000
    chunk_rows: int = 65_536

    @property
    def log_bytes(self) -> int:
        """Maximum size of the log, when a reader keeps it from being emptied."""
        return self.max_bytes // _LOG_SHARE

    @property
    def emptied_bytes(self) -> int:
        """Size at which the log is emptied into the file."""
        return min(_MAX_EMPTIED_BYTES, self.log_bytes // 4)

    @property
    def file_bytes(self) -> int:
        """Maximum size of the file, which leaves space for the log."""
        return self.max_bytes - self.log_bytes

    @property
    def chunk_bytes(self) -> int:
        """Bytes after which a chunk ends earlier, because its removal passes through the log."""
        return self.log_bytes // 2

    @property
    def pending_bytes(self) -> int:
        """Maximum bytes of referred rows that wait to be written."""
        return min(_MAX_PENDING_BYTES, self.file_bytes // 4)

    @property
    def batch_bytes(self) -> int:
        """Bytes after which a batch is written earlier."""
        return min(_MIB, self.emptied_bytes // 2)
