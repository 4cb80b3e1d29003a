"""Reasons in ``losses`` for rows that did not reach a store; ``problems`` has those of the disk."""

from collections.abc import Iterator, Mapping

BUSY = "disk_too_slow"
"""The disk was too slow, and memory for waiting rows was full."""
TOO_LARGE = "too_large"
"""A document was larger than the limit of a column."""
TOO_MANY_SERIES = "too_many_series"
"""More series than the limit."""
NOT_FOLLOWED = "process_not_followed"
"""Readings of evicted processes: long after their end, or among too many."""
NAMES_BUSY = "names_disk_too_slow"
"""As BUSY, for rows that others refer to: names, stacks, totals."""
TRACE_TOO_LARGE = "trace_too_large"
"""Rows of a trace of another tool that does not fit into the store."""
CHAINS = "chains_over_"
"""Effects without stored causes, by a limit of ``explain``, whose reason follows."""
FAILED = "internal_error"
"""An error of our own."""
KILLED = "writer_killed"
"""Maximum number of rows in the memory of a killed writer."""


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
