"""``get_collectives``: how far ranks are, and who waits for whom."""

from typing import Annotated, Any

from otel_gpu.mcp.answers import inert, present
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
_NOTHING = "No communicator of NCCL was seen: nothing in this capture says how far ranks are."


@tool("Collectives")
def get_collectives(
    study: ServedDocument, limit: Annotated[int, rows(100, "ranks of each communicator")] = 16
) -> Answer:
    """
    How far the ranks on this host are with their collectives of NCCL, those that hang first. The
    n-th call of a rank belongs to the n-th of all ranks, so numbers compare. state: running,
    rank_missing (waiting names who did not call what others wait for), ranks_disagree (with what
    each asked for), queued (all on this host called it, none knows it to be done: long work, or
    the device, the network or a rank elsewhere), unknown (made before the capture: numbers cannot
    be compared). Of each rank: called and completed (up to which number its program knows them to
    be done), pending_us, waited_for_others_us (others had not called what it had),
    kept_others_waiting_us (the straggler has most), in_flight_us of completions (from the call
    until its program knew), calls by operation with bytes, last: what it asked for, where: its code
    of the oldest pending call, else of the last (dumps alone say it). Why a rank was late is in
    get_causal_chains: a cause collective_wait has its causes of_which. Bandwidths are at least what
    is said. absent ranks are on other hosts or not watched. null is not known.
    """
    shown = study.document.communicators[:_MAX_COMMUNICATORS]
    return {
        "communicators": [_communicator(row, limit) for row in shown],
        **present(more_communicators=len(study.document.communicators) - len(shown)),
        "note": "" if shown else _NOTHING,
    }


def _communicator(row: CommunicatorReport, limit: int) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in _FIGURES},
        "state": row.state.value,
        "waiting": inert(row.waiting),
        "ranks": table(
            row.ranks,
            _RANK,
            limit,
            calls=lambda rank: {one.operation: [one.calls, one.size_bytes] for one in rank.calls},
            last=lambda rank: inert(rank.last),
            pending_us=_pending_us,
            where=lambda rank: inert(describe_where(rank.where)) if rank.where else None,
        ),
    }


def _pending_us(rank: Rank) -> float | None:
    return None if rank.pending_ns is None else rank.pending_ns / 1_000
