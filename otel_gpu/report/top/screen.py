"""The view of ``top``: the model's data for one screen."""

from collections.abc import Mapping
from typing import NamedTuple

from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.chains import Incident
from otel_gpu.report.document import ApiTotals, Bound, TimeNode, TimeState
from otel_gpu.report.top.open_calls import OpenCallRow


class ApiLine(NamedTuple):
    """
    One API of one program: since the start, and over the last interval.

    ``now`` is None if it was not called in the interval. Rates are per second of the interval.
    """

    total: ApiTotals
    now: ApiTotals | None
    calls_per_s: float
    bytes_per_s: float


class ProcessLine(NamedTuple):
    """
    One program: its verdict since the start, and over the last interval.

    ``budget_ns`` is the time of its launching threads over the interval, or since the start if the
    interval has none; ``time_tree`` has what they waited for.
    """

    process: Program
    has_ended: bool
    verdict: Bound
    verdict_now: Bound
    budget_ns: Mapping[TimeState, int]
    time_tree: TimeNode | None = None


class IncidentLine(NamedTuple):
    """An incident; ``is_forming`` while it can grow."""

    incident: Incident
    is_forming: bool


class AgentUse(NamedTuple):
    """The agent's own use: a share of one CPU, and memory; None: not known."""

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
