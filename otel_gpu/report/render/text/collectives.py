"""Communicators and their ranks, for text and page: a line for each, and a table of its ranks."""

from typing import Final

from otel_gpu.report.nccl.types import CommunicatorReport, Rank, RankState
from otel_gpu.report.render import fields
from otel_gpu.report.wording.formats import count_of, format_duration, format_size, printable

MOST_COMMUNICATORS: Final = 10
MOST_RANKS: Final = 16

_STATES = {
    RankState.RUNNING: "runs",
    RankState.RANK_MISSING: "a rank is missing",
    RankState.RANKS_DISAGREE: "ranks disagree",
    RankState.QUEUED: "all called, none is known to be done",
    RankState.UNKNOWN: "made before the capture began, or numbers that do not fit",
}


def headline(row: CommunicatorReport) -> str:
    """Return a communicator's id, ranks, state and bandwidth in a line."""
    name = f"communicator {row.id}" if row.id else "a communicator of unknown identity"
    count = count_of(row.rank_count, "rank") if row.rank_count else count_of(len(row.ranks), "rank")
    absent = f", {row.absent:,} not on this host or not watched" if row.absent else ""
    rate = ""
    if row.algorithm_bytes_per_s and row.bus_bytes_per_s:
        algorithm, bus = format_size(row.algorithm_bytes_per_s), format_size(row.bus_bytes_per_s)
        rate = f"; at least {algorithm}/s, on the bus {bus}/s"
    return f"{name}: {count}{absent}; {_STATES[row.state]}{rate}"


def is_hanging(row: CommunicatorReport) -> bool:
    """Return whether its ranks are known to be stuck."""
    return row.state in (RankState.RANK_MISSING, RankState.RANKS_DISAGREE)


def _name(row: Rank) -> str:
    marks = [
        *(["left"] if row.has_left else []),
        *(["made before"] if row.is_late else []),
        *([f"error {row.async_error}"] if row.async_error else []),
    ]
    rank = "?" if row.rank is None else f"{row.rank:,}"
    return f"{rank} ({', '.join(marks)})" if marks else rank


def _bytes(row: Rank) -> int:
    return sum(one.size_bytes for one in row.calls)


def _operations(row: Rank) -> str:
    return ", ".join(f"{one.calls:,} {printable(one.operation)}" for one in row.calls)


def _where(row: Rank) -> str:
    where = row.where
    if where is None:
        return ""
    file = where.file.rpartition("/")[2]
    return printable(f"{file}:{where.line} {where.function}" if file else where.function)


RANKS: Final = (
    fields.text("rank", _name),
    fields.PROCESS,
    fields.figure("called", "called", fields.in_full, about="Collectives so far"),
    fields.figure("done", "completed", fields.in_full, about="As its program learned"),
    fields.figure("pending", "pending", fields.in_full),
    fields.figure(
        "for", lambda row: row.pending_ns or 0, fields.unless_nothing, about="The oldest of these"
    ),
    fields.figure(
        "waited",
        "waited_for_others_ns",
        fields.unless_nothing,
        about="For others that had not called",
    ),
    fields.figure(
        "kept",
        "kept_others_waiting_ns",
        fields.unless_nothing,
        about="How long others waited for it, all of them together",
    ),
    fields.figure(
        "in flight",
        lambda row: row.in_flight_ns / row.completions if row.completions else 0,
        lambda mean_ns: format_duration(mean_ns) if mean_ns else "",
        about="From the call until its program knew that it is done, on average",
    ),
    fields.figure("bytes", _bytes, lambda size: format_size(size) if size else ""),
    fields.text("calls", _operations),
    fields.text("where", _where, "Where it called the oldest that is pending, else the last one"),
)
"""The columns of a table of ranks."""
