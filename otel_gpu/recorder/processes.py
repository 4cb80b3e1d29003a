"""
What a writer keeps of each process: its number, those of its series, and what they stand at.

All of it is in one account of the ledger's, which is given up a while after the process ended, or
when there are too many. What is left then is the number, for records that come late.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.time_accounting import MAX_SERIES, Account, Accounts
from otel_gpu.wire.readings import SeriesKey

MAX_ENDED = 2_048
"""Series that are followed of processes that ended."""
MAX_NUMBERS = 4_096
"""Numbers remembered of processes that are not followed any more."""


class End(NamedTuple):
    """When a process ended, and how; None: it lives, or that is not known."""

    unix_ns: int | None = None
    exit_code: int | None = None


class Referred(NamedTuple):
    """The number of a series, the latest chunk that refers to it, and the number of its device."""

    number: int
    chunk: int
    device: int | None


@dataclass(slots=True, eq=False, kw_only=True)
class StoredProcess(Account):
    """
    One process image.

    Attributes:
        number: In the store; ``numbers``: those of its series.
        is_followed: False: it was given up once, so what it stands at is not known.
        chunk: The latest chunk that refers to it.
        times_chunk: The latest chunk that added to its time account.
        named: What the store knows of it.
    """

    number: int
    is_followed: bool
    end: End
    chunk: int = -1
    times_chunk: int = -1
    named: Program | None = None
    numbers: dict[SeriesKey, Referred] = field(default_factory=dict)


class Processes(Accounts[StoredProcess]):
    """The processes of one capture; ``next_number`` gives the number of a new one."""

    def __init__(self, next_number: Callable[[], int]) -> None:
        super().__init__(self._open, most=MAX_SERIES, most_ended=MAX_ENDED, give_up=self._remember)
        self._next_number = next_number
        self._gone: Fifo[ProcessKey, tuple[int, End]] = Fifo(MAX_NUMBERS)

    def _open(self, image: Program) -> StoredProcess:
        gone = self._gone.pop(key_of(image), None)
        if gone is None:
            return StoredProcess(image, number=self._next_number(), is_followed=True, end=End())
        # It counts from its beginning, and what it had counted by then is not known any more.
        return StoredProcess(image, number=gone[0], is_followed=False, end=gone[1])

    def _remember(self, process: StoredProcess, has_ended: bool) -> None:  # noqa: ARG002 -- as called
        process.is_followed = False
        self._gone[key_of(process.process)] = (process.number, process.end)
