"""What a reader of an import has to know, as sentences."""

from collections.abc import Iterator, Mapping, Sequence

from otel_gpu.importers.ingero.truths import Hidden, Minute

_NS_PER_MS = 1e6
_NS_PER_S = 1e9
_MOSTLY = 0.5


def write_notes(hidden: Mapping[Minute, Hidden], *, sessions: int) -> Iterator[str]:
    """Yield what is true of every import from this tool, and what is of this one."""
    yield (
        "Imported from Ingero. It keeps rows of the first ten seconds, of synchronizations, and of "
        "calls that took three times the running median: percentiles and what is usual are of "
        "these rows, so slow calls weigh more than they should. Errors are those of rows."
    )
    yield (
        "Of time off the CPU it is known how long it was, and neither whether the thread waited for "
        "a CPU or for something else nor who was to blame; of most threads it is not known at all. "
        "What Ingero lost is not known either."
    )
    if not hidden:
        yield "There are no counts beside the rows: calls that have no row are missing."
    if count := sum(one.overwritten > 0 for one in hidden.values()):
        yield (
            f"Of {count:,} counts of a minute the beginning was written over by the tool; what has "
            "rows of it was added again, and the rest is lost: these counts are too small."
        )
    if count := sum(one.lost_rows for one in hidden.values()):
        yield f"{count:,} rows that the tool counts as stored are not there."
    if sessions > 1:
        yield f"The file holds {sessions:,} sessions of the tool, taken for one."


def describe_bound(
    process: str, seen_ns: int, calls_ns: int, off_cpu_ns: int | None, children: Sequence[str]
) -> str:
    """
    Return what bounds a process, as far as the time tells in which its threads were seen.

    ``calls_ns`` is at most how much of it was inside calls, ``off_cpu_ns`` how much of it
    was off the CPU; None: of some of these threads the tool does not see that.
    """
    share = min(1.0, calls_ns / seen_ns)
    off_cpu = "of the rest it is not known how much was off the CPU"
    if off_cpu_ns is not None:
        off_cpu = f"{_seconds(off_cpu_ns)} of it was off the CPU"
    text = (
        f"What bounds {process} is not known for certain: in the "
        f"{_seconds(seen_ns)} in which its threads that call CUDA were seen they were inside "
        f"the calls that Ingero traces for {_seconds(calls_ns)} ({100 * share:.0f} %) at most; "
        f"{off_cpu}. What they did otherwise was not recorded."
    )
    if share < _MOSTLY:
        text += (
            " Unless the GPU was given work by calls that Ingero does not trace, it was starved by "
            "what the program did between its calls."
        )
    if children:
        text += f" Meanwhile it started {', '.join(children)}."
    return text


def _seconds(time_ns: int) -> str:
    if time_ns < _NS_PER_S:
        return f"{time_ns / _NS_PER_MS:.3g} ms"
    return f"{time_ns / _NS_PER_S:.3g} s"
