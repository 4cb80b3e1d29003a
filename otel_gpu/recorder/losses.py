"""Why rows do not reach a store, as ``losses`` has it; what a disk does has words of its own."""

from collections.abc import Iterator, Mapping

BUSY = "disk_too_slow"
"""The disk took so long that no more rows could be kept in memory."""
TOO_LARGE = "too_large"
"""A document was larger than any should be."""
TOO_MANY_SERIES = "too_many_series"
"""More series than are followed at a time."""
NOT_FOLLOWED = "process_not_followed"
"""Readings of processes that were given up: long after their end, or with too many others."""
NAMES_BUSY = "names_disk_too_slow"
"""As BUSY, of rows that others refer to: names, stacks, totals."""
TRACE_TOO_LARGE = "trace_too_large"
"""What a trace of another tool is made of, where it would not fit into the store."""
CHAINS = "chains_over_"
"""Effects whose causes are not looked for, or not kept, as ``explain`` decides; its reason follows."""
FAILED = "internal_error"
"""An error of our own."""
KILLED = "writer_killed"
"""In the memory of a writer when it was killed, at most."""


def describe_losses(lost: Mapping[str, int]) -> Iterator[str]:
    """
    Yield what a reader is to know of rows that did not reach a store, without full stops.

    Causal chains are none: of what lost least causes are not looked for, and ``explain`` finds them.
    """
    rows = [
        f"{reason} {n:,}" for reason, n in sorted(lost.items()) if not reason.startswith(CHAINS)
    ]
    if rows:
        yield f"rows that did not reach the store: {', '.join(rows)}"
