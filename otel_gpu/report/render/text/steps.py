"""Steps as text: usual times, and causes of slow steps."""

from collections.abc import Callable, Iterator

from rich.text import Text

from otel_gpu.report.document import StepTotals
from otel_gpu.report.steps import UNKNOWN, SlowStepRow
from otel_gpu.report.wording.formats import (
    count_of,
    format_duration,
    format_share,
    printable,
    process_name,
)

MOST_ROWS_OF_STEPS = 10
MOST_SLOW_STEPS = 5
# Parts of a step with a smaller share are not shown.
_SHARE = 0.02
_FOUND = "agent"


def step_lines(
    rows: tuple[StepTotals, ...], causes: Callable[[SlowStepRow], Iterator[Text]]
) -> Iterator[Text]:
    """
    Yield the lines of a section about steps.

    Args:
        rows: The rows of a document.
        causes: Writes the causes of a slow step.
    """
    for row in rows[:MOST_ROWS_OF_STEPS]:
        yield Text(steps_headline(row))
        for step in row.slow[:MOST_SLOW_STEPS]:
            yield Text(f"  {step_sentence(step)}", style="bold")
            yield from causes(step)
        if row.slow_steps > MOST_SLOW_STEPS:
            yield Text(
                f"  and {row.slow_steps - MOST_SLOW_STEPS:,} more that were slow", style="dim"
            )
    if len(rows) > MOST_ROWS_OF_STEPS:
        yield Text(f"and {len(rows) - MOST_ROWS_OF_STEPS:,} more", style="dim")


def steps_headline(row: StepTotals) -> str:
    """Return the usual times in a line."""
    kind = "" if row.kind == UNKNOWN else f" of {row.kind}"
    name = f" ({printable(row.name)})" if row.name else ""
    found = f", found by their calls ({format_share(row.confidence)} sure)"
    waits = ""
    if row.loader_wait_ns > _SHARE * row.sum_ns:
        waits = (
            f", {format_share(row.loader_wait_ns / row.sum_ns)} of it waiting for the data loader"
        )
    return (
        f"{process_name(row.process)}, thread {row.tid} {printable(row.comm)}: "
        f"{count_of(row.steps, 'step')}{kind}{name}{found if row.source == _FOUND else ''}, median "
        f"{format_duration(row.p50_ns)}, longest {format_duration(row.max_ns)}, variation "
        f"{format_share(row.variation)}{waits}"
    )


def step_sentence(step: SlowStepRow) -> str:
    """Return how slow a step was, in a sentence."""
    wait = ""
    if step.loader_wait_ns > _SHARE * step.duration_ns:
        wait = f"; it waited {format_duration(step.loader_wait_ns)} for the data loader"
    return (
        f"step {step.number:,} was slow: {format_duration(step.duration_ns)} instead of "
        f"{format_duration(step.usual_ns)}{wait}"
    )
