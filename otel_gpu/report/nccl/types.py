"""How far ranks are with their collectives, as a document says it: its nouns."""

from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack, Program
from otel_gpu.state.code_lines import Where
from otel_gpu.state.nccl.rank_positions import RankState

__all__ = ["CommunicatorReport", "OperationCalls", "Rank", "RankState"]


class OperationCalls(NamedTuple):
    """
    Calls of one operation on a communicator, by one rank.

    ``size_bytes`` is elements times the size of their type, as the calls have it.
    """

    operation: str
    calls: int
    size_bytes: int


class Rank(NamedTuple):
    """
    One rank of a communicator that is on this host; None: not known.

    Attributes:
        process: Its process.
        rank: Its number in the job, or in this communicator where that is not known of all ranks.
        device: As the process sees it.
        called: The number of the last collective that it called.
        completed: Up to which number its program knows them to be done.
        pending: How many it called and does not know to be done.
        pending_ns: For how long the oldest of them has been so, as far as is known.
        calls: Collectives, sends and receives in the window, by operation, the most bytes first.
        captured: Calls in the window that became part of a graph; replays are not seen.
        failed: Calls in the window that failed.
        completions: Collectives of the window that its program learned to be done.
        in_flight_ns: From their calls to when it learned that.
        waited_for_others_ns: For how long others had not called what it had.
        kept_others_waiting_ns: How long others waited for it, all of them together.
        last: What the last collective asked for; empty: it called none.
        async_error: The ``ncclResult_t`` that its program was last told; 0: none.
        is_late: Whether it was made before it was watched, so that numbers cannot be compared.
        has_left: Whether it was aborted or destroyed, or its process ended.
        stack: Where it called the oldest collective that is pending, else the last one.
        where: The line of the program's own code in that.
    """

    process: Program
    rank: int | None
    device: int | None
    called: int
    completed: int
    pending: int
    pending_ns: int | None
    calls: tuple[OperationCalls, ...]
    captured: int
    failed: int
    completions: int
    in_flight_ns: int
    waited_for_others_ns: int
    kept_others_waiting_ns: int
    last: str
    async_error: int
    is_late: bool
    has_left: bool
    stack: CallStack | None = None
    where: Where | None = None


class CommunicatorReport(NamedTuple):
    """
    A communicator, as far as it is on this host; None: not known.

    Attributes:
        id: The same on all ranks, as 16 hex digits.
        rank_count: How many ranks it has, on all hosts.
        absent: How many of them are not on this host, or not watched.
        state: How its ranks stand to each other in the end.
        number: Of the first collective that is not done; 0: none is known to be.
        waiting: Who waits for whom in it, in words; empty: nobody does, as far as is known.
        algorithm_bytes_per_s: Bytes of its collectives by the time that they were in flight, of the rank
            for which that was the shortest. It is at least so much: they may have been queued behind others.
        bus_bytes_per_s: The same with the usual factors, for comparison with what links can do.
        ranks: Those on this host, in their order.
    """

    id: str | None
    rank_count: int | None
    absent: int | None
    state: RankState
    number: int
    waiting: str
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    ranks: tuple[Rank, ...]
