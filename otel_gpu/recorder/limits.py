"""How much a store may hold, and how it is written."""

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
        max_bytes: Of the file and its log together.
        max_age_s: Chunks that were written longer ago are removed.
        batch_rows: Rows that are written at once.
        batch_interval_s: After how long fewer rows are written, while live.
        waiting_rows: Most rows in memory while the disk is busy; more are lost, and
            counted.
        waiting_bytes: Likewise, of what they will take in the file.
        chunk_span_ns: Time that a chunk covers.
        chunk_rows: Rows that end a chunk sooner.
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
        """What the log may take, when a reader keeps it from being emptied."""
        return self.max_bytes // _LOG_SHARE

    @property
    def emptied_bytes(self) -> int:
        """At what size the log is emptied into the file."""
        return min(_MAX_EMPTIED_BYTES, self.log_bytes // 4)

    @property
    def file_bytes(self) -> int:
        """What the file may take, so that there is room for the log."""
        return self.max_bytes - self.log_bytes

    @property
    def chunk_bytes(self) -> int:
        """Content that ends a chunk sooner: to remove it, it goes through the log."""
        return self.log_bytes // 2

    @property
    def pending_bytes(self) -> int:
        """Rows that others refer to and that wait for the disk to have room."""
        return min(_MAX_PENDING_BYTES, self.file_bytes // 4)

    @property
    def batch_bytes(self) -> int:
        """Content that ends a batch sooner."""
        return min(_MIB, self.emptied_bytes // 2)
