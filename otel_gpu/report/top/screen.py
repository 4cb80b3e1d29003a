"""What there is to see on one screen, as the board tells it and before it is drawn."""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.chains import Incident
from otel_gpu.report.document import ApiTotals, Bound, TimeNode, TimeState
from otel_gpu.report.top.open_calls import OpenCallRow


class ApiLine(NamedTuple):
    """
    One API of one process image: since the start, and over the last interval.

    ``now`` is None where it was not called in the interval. Rates are per second of the
    interval.
    """

    total: ApiTotals
    now: ApiTotals | None
    calls_per_s: float
    bytes_per_s: float


class ProcessLine(NamedTuple):
    """
    What bounds one process image: since the start, and over the last interval.

    ``budget_ns`` is where the time of its feeder threads went over the interval, or since
    the start where the interval has none; ``time_tree`` says who they waited for.
    """

    process: Program
    has_ended: bool
    verdict: Bound
    verdict_now: Bound
    budget_ns: Mapping[TimeState, int]
    time_tree: TimeNode | None = None


class IncidentLine(NamedTuple):
    """An incident; ``is_forming`` while more may be added to it."""

    incident: Incident
    is_forming: bool


class AgentUse(NamedTuple):
    """What the agent itself uses: a share of one CPU, and memory; None where not known."""

    cpu_share: float | None = None
    rss_bytes: int | None = None


class TopView(NamedTuple):
    """Everything on one screen; times in nanoseconds."""

    host: str
    now_unix_ns: int
    age_ns: int
    interval_ns: int
    agent: AgentUse
    processes: tuple[ProcessLine, ...]
    apis: tuple[ApiLine, ...]
    incidents: tuple[IncidentLine, ...]
    open_calls: tuple[OpenCallRow, ...]
    losses: Mapping[str, int]
    left_out: int
