"""Rows of communicators and their ranks in a document."""

from typing import NamedTuple

from otel_gpu.enrich.identity.identities import CallStack, Program
from otel_gpu.formatting.field_types import Hex64, Signed
from otel_gpu.state.code_lines import Where
from otel_gpu.state.nccl.rank_positions import RankState

__all__ = ["CommunicatorReport", "OperationCalls", "Rank", "RankState"]


class OperationCalls(NamedTuple):
    """
    Calls of one operation on a communicator, by one rank.

    Attributes:
        size_bytes: Elements times the size of their type, as passed to the calls.
    """

    operation: str
    calls: int
    size_bytes: int


class Rank(NamedTuple):
    """
    One rank of a communicator on this host; None: not known.

    Attributes:
        process: Its process.
        rank: Its number in the job, or in this communicator if that is not known of all ranks.
        device: The process's device index.
        called: The number of the last collective that it called.
        completed: The last number that its program has seen complete.
        pending: Collectives that it called and has not seen complete.
        pending_ns: The age of the oldest pending one, as known.
        calls: Collectives, sends and receives in the window, by operation, the most bytes first.
        captured: Calls in the window that became part of a graph; replays are not seen.
        failed: Calls in the window that failed.
        completions: Collectives of the window that its program saw complete.
        in_flight_ns: Sum of the times from their calls until then.
        waited_for_others_ns: Time in which others had not called what it had.
        kept_others_waiting_ns: Time that others waited for it, summed over them.
        last: The request of the last collective; empty: it called none.
        async_error: The last ``ncclResult_t`` that its program received asynchronously; 0: none.
        is_late: Whether it was created before it was watched, so that numbers cannot be compared.
        has_left: Whether it was aborted or destroyed, or its process ended.
        stack: Where it called the oldest pending collective, else the last one.
        where: The line of the program's own code in that stack.
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
    async_error: Signed
    is_late: bool
    has_left: bool
    stack: CallStack | None = None
    where: Where | None = None


class CommunicatorReport(NamedTuple):
    """
    A communicator's ranks on this host; None: not known.

    Attributes:
        id: The same on all ranks.
        rank_count: Count of its ranks, on all hosts.
        absent: Count of ranks that are not on this host, or not watched.
        state: The state of its ranks at the end. ``queued``: all ranks on this host called, and the
            collective is not known to be complete; ``unknown``: numbers cannot be compared.
        number: Of the first collective that is not complete; 0: none is known.
        waiting: Which ranks wait for which, in words; empty: no known wait.
        algorithm_bytes_per_s: Bytes of its collectives divided by their time in flight, of the rank
            with the shortest time. A lower bound: they may have been queued behind others.
        bus_bytes_per_s: The same with nccl-tests' factors, for comparison with the speed of links.
        ranks: Those on this host, in order.
    """

    id: Hex64 | None
    rank_count: int | None
    absent: int | None
    state: RankState
    number: int
    waiting: str
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    ranks: tuple[Rank, ...]
