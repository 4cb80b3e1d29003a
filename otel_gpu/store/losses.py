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
"""Causal chains that are not kept, as ``explain.budget`` decides; its reason follows."""
FAILED = "internal_error"
"""An error of our own."""
KILLED = "writer_killed"
"""In the memory of a writer when it was killed, at most."""


def describe_losses(lost: Mapping[str, int]) -> Iterator[str]:
    """Yield what a reader is to know of rows that did not reach a store, without full stops."""
    chains = sum(count for reason, count in lost.items() if reason.startswith(CHAINS))
    if chains:
        yield (
            f"the causes of {chains:,} slow calls and gaps were left out, those that lost least: "
            "explain.chains_per_second bounds how many are kept of one second. Their calls are "
            "counted, and explain --store finds these causes again"
        )
    rows = [
        f"{reason} {n:,}" for reason, n in sorted(lost.items()) if not reason.startswith(CHAINS)
    ]
    if rows:
        yield f"rows that did not reach the store: {', '.join(rows)}"
