"""Rows of threads' steps in a document."""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final, NamedTuple

from otel_gpu import wire
from otel_gpu.enrich.identity.identities import Program
from otel_gpu.explain.chains import Cause, Chain
from otel_gpu.explain.slow_steps import ThreadChains, causes_of_step, chains_by_thread
from otel_gpu.formatting.field_types import Signed, SpanId, TraceId, one_of
from otel_gpu.state.steps import SlowStep, StepSeries, ThreadSteps

MAX_ROWS: Final = 256
"""In a document: those with most time."""

UNKNOWN: Final = "unknown"
SOURCES: Mapping[int, str] = {wire.STEP_REPORTED: "program", wire.STEP_FOUND: "agent"}
"""Sources of steps, by ``enum step_source``."""
KINDS: Mapping[int, str] = {
    number: name.removeprefix("step_") for number, name in wire.STEP_KIND_NAMES.items()
}
"""Kinds of steps, by ``enum step_kind``."""


class SlowStepRow(NamedTuple):
    """
    A step that took far longer than usual.

    Attributes:
        number: The program's number; for a found step, from 1.
        usual_ns: The median of the steps before it.
        loader_wait_ns: Time in it spent waiting for the data loader, as the program reports.
        trace_id: The trace of the program's own span of it; empty: it has none.
        span_id: The program's own span of it; empty: it has none.
        causes: Causes of the excess, the longest first.
        unexplained_ns: Excess without a cause.
    """

    number: int
    start_unix_ns: int
    duration_ns: int
    usual_ns: int
    loader_wait_ns: int
    trace_id: TraceId
    span_id: SpanId
    causes: tuple[Cause, ...]
    unexplained_ns: int


class StepTotals(NamedTuple):
    """
    Steps of one kind, made by one thread.

    Attributes:
        name: The program's name of them; can be empty.
        source: ``program``: it reports them, or ``agent``: found as a period of its calls.
        confidence: From 0 to 1.
        steps: The number of steps.
        variation: Interquartile range divided by the median.
        loader_wait_ns: Sum over all steps, as the program reports.
        slow_steps: The number of steps that took twice as long as the median of those before them.
        slow: Those that lost most.
    """

    process: Program
    tid: Signed
    comm: str
    kind: Annotated[str, one_of(KINDS.values())]
    name: str
    source: Annotated[str, one_of([*SOURCES.values(), UNKNOWN])]
    confidence: float
    steps: int
    sum_ns: int
    p50_ns: int
    p99_ns: int
    max_ns: int
    variation: float
    loader_wait_ns: int
    slow_steps: int
    slow: tuple[SlowStepRow, ...]


def step_rows(
    steps: ThreadSteps, chains: Iterable[Chain], chosen: Collection[int] = ()
) -> tuple[StepTotals, ...]:
    """
    Return the rows of steps.

    Args:
        steps: The counted steps.
        chains: Slow calls and gaps, and their causes.
        chosen: Only threads of these pids; empty: all.
    """
    found = [one for one in steps.series() if not chosen or one.process.pid in chosen]
    by_thread = chains_by_thread(chains)
    return tuple(_row(one, by_thread) for one in found[:MAX_ROWS])


def _row(series: StepSeries, chains: ThreadChains) -> StepTotals:
    p50_ns, p99_ns = series.quantiles_ns(0.5, 0.99)
    return StepTotals(
        process=series.process,
        tid=series.tid,
        comm=series.comm,
        kind=KINDS.get(series.kind, UNKNOWN),
        name=series.name,
        source=SOURCES.get(series.source, UNKNOWN),
        confidence=series.confidence_percent / 100,
        steps=series.steps,
        sum_ns=series.sum_ns,
        p50_ns=p50_ns,
        p99_ns=p99_ns,
        max_ns=series.max_ns,
        variation=series.variation,
        loader_wait_ns=series.loader_wait_ns,
        slow_steps=series.slow_steps,
        slow=tuple(_slow(one, chains) for one in series.slow),
    )


def _slow(step: SlowStep, chains: ThreadChains) -> SlowStepRow:
    activity = step.activity
    event = activity.event
    return SlowStepRow(
        event.number,
        activity.start_unix_ns,
        step.duration_ns,
        step.usual_ns,
        min(event.loader_wait_ns, step.duration_ns),
        event.trace_id,
        event.span_id,
        *causes_of_step(step, chains),
    )
