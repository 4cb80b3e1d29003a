"""Reasons in ``losses`` for rows that did not reach a store."""

from collections.abc import Iterator, Mapping
from enum import StrEnum

from otel_gpu.limits.losses import LossReason


class RowLoss(StrEnum):
    """Why rows did not reach a store, or why a store failed."""

    BUSY = "disk_too_slow"
    """The disk was too slow, and memory for waiting rows was full."""
    TOO_LARGE = LossReason.TOO_LARGE
    """A document was larger than the limit of a column."""
    TOO_MANY_SERIES = "too_many_series"
    """More series than the limit."""
    NOT_FOLLOWED = "process_not_followed"
    """Readings of evicted processes: long after their end, or among too many."""
    NAMES_BUSY = "names_disk_too_slow"
    """As BUSY, for rows that others refer to: names, stacks, totals."""
    TRACE_TOO_LARGE = "trace_too_large"
    """Rows of a trace of another tool that does not fit into the store."""
    FAILED = LossReason.INTERNAL_ERROR
    KILLED = "writer_killed"
    """Maximum number of rows in the memory of a killed writer."""
    # Problems of the file; ``problems`` has their texts.
    DAMAGED = "damaged"
    DISK_FULL = "disk_full"
    DISK_ERROR = "disk_error"
    READ_ONLY = "read_only"
    CANNOT_OPEN = "cannot_open"
    NO_PERMISSION = "no_permission"
    LOCKED = "locked"
    READER_IN_THE_WAY = "reader_in_the_way"
    STORE_TOO_SMALL = "store_too_small"
    REFUSED = "refused"
    """Any other error of SQLite."""


CHAINS = "chains_over_"
"""Effects without stored causes, by a limit of ``explain``, whose reason follows."""


def describe_losses(lost: Mapping[str, int]) -> Iterator[str]:
    """
    Yield notes about rows that did not reach a store, without full stops.

    Chains are excluded: ``explain`` skips only the smallest effects, and finds them in the store again.
    """
    rows = [
        f"{reason} {n:,}" for reason, n in sorted(lost.items()) if not reason.startswith(CHAINS)
    ]
    if rows:
        yield f"rows that did not reach the store: {', '.join(rows)}"
