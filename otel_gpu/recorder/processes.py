"""
State of a writer for each process: its number, those of its series, and their totals.

It extends an account of the time accounting. Accounts are evicted some time after the process ended,
or when there are too many. Then only the number is kept, for late records.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import ProcessKey, Program, key_of
from otel_gpu.limits.recent import Fifo
from otel_gpu.state.time_accounting import MAX_SERIES, Account, Accounts
from otel_gpu.wire.readings import SeriesKey

MAX_ENDED = 2_048
"""Series of ended processes to keep."""
MAX_NUMBERS = 4_096
"""Numbers of evicted processes to remember."""


class End(NamedTuple):
    """When a process ended, and its exit code; None: it lives, or that is unknown."""

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
    The account of one program.

    Attributes:
        number: Its number in the store; ``numbers``: those of its series.
        is_followed: False: it was evicted once, so its totals are unknown.
        chunk: The latest chunk that refers to it.
        times_chunk: The latest chunk that added to its thread times.
        named: The program as last written to the store.
    """

    number: int
    is_followed: bool
    end: End
    chunk: int = -1
    times_chunk: int = -1
    named: Program | None = None
    numbers: dict[SeriesKey, Referred] = field(default_factory=dict)


class Processes(Accounts[StoredProcess]):
    """The processes of one capture; ``next_number`` returns the number for a new one."""

    def __init__(self, next_number: Callable[[], int]) -> None:
        super().__init__(self._open, most=MAX_SERIES, most_ended=MAX_ENDED, give_up=self._remember)
        self._next_number = next_number
        self._gone: Fifo[ProcessKey, tuple[int, End]] = Fifo(MAX_NUMBERS)

    def _open(self, program: Program) -> StoredProcess:
        gone = self._gone.pop(key_of(program), None)
        if gone is None:
            return StoredProcess(program, number=self._next_number(), is_followed=True, end=End())
        # Its readings are totals since its start, and the previous total is forgotten.
        return StoredProcess(program, number=gone[0], is_followed=False, end=gone[1])

    def _remember(self, process: StoredProcess, has_ended: bool) -> None:  # noqa: ARG002 -- as called
        process.is_followed = False
        self._gone[key_of(process.process)] = (process.number, process.end)
