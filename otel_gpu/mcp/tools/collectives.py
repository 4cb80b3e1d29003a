"""``get_collectives``: progress of ranks, and which of them wait for which."""

from typing import Annotated

from otel_gpu.mcp.answers import present, sanitize
from otel_gpu.mcp.arguments import rows
from otel_gpu.mcp.captures import ServedDocument
from otel_gpu.mcp.tool import Answer, table, tool
from otel_gpu.report.nccl.types import CommunicatorReport, Rank
from otel_gpu.report.wording.formats import describe_where

_MAX_COMMUNICATORS = 6
_RANK = (
    "rank pid service device called completed pending pending_us waited_for_others_us "
    "kept_others_waiting_us completions in_flight_us captured failed async_error is_late has_left "
    "calls last where"
)
_FIGURES = ("id", "rank_count", "absent", "number", "algorithm_bytes_per_s", "bus_bytes_per_s")
_NOTHING = "No NCCL communicator was seen: this capture has no progress of ranks."


@tool("Collectives")
def get_collectives(
    served: ServedDocument, limit: Annotated[int, rows(100, "ranks of each communicator")] = 16
) -> Answer:
    """
    Progress of this host's ranks in their NCCL collectives, hanging ones first. The n-th call of a
    rank belongs to the n-th call of all ranks, so numbers compare. state: running, rank_missing
    (waiting names the ranks that did not call what others wait for), ranks_disagree (with what each
    requested), queued (all ranks on this host called it, none has seen it complete: long work, or
    the device, the network or a rank elsewhere), unknown (created before the capture: numbers
    cannot be compared). Of each rank: called and completed (the last number that its program has
    seen complete), pending_us, waited_for_others_us (others had not called what it had),
    kept_others_waiting_us (the straggler has most), in_flight_us of completions (from the call
    until its program saw the completion), calls by operation with bytes, last: its latest request,
    where: the code of its oldest pending call, else of its last one (only dumps have it). The
    reason why a rank was late is in get_causal_chains: a cause collective_wait has its causes in
    of_which. Bandwidths are lower bounds. absent ranks are on other hosts or not watched. null: not
    known.
    """
    shown = served.document.communicators[:_MAX_COMMUNICATORS]
    return {
        "communicators": [_communicator(row, limit) for row in shown],
        **present(more_communicators=len(served.document.communicators) - len(shown)),
        "note": "" if shown else _NOTHING,
    }


def _communicator(row: CommunicatorReport, limit: int) -> dict[str, object]:
    return {
        **{name: getattr(row, name) for name in _FIGURES},
        "state": row.state.value,
        "waiting": sanitize(row.waiting),
        "ranks": table(
            row.ranks,
            _RANK,
            limit,
            calls=lambda rank: {one.operation: [one.calls, one.size_bytes] for one in rank.calls},
            last=lambda rank: sanitize(rank.last),
            pending_us=_pending_us,
            where=lambda rank: sanitize(describe_where(rank.where)) if rank.where else None,
        ),
    }


def _pending_us(rank: Rank) -> float | None:
    return None if rank.pending_ns is None else rank.pending_ns / 1_000
